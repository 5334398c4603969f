// An extender that answers as the protocol wants and decides nothing: every node fits, and all alike. PORT is its only
// argument.
import { createServer, type RequestListener } from 'node:http';
import { text } from 'node:stream/consumers';

type Call = { readonly NodeNames?: readonly string[] };

/** Takes bindings too, and does nothing with them. */
export const noDecisions: RequestListener = async (incoming, response) => {
  const { NodeNames: names } = JSON.parse(await text(incoming)) as Call;
  const answers: Readonly<Record<string, unknown>> = {
    '/filter': { NodeNames: names, FailedNodes: {} },
    '/prioritize': names?.map((Host) => ({ Host, Score: 1 })),
    '/bind': {},
  };
  const said = JSON.stringify(answers[incoming.url ?? '']);
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(said) });
  response.end(said);
};

if (import.meta.main)
  createServer({ keepAliveTimeout: 120_000 }, noDecisions).listen(Number(process.argv[2]), '127.0.0.1');

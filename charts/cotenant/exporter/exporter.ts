// The agent pod's container with a port: hands Prometheus what the privileged container serves on the pod's loopback, and
// nothing else. Owns the way of one page; it can neither act nor read a driver, and whoever breaks it has won a text.
// In the chart and not in the program, because the program's halves are not processes of their own yet.
import { createServer, type IncomingHttpHeaders, request, type Server, type ServerResponse } from 'node:http';
import { parseArgs } from 'node:util';

export type Relay = { readonly listen: number; readonly from: number; readonly timeoutMs?: number };

const HANDED_ON = ['content-type', 'content-encoding', 'content-length', 'vary'] as const;
const TIMEOUT_MS = 5000;
const MOST_CONNECTIONS = 64;

/** Listens on all addresses of the pod once it returns and the server says so. Port 0 takes a free one. */
export function startRelay({ listen, from, timeoutMs = TIMEOUT_MS }: Relay): Server {
  const server = createServer((asked, answer) => {
    const path = asked.url?.split('?')[0];
    if (asked.method !== 'GET' && asked.method !== 'HEAD') say(answer, 405, 'GET /metrics');
    else if (path === '/livez') say(answer, 200, 'ok');
    else if (path === '/metrics') handOn(asked.headers, answer, from, timeoutMs);
    else say(answer, 404, 'there are /metrics and /livez');
  });
  server.maxConnections = MOST_CONNECTIONS;
  server.requestTimeout = 10_000;
  // Longer than Prometheus waits between two scrapes.
  server.keepAliveTimeout = 120_000;
  return server.listen(listen);
}

function handOn(asked: IncomingHttpHeaders, answer: ServerResponse, port: number, timeout: number): void {
  const { accept, 'accept-encoding': encoding } = asked;
  const headers = { ...(accept && { accept }), ...(encoding && { 'accept-encoding': encoding }) };
  const asking = request({ host: '127.0.0.1', port, path: '/metrics', headers, timeout }, (page) => {
    const known = HANDED_ON.flatMap((name) => (page.headers[name] === undefined ? [] : [[name, page.headers[name]]]));
    answer.writeHead(page.statusCode ?? 502, Object.fromEntries(known));
    page.pipe(answer);
    page.on('error', () => answer.destroy());
  });
  asking.on('timeout', () => asking.destroy(new Error(`no answer within ${timeout} ms`)));
  asking.on('error', ({ message }) => {
    // Prometheus shows this text, and counts the scrape as failed, which it is.
    if (answer.headersSent) answer.destroy();
    else say(answer, 502, `the agent does not answer: ${message}`);
  });
  answer.on('close', () => asking.destroy());
  asking.end();
}

function say(answer: ServerResponse, code: number, text: string): void {
  answer.writeHead(code, { 'content-type': 'text/plain; charset=utf-8' }).end(`${text}\n`);
}

if (import.meta.main) {
  const { values } = parseArgs({ options: { listen: { type: 'string' }, from: { type: 'string' } } });
  const server = startRelay({ listen: Number(values.listen), from: Number(values.from) });
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.on(signal, () => {
      server.close();
      server.closeIdleConnections();
    });
  }
}

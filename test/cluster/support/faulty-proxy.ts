// A way to an API server on which a part of all requests goes wrong: refused as a busy or broken server refuses, cut
// before or after the server has carried them out, answered late; and watches that end anywhere in a line.
import { once } from 'node:events';
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { KubeConfig } from '@kubernetes/client-node';
import type { Teardown } from '../../support/native/node.ts';
import { refuse } from '../../support/services/api-server.ts';

const FAULTS = ['busy', 'broken', 'unavailable', 'cut-before', 'cut-after', 'late'] as const;
type Fault = (typeof FAULTS)[number] | 'silent' | 'watch-cut';

/** Less than the extender waits for an answer of the API server. */
const LATE_MS = 1500;
const LONGEST_WATCH_MS = 4000;

export type FaultyProxy = {
  readonly config: KubeConfig;
  /** Part of the requests that go wrong, 0 to 1. */
  share: number;
  /** All that came in. */
  requests: number;
  /** How many of each kind there were. */
  readonly faults: ReadonlyMap<Fault, number>;
  /** That clients have open now. */
  readonly connections: () => Promise<number>;
};

/** `socket`: where the API server is asked by HTTP. `withSilence`: some requests get no answer. Serves until the test ends. */
export async function startFaultyProxy(
  t: Teardown,
  socket: string,
  random: () => number,
  withSilence = false,
): Promise<FaultyProxy> {
  const kinds = withSilence ? ([...FAULTS, 'silent'] as const) : FAULTS;
  const faults = new Map<Fault, number>();
  const proxy = { share: 0, requests: 0, faults };
  const count = <T extends Fault>(fault: T): T => {
    faults.set(fault, (faults.get(fault) ?? 0) + 1);
    return fault;
  };
  let left: Fault[] = [];
  /** Each kind comes once before any comes again, so that a few dozen faults have all of them, whatever the seed. */
  const draw = () => {
    if (random() >= proxy.share) return undefined;
    if (left.length === 0) left = [...kinds];
    return left.splice(Math.floor(random() * left.length), 1)[0];
  };

  const forward = async (incoming: IncomingMessage, body: Buffer): Promise<IncomingMessage> => {
    const { method = '', url: path = '', headers } = incoming;
    const outgoing = request({ socketPath: socket, method, path, headers: { ...headers, host: 'localhost' } });
    outgoing.end(body);
    const [answer] = (await once(outgoing, 'response')) as [IncomingMessage];
    return answer;
  };
  const serve = async (incoming: IncomingMessage, response: ServerResponse): Promise<unknown> => {
    const isWatch = incoming.url?.includes('watch=true') ?? false;
    proxy.requests += 1;
    const body = await buffer(incoming);
    const fault = draw();
    if (fault) count(fault);
    if (fault === 'busy') return refuse(response.setHeader('Retry-After', '1'), 429, 'too many requests');
    if (fault === 'broken') return refuse(response, 500, 'etcdserver: leader changed');
    if (fault === 'unavailable') return refuse(response, 503, 'apiserver is shutting down');
    if (fault === 'cut-before') return response.destroy();
    if (fault === 'silent') return undefined;
    if (fault === 'late') await delay(LATE_MS);
    const answer = await forward(incoming, body);
    if (fault === 'cut-after') {
      answer.resume();
      return response.destroy();
    }
    response.writeHead(answer.statusCode ?? 500, answer.headers).flushHeaders();
    response.on('close', () => answer.destroy());
    answer.on('error', () => response.destroy());
    // All watches are cut until one was: on some of them nothing ever comes that could be cut.
    if (isWatch && proxy.share > 0 && (!faults.has('watch-cut') || random() < proxy.share * 2)) {
      // What the last line had begun with stays.
      const endsMs = random() * LONGEST_WATCH_MS;
      const timer = setTimeout(() => answer.once('data', (data: Buffer) => cut(data)), endsMs);
      response.on('close', () => clearTimeout(timer));
      const cut = (data: Buffer) => {
        count('watch-cut');
        answer.unpipe(response);
        response.write(data.subarray(0, Math.floor(random() * data.length)), () => response.destroy());
      };
    }
    return answer.pipe(response);
  };
  const server = createServer((incoming, response) => {
    serve(incoming, response).catch(() => response.destroy());
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.teardown(() => {
    server.close();
    server.closeAllConnections();
  });
  const config = new KubeConfig();
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  config.loadFromClusterAndUser({ name: 'c', server: url, skipTLSVerify: true }, { name: 'u' });
  return Object.assign(proxy, { config, connections: promisify(server.getConnections.bind(server)) });
}

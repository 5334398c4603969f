// The node half's server of the snapshot socket. The exporter half serves the network, so its requests count as
// hostile: none of them changes the node half's state, delays it, or makes it use more memory than LIMITS allow.
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from '../../../common/logger.ts';
import { bearerTokenIn } from '../../../serving/auth.ts';
import { type HttpServer, sendText, startHttpServer } from '../../../serving/http-server.ts';
import type { LocalSource } from '../source.ts';

export const LIMITS = {
  /** From a connection to the end of its request. */
  requestMs: 5000,
  /** From a request to the end of its answer: a client that does not read is disconnected. */
  answerMs: 10_000,
  connections: 16,
  /** Of all clients; further requests wait. One scrape per second and two status pages need a tenth of it. */
  answersPerSecond: 50,
} as const;
type Limits = { readonly [K in keyof typeof LIMITS]: number };

export type ServeOptions = {
  readonly path: string;
  /** User that may connect besides root and the agent's own user; 0: no other user. */
  readonly user: number;
  readonly log: Pick<Logger, 'warn'>;
  readonly limits?: Limits;
};

/** An answer other than 200. */
class Refusal extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

async function answerTo(
  { method, url = '/', headers }: IncomingMessage,
  source: LocalSource,
): Promise<string | Uint8Array> {
  const { pathname, searchParams } = new URL(url, 'http://agent');
  if (method !== 'GET') throw new Refusal(405, 'only GET is allowed');
  switch (pathname) {
    case '/health':
      return JSON.stringify(await source.health());
    // JSON: measured on 80 containers with 10 processes each, writing took 0.5 ms and parsing 0.9 ms; V8's serializer
    // 0.6 and 1.4 ms.
    case '/material':
      return JSON.stringify(await source.material(false));
    case '/material-with-processes':
      return JSON.stringify(await source.material(true));
    case '/status':
      return source.status();
    case '/history':
      return source.history();
    case '/review': {
      const token = bearerTokenIn(headers.authorization);
      const path = searchParams.get('path') ?? '';
      if (!source.review)
        throw new Refusal(
          404,
          'the node half reviews no tokens: its settings page.tokenReview and page.statusTokens are off',
        );
      if (token === undefined || !/^\/[\x21-\x7e]*$/.test(path))
        throw new Refusal(400, 'expected a path and a bearer token');
      return source.review(token, path);
    }
    default:
      throw new Refusal(404, `no such path: ${pathname}`);
  }
}

/** Rejects if the socket cannot be created. Replaces a file at its path. */
export function serveSnapshots(source: LocalSource, options: ServeOptions): Promise<HttpServer> {
  const { path, user, log, limits = LIMITS } = options;
  const served = new WeakSet<Socket>();
  let second = { fromMs: Number.NEGATIVE_INFINITY, answers: 0 };

  /** Waits until the limit of answers per second allows another one. */
  const pace = async () => {
    for (;;) {
      const now = performance.now();
      if (now - second.fromMs >= 1000) second = { fromMs: now, answers: 0 };
      if (second.answers < limits.answersPerSecond) break;
      await delay(1000 - (now - second.fromMs), undefined, { ref: false });
    }
    second.answers += 1;
  };

  const serve = async (request: IncomingMessage, response: ServerResponse) => {
    const { socket } = request;
    // One request per connection: further ones would wait in memory for the answer to the first.
    if (served.has(socket)) return void socket.destroy();
    served.add(socket);
    response.shouldKeepAlive = false;
    const timer = setTimeout(() => {
      log.warn(`${path}: the client does not read its answer and is disconnected`);
      socket.destroy();
    }, limits.answerMs);
    response.once('close', () => clearTimeout(timer));
    await pace();
    if (socket.destroyed) return;
    try {
      response.end(await answerTo(request, source));
    } catch (error) {
      sendText(response, error instanceof Refusal ? error.status : 503, (error as Error).message);
    }
  };
  return startHttpServer((request, response) => void serve(request, response), {
    listen: { socket: path, user, mode: 0o600 },
    requestMs: limits.requestMs,
    connections: limits.connections,
  });
}

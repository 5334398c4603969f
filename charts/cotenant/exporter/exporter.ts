// The agent pod's container with a port: hands Prometheus what the privileged container serves on the pod's loopback, and
// nothing else. Owns the way of one page; it can neither act nor read a driver, and whoever breaks it has won a text.
// In the chart and not in the program, because the program's halves are not processes of their own yet.
import { readFileSync } from 'node:fs';
import {
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type RequestListener,
  request,
  type Server,
  type ServerResponse,
} from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import { createSecureContext } from 'node:tls';
import { parseArgs } from 'node:util';

/** PEM files. */
export type Pair = { readonly certFile: string; readonly keyFile: string };
export type Relay = {
  readonly listen: number;
  readonly from: number;
  readonly timeoutMs?: number;
  /** HTTPS with this pair, followed when it changes; absent: plain HTTP. */
  readonly tls?: Pair | undefined;
  readonly readEveryMs?: number;
};

const HANDED_ON = ['content-type', 'content-encoding', 'content-length', 'vary', 'www-authenticate'] as const;
/** The agent answers within 8 s, if only that the page is late; Prometheus waits 10. */
const TIMEOUT_MS = 9000;
const MOST_CONNECTIONS = 64;
/** A mounted Secret changes without a word on some file systems. */
const READ_EVERY_MS = 10_000;
const TLS = { minVersion: 'TLSv1.2', handshakeTimeout: 10_000 } as const;

/**
 * Listens on all addresses of the pod once it returns and the server says so. Port 0 takes a free one. Throws where the pair
 * cannot serve at the start.
 */
export function startRelay({ listen, from, timeoutMs = TIMEOUT_MS, tls, readEveryMs = READ_EVERY_MS }: Relay): Server {
  const relay = (asked: IncomingMessage, answer: ServerResponse) => {
    const path = asked.url?.split('?')[0];
    if (asked.method !== 'GET' && asked.method !== 'HEAD') say(answer, 405, 'GET /metrics');
    else if (path === '/livez') say(answer, 200, 'ok');
    else if (path === '/metrics') handOn(asked.headers, answer, from, timeoutMs);
    else say(answer, 404, 'there are /metrics and /livez');
  };
  const server = tls ? secured(tls, readEveryMs, relay) : createServer(relay);
  server.maxConnections = MOST_CONNECTIONS;
  server.requestTimeout = 10_000;
  // Longer than Prometheus waits between two scrapes.
  server.keepAliveTimeout = 120_000;
  return server.listen(listen);
}

function readPair({ certFile, keyFile }: Pair): { readonly cert: string; readonly key: string } {
  try {
    const pair = { cert: readFileSync(certFile, 'utf8'), key: readFileSync(keyFile, 'utf8') };
    createSecureContext(pair);
    return pair;
  } catch (error) {
    throw new Error(`certificate ${certFile} with key ${keyFile} cannot serve: ${(error as Error).message}`);
  }
}

/** A pair that cannot serve is told once, and the last good one stays. */
function secured(files: Pair, readEveryMs: number, relay: RequestListener): Server {
  let serving = readPair(files);
  let said = '';
  const server = createHttpsServer({ ...TLS, ...serving }, relay);
  const look = () => {
    try {
      const found = readPair(files);
      said = '';
      if (found.cert === serving.cert && found.key === serving.key) return;
      serving = found;
      server.setSecureContext({ minVersion: TLS.minVersion, ...found });
    } catch (error) {
      const why = (error as Error).message;
      if (why !== said) console.error(`${why}; the old one stays in use`);
      said = why;
    }
  };
  const timer = setInterval(look, readEveryMs);
  timer.unref();
  return server.on('close', () => clearInterval(timer));
}

function handOn(asked: IncomingHttpHeaders, answer: ServerResponse, port: number, timeout: number): void {
  // Whether the bearer may read is the agent's to say: this container has nobody to ask.
  const { accept, 'accept-encoding': encoding, authorization } = asked;
  const headers = {
    ...(accept && { accept }),
    ...(encoding && { 'accept-encoding': encoding }),
    ...(authorization && { authorization }),
  };
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
  const text = { type: 'string' } as const;
  const { values } = parseArgs({ options: { listen: text, from: text, cert: text, key: text } });
  const { listen, from, cert, key } = values;
  const tls = cert !== undefined && key !== undefined ? { certFile: cert, keyFile: key } : undefined;
  const server = startRelay({ listen: Number(listen), from: Number(from), tls });
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.on(signal, () => {
      server.close();
      server.closeIdleConnections();
    });
  }
}

// The HTTP server that kube-scheduler calls, and the plain one for probes and metrics. Owns HTTP, TLS and limits of time and
// size; what is answered is decide.ts' and binder.ts' business.
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import type { Binder } from './bind.ts';
import { filterResult, readBindingRequest, readNodesAsked } from './extender-api.ts';
import type { Decider } from './filter-and-score.ts';
import type { Outcome, SchedulerMetrics, Verb } from './metrics.ts';

export type ServerParts = {
  readonly decider: Decider;
  readonly binder: Binder;
  readonly metrics: SchedulerMetrics;
  /** Undefined: nodes and pods were read; else what is missing. */
  readonly unready: () => string | undefined;
  readonly log: (line: string) => void;
};

/** Paths of PEM files; the authority is the one that callers' certificates must come from. */
export type MutualTls = { readonly certFile: string; readonly keyFile: string; readonly clientCaFile: string };

// A list of 5,000 names is 150 kB; whole Nodes are ten times that and more, each.
const LARGEST_BODY = 8 * 1024 * 1024;
// Above the 90 s after which Go stops using an idle connection again.
const TIMES = { keepAliveTimeout: 120_000, requestTimeout: 30_000, headersTimeout: 30_000 };
const RELOAD_MS = 60_000;

export function createExtender(parts: ServerParts): RequestListener {
  const { metrics, log } = parts;
  const verbs: Readonly<Record<string, Verb>> = { '/filter': 'filter', '/prioritize': 'prioritize', '/bind': 'bind' };
  const handle = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const verb = Object.hasOwn(verbs, request.url ?? '') ? verbs[request.url ?? ''] : undefined;
    if (!verb || request.method !== 'POST') {
      refuse(response, verb ? 405 : 404, 'POST to /filter, /prioritize or /bind');
      return;
    }
    const body = await bodyOf(request);
    const startedMs = performance.now();
    if (body === undefined) {
      response.setHeader('connection', 'close');
      refuse(response, 413, `the body is larger than ${LARGEST_BODY} bytes; set nodeCacheCapable for this extender`);
      metrics.observe(verb, 'malformed', 0);
      return;
    }
    let value: unknown;
    try {
      value = JSON.parse(body.toString('utf8'));
    } catch {
      value = undefined;
    }
    const { outcome, status = 200, answer } = await answers[verb](value, parts);
    const text = JSON.stringify(answer);
    response.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
    response.end(text);
    metrics.observe(verb, outcome, (performance.now() - startedMs) / 1000);
  };
  return (request, response) => {
    handle(request, response).catch((error) => {
      // The caller went away, or a fault of ours: nothing is answered that could be taken for a decision.
      if (!request.destroyed) log(`${request.url}: ${error instanceof Error ? error.stack : String(error)}`);
      if (!response.headersSent) refuse(response, 500, 'internal: the operator finds the reason in the log');
      else response.destroy();
    });
  };
}

type Answered = { readonly outcome: Outcome; readonly status?: number; readonly answer: object };

const answers: Readonly<Record<Verb, (value: unknown, parts: ServerParts) => Answered | Promise<Answered>>> = {
  filter(value, { decider, binder, unready }) {
    const asked = readNodesAsked(value);
    if ('wrong' in asked) return { outcome: 'malformed', status: 400, answer: { Error: asked.wrong } };
    const missing = unready();
    if (missing !== undefined) return { outcome: 'failed', answer: { Error: missing } };
    const shape = decider.read(asked.request);
    if ('wrong' in shape) return { outcome: 'refused', answer: { Error: shape.wrong } };
    if (asked.request !== undefined) binder.remember(asked.podUid, asked.request);
    const filtered = decider.filter(shape, asked.names);
    const outcome = filtered.feasible.length > 0 ? 'ok' : 'refused';
    return { outcome, answer: filterResult(filtered, asked) };
  },
  prioritize(value, { decider, unready }) {
    const asked = readNodesAsked(value);
    const wrong = 'wrong' in asked ? asked.wrong : undefined;
    if ('wrong' in asked) return { outcome: 'malformed', status: 400, answer: { error: wrong } };
    const shape = decider.read(asked.request);
    const missing = unready() ?? ('wrong' in shape ? shape.wrong : undefined);
    // The protocol has no place for an error here.
    if (missing !== undefined || 'wrong' in shape)
      return { outcome: 'failed', status: 503, answer: { error: missing } };
    return { outcome: 'ok', answer: decider.prioritize(shape, asked.names) };
  },
  async bind(value, { binder, unready }) {
    const asked = readBindingRequest(value);
    if ('wrong' in asked) return { outcome: 'malformed', status: 400, answer: { Error: asked.wrong } };
    const missing = unready();
    if (missing !== undefined) return { outcome: 'failed', answer: { Error: missing } };
    const bound = await binder.bind(asked);
    if (bound.outcome === 'bound') return { outcome: 'ok', answer: {} };
    return { outcome: bound.outcome, answer: { Error: bound.because } };
  },
};

function refuse(response: ServerResponse, status: number, message: string): void {
  const text = JSON.stringify({ error: message });
  response.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
  response.end(text);
}

/** Undefined: it is too large. */
async function bodyOf(request: IncomingMessage): Promise<Buffer | undefined> {
  const parts: Buffer[] = [];
  let length = 0;
  for await (const part of request as AsyncIterable<Buffer>) {
    length += part.length;
    if (length > LARGEST_BODY) return undefined;
    parts.push(part);
  }
  return Buffer.concat(parts);
}

export function createHealth({ metrics, unready }: ServerParts): RequestListener {
  const text = (response: ServerResponse, status: number, body: string) => {
    response.writeHead(status, { 'content-type': 'text/plain; charset=utf-8' });
    response.end(`${body}\n`);
  };
  return (request, response) => {
    if (request.url === '/healthz') text(response, 200, 'ok');
    else if (request.url === '/readyz') {
      const missing = unready();
      text(response, missing === undefined ? 200 : 503, missing ?? 'ok');
    } else if (request.url === '/metrics') {
      metrics.render().then(
        (page) => {
          response.writeHead(200, { 'content-type': metrics.contentType });
          response.end(page);
        },
        (error) => text(response, 500, String(error)),
      );
    } else text(response, 404, 'there are /healthz, /readyz and /metrics');
  };
}

export type Listening = { readonly port: number; close(): Promise<void> };

/** Listens; port 0 takes a free one. With TLS only callers with a certificate of the authority get in. */
export async function listen(
  handler: RequestListener,
  host: string | undefined,
  port: number,
  tls?: MutualTls,
): Promise<Listening> {
  let last = tls && readTls(tls);
  const server: Server = last ? createHttpsServer({ ...TIMES, ...last }, handler) : createServer(TIMES, handler);
  server.listen(port, host);
  await once(server, 'listening');
  // Mounted Secrets change without a word.
  const reload = setInterval(() => {
    if (!tls || !('setSecureContext' in server)) return;
    try {
      const next = readTls(tls);
      if (next.cert === last?.cert && next.key === last?.key && next.ca === last?.ca) return;
      (server as ReturnType<typeof createHttpsServer>).setSecureContext(next);
      last = next;
    } catch (error) {
      console.error(`the certificate cannot be taken, and the old one stays in use: ${(error as Error).message}`);
    }
  }, RELOAD_MS);
  reload.unref();
  return {
    port: (server.address() as AddressInfo).port,
    async close() {
      clearInterval(reload);
      const closed = once(server, 'close');
      server.close();
      server.closeIdleConnections();
      const timer = setTimeout(() => server.closeAllConnections(), 5000);
      await closed;
      clearTimeout(timer);
    },
  };
}

function readTls({ certFile, keyFile, clientCaFile }: MutualTls) {
  const [cert, key, ca] = [certFile, keyFile, clientCaFile].map((path) => readFileSync(path, 'utf8'));
  return { minVersion: 'TLSv1.3', requestCert: true, rejectUnauthorized: true, cert, key, ca } as const;
}

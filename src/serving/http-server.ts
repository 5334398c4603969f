// The HTTP(S) server of the webhook, the scheduler extender, the exporter and the agent's sockets: TLS whose
// certificate is replaced while it runs, client certificates, limits of time and connections, health paths, graceful
// close. Routes are the callers' own.
import { once } from 'node:events';
import { chmodSync, chownSync, rmSync } from 'node:fs';
import type { RequestListener, Server, ServerResponse } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import type { Logger } from '../common/logger.ts';
import type { Certificate } from './x509.ts';

/** PEM texts. With an authority for clients, only clients with a certificate that it signed are served. */
export type ServerCertificate = Certificate & { readonly clientCa?: string };

export type CertificateListener = {
  readonly onCertificate: (certificate: ServerCertificate) => void;
  /** A certificate that cannot serve; the previous one stays in use. */
  readonly onRejected: (why: string) => void;
  readonly logger: ServerLogger;
};

/** Resolves with the first certificate that can serve; the listener gets later ones. */
export type CertificateSource = (
  listener: CertificateListener,
) => Promise<{ readonly certificate: ServerCertificate; readonly close: () => Promise<void> }>;

export type ServerLogger = Pick<Logger, 'info' | 'warn'>;

type TlsOptions = {
  readonly source: CertificateSource;
  readonly minVersion: 'TLSv1.2' | 'TLSv1.3';
  readonly logger: ServerLogger;
  /** For metrics: each certificate that is served, the first one included. */
  readonly onLoaded?: (certificate: ServerCertificate) => void;
  readonly onRejected?: () => void;
};

/** Replaces a file at the path `socket`. */
type UnixSocket = {
  readonly socket: string;
  readonly mode: number;
  /** Its owner and group; absent or 0: those of this process. */
  readonly user?: number;
};

type ServerOptions = {
  /** No host: all addresses. Port 0 takes a free one. */
  readonly listen: { readonly host?: string | undefined; readonly port: number } | UnixSocket;
  readonly tls?: TlsOptions | undefined;
  /** From a request's first byte to its last; of the first one on a connection, from the connection's beginning. */
  readonly requestMs?: number;
  /** For the TLS handshake; by default `requestMs`. */
  readonly handshakeMs?: number;
  /** How long an idle connection stays open. Above the 90 s after which Go, so Kubernetes, stops reusing its own. */
  readonly idleMs?: number;
  /** One more is closed unread. */
  readonly connections?: number;
};

export type HttpServer = {
  /** 0 of a socket. */
  readonly port: number;
  /** The certificate that it began with. */
  readonly certificate: ServerCertificate | undefined;
  /** Waits until no client has a connection to it, for that time at most; resolves with how many are left. */
  untilUnused(mostMs: number): Promise<number>;
  /** Idle connections close at once, others after their answer; after the grace time what is left is cut. */
  close(graceMs?: number): Promise<void>;
};

const COUNT_EVERY_MS = 50;
/** Connections that wait to be accepted by default (net.Server.listen in Node's documentation). */
const NODE_BACKLOG = 511;

/** Listens once it resolves. Rejects where no certificate can be had, or the address is taken. */
export async function startHttpServer(handler: RequestListener, options: ServerOptions): Promise<HttpServer> {
  const { listen, tls, requestMs = 15_000, handshakeMs = requestMs, idleMs = 120_000, connections = 512 } = options;
  let replaceCertificate = (_: ServerCertificate) => {};
  const source = await tls?.source({
    onCertificate(next) {
      replaceCertificate(next);
      tls.onLoaded?.(next);
      tls.logger.info('TLS certificate reloaded');
    },
    onRejected(why) {
      tls.onRejected?.();
      tls.logger.warn(`${why}; the previous TLS certificate stays in use`);
    },
    logger: tls.logger,
  });
  const times = {
    requestTimeout: requestMs,
    // Not above the idle time, as older advice has it: when it is above the time for the request, Node (seen on 26)
    // swaps the two, and a slow body would get the longer one. Idle connections are under neither.
    headersTimeout: requestMs,
    handshakeTimeout: handshakeMs,
    keepAliveTimeout: idleMs,
    connectionsCheckingInterval: Math.min(1_000, requestMs),
  };
  let server: Server;
  // Loaded by name: an ES import of node:http evaluates all of its exports, and one of them, WebSocket, loads a whole
  // HTTP client: 14 MiB of memory.
  if (tls && source) {
    const secure = process
      .getBuiltinModule('node:https')
      .createServer({ ...times, ...tlsContext(tls, source.certificate) }, handler);
    replaceCertificate = (next) => secure.setSecureContext(tlsContext(tls, next));
    server = secure;
    tls.onLoaded?.(source.certificate);
  } else server = process.getBuiltinModule('node:http').createServer(times, handler);
  server.maxConnections = connections;
  // More would find the kernel's queue full: over TCP they try again after 1 s, then 3 s, over a socket they are refused.
  const backlog = Math.max(NODE_BACKLOG, connections);
  if ('socket' in listen) {
    rmSync(listen.socket, { force: true });
    server.listen({ path: listen.socket, backlog });
  }
  // Without a host Node also listens where there is no IPv6.
  else server.listen({ port: listen.port, backlog, ...(listen.host !== '::' && { host: listen.host }) });
  try {
    await once(server, 'listening');
    if ('socket' in listen) giveAccess(listen);
  } catch (error) {
    server.close();
    await source?.close();
    throw error;
  }
  const address = server.address();
  const count = promisify(server.getConnections.bind(server));
  return {
    port: typeof address === 'string' || address === null ? 0 : address.port,
    certificate: source?.certificate,
    async untilUnused(mostMs) {
      const until = performance.now() + mostMs;
      let left = await count();
      while (left > 0 && performance.now() < until) {
        await delay(COUNT_EVERY_MS);
        left = await count();
      }
      return left;
    },
    async close(graceMs = 0) {
      // The source of certificates may wait for an API server that does not answer.
      const grace = new AbortController();
      const graceOver = delay(Math.max(graceMs, 100), undefined, grace).catch(() => {});
      await Promise.all([closeConnections(server, graceMs), Promise.race([source?.close(), graceOver])]);
      grace.abort();
    },
  };
}

function giveAccess({ socket, mode, user = 0 }: UnixSocket): void {
  try {
    if (user !== 0) chownSync(socket, user, user);
    chmodSync(socket, mode);
  } catch (error) {
    throw new Error(`cannot give ${socket} to user ${user}: ${(error as Error).message}`);
  }
}

function tlsContext({ minVersion }: TlsOptions, { cert, key, clientCa }: ServerCertificate) {
  const mutual = clientCa !== undefined && { ca: clientCa, requestCert: true, rejectUnauthorized: true };
  return { minVersion, cert, key, ...mutual };
}

async function closeConnections(server: Server, graceMs: number): Promise<void> {
  const closed = once(server, 'close');
  server.close();
  server.closeIdleConnections();
  const timer = setTimeout(() => server.closeAllConnections(), graceMs);
  await closed;
  clearTimeout(timer);
}

type HealthSource = {
  /** What keeps it from being ready; undefined: it is ready. */
  readonly notReadyReason: () => string | undefined;
  readonly metrics: { readonly contentType: string; readonly render: () => Promise<string> };
};

/** Answers /healthz, /readyz and /metrics. */
export function createHealthHandler({ notReadyReason, metrics }: HealthSource): RequestListener {
  const paths: Record<string, (response: ServerResponse) => void | Promise<void>> = {
    '/healthz': (response) => sendText(response, 200, 'ok'),
    '/readyz': (response) => {
      const reason = notReadyReason();
      sendText(response, reason === undefined ? 200 : 503, reason ?? 'ok');
    },
    '/metrics': async (response) => {
      const page = await metrics.render();
      response.writeHead(200, { 'content-type': metrics.contentType }).end(page);
    },
  };
  return async (request, response) => {
    const [path = '/'] = (request.url ?? '/').split('?');
    const answer = Object.hasOwn(paths, path) ? paths[path] : undefined;
    try {
      await (answer ?? ((none) => sendText(none, 404, `this port serves ${Object.keys(paths).join(', ')}`)))(response);
    } catch (error) {
      sendText(response, 500, error instanceof Error ? error.message : String(error));
    }
  };
}

export function sendText(response: ServerResponse, status: number, text: string): void {
  response.writeHead(status, { 'content-type': 'text/plain; charset=utf-8' }).end(`${text}\n`);
}

export function sendJson(response: ServerResponse, status: number, value: unknown): void {
  const text = JSON.stringify(value);
  response.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
  response.end(text);
}

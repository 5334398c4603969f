// The HTTPS server that API servers call, and the plain one for probes and metrics.
// Owns HTTP, TLS, limits of time and size, and stopping; what is answered to a review is review.ts's business.
import { isUtf8 } from 'node:buffer';
import { X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { createServer as createHttpServer, type Server as HttpServer, type Server } from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import express, { type ErrorRequestHandler, type Express, type RequestHandler, type Response } from 'express';
import { type BodyLimits, BodyRefused, bodyReader } from '../src/serving/body-limit.ts';
import { type Certificate, type CertificateSource, selfSigned } from '../src/serving/x509.ts';
import { type Route, review } from './admission-review.ts';
import type { WebhookConfiguration } from './config.ts';
import { createMetrics, type WebhookMetrics } from './metrics.ts';

export type WebhookOptions = {
  readonly configuration: WebhookConfiguration;
  /** Address to listen on; all addresses by default. */
  readonly host?: string;
  /** 0, the default, takes a free port. */
  readonly port?: number;
  /** Absent: a self-signed certificate for `names`, for development. */
  readonly certificate?: CertificateSource;
  /** Names and addresses of the self-signed certificate. */
  readonly names?: readonly string[];
  /** Where given, a plain HTTP server answers /healthz, /readyz and /metrics there (0: a free port). */
  readonly healthPort?: number;
  readonly timeouts?: Partial<Timeouts>;
  readonly limits?: Partial<Limits>;
  /** One line for the operator; standard error by default. */
  readonly log?: (line: string) => void;
};

export type Webhook = {
  readonly url: string;
  readonly port: number;
  readonly healthPort: number | undefined;
  /** The certificate it began with, in PEM; with a self-signed one this is also the authority to trust. */
  readonly certificate: string;
  /** The metrics page in Prometheus' text format. */
  readonly metrics: () => Promise<string>;
  /**
   * Goes on for the drain time, then stops accepting, answers what has begun and closes idle connections; after the grace time
   * cuts what is left.
   */
  readonly close: () => Promise<void>;
};

export type Timeouts = {
  /** From a request's first byte to its last. */
  readonly requestMs: number;
  /** How long an idle connection stays open. Above the 90 s after which API servers stop reusing theirs. */
  readonly idleMs: number;
  /**
   * How long it goes on when it is told to stop: clients hear of that late, and one that writes on a connection that is being
   * closed loses its request. Each answer of that time is the last one on its connection.
   */
  readonly drainMs: number;
  readonly graceMs: number;
};

export type Limits = BodyLimits & {
  /** On each of the two ports; one more is closed unread. */
  readonly connections: number;
};

type State = { ready: boolean; stopping: boolean };

const TIMEOUTS: Timeouts = { requestMs: 15_000, idleMs: 120_000, drainMs: 0, graceMs: 10_000 };
const KIB = 1024;
const MIB = 1024 * KIB;
/**
 * API servers read no request above 3 MiB, and the review of an update has two pods, with some more for what is written
 * longer in JSON. All together these take some 150 MiB at most, of which the chart's limit of 384 MiB has room.
 */
const LIMITS: Limits = { connections: 512, largestBytes: 8 * MIB, freeBytes: 64 * KIB, sharedBytes: 48 * MIB };
const TLS = { minVersion: 'TLSv1.3' } as const;

/**
 * Starts serving once there is a certificate; until then only the probes are answered, as not ready. Rejects when none can be
 * had or a port is taken.
 */
export async function startWebhook(options: WebhookOptions): Promise<Webhook> {
  const { configuration, host, names = ['localhost', '127.0.0.1', '::1'] } = options;
  const log = options.log ?? ((line: string) => console.error(line));
  const timeouts = { ...TIMEOUTS, ...options.timeouts };
  const limits = { ...LIMITS, ...options.limits };
  const metrics = createMetrics();
  const state: State = { ready: false, stopping: false };
  await using failed = new AsyncDisposableStack();

  const health = options.healthPort === undefined ? undefined : createHealthServer(metrics, state);
  if (health) {
    health.maxConnections = limits.connections;
    await listen(health, options.healthPort ?? 0, host);
    failed.defer(() => closeServer(health, 0));
  }
  const loaded = ({ cert }: Certificate) => metrics.certificateLoaded(new X509Certificate(cert).validToDate);
  let server: ReturnType<typeof createHttpsServer> | undefined;
  const source = options.certificate ?? developmentCertificate(names);
  const { certificate, close: closeSource } = await source({
    take: (next) => {
      server?.setSecureContext({ ...TLS, ...next });
      loaded(next);
      log('webhook: certificate reloaded');
    },
    refuse: (why) => {
      metrics.certificateRefused();
      log(`webhook: ${why}; the old one stays in use`);
    },
    log,
  });
  failed.defer(closeSource);
  loaded(certificate);
  const app = createApp(configuration, metrics, state, log, limits);
  const serving = createHttpsServer({ ...TLS, ...certificate, ...serverTimes(timeouts) }, app);
  serving.maxConnections = limits.connections;
  server = serving;
  await listen(serving, options.port ?? 0, host);
  state.ready = true;
  failed.move();

  const stop = async (): Promise<void> => {
    state.stopping = true;
    const drained = delay(timeouts.drainMs).then(() => closeServer(serving, timeouts.graceMs));
    // Whoever looks after the certificate may be waiting for an API server that does not answer.
    const patience = new AbortController();
    const impatient = delay(timeouts.drainMs + timeouts.graceMs, undefined, patience).catch(() => {});
    await Promise.all([drained, Promise.race([closeSource(), impatient])]).finally(() => patience.abort());
    if (health) await closeServer(health, 0);
  };
  let stopped: Promise<void> | undefined;
  const port = portOf(serving);
  return {
    url: `https://${host?.includes(':') ? `[${host}]` : (host ?? 'localhost')}:${port}`,
    port,
    healthPort: health && portOf(health),
    certificate: certificate.cert,
    metrics: metrics.render,
    close: () => {
      stopped ??= stop();
      return stopped;
    },
  };
}

function developmentCertificate(names: readonly string[]): CertificateSource {
  return async () => ({ certificate: selfSigned(names, new Date()), close: async () => {} });
}

/**
 * The time for headers is not set above the idle time, as older advice has it: when it is above the time for the request,
 * Node (seen on 26) swaps the two, and a slow body would get the longer one. Idle connections are under neither.
 */
function serverTimes({ requestMs, idleMs }: Timeouts) {
  const connectionsCheckingInterval = Math.min(1_000, requestMs);
  return {
    requestTimeout: requestMs,
    headersTimeout: requestMs,
    // Before there is any request to time.
    handshakeTimeout: requestMs,
    keepAliveTimeout: idleMs,
    connectionsCheckingInterval,
  };
}

/** The application without a listener; `state.stopping` makes every answer the last one on its connection. */
export function createApp(
  configuration: WebhookConfiguration,
  metrics: WebhookMetrics,
  state: Pick<State, 'stopping'>,
  log: (line: string) => void,
  limits: BodyLimits = LIMITS,
): Express {
  const app = express();
  app.disable('x-powered-by');
  app.disable('etag');
  // Any content type is read: what counts is that the body is a review.
  const body = bodyReader(limits);
  app.post('/mutate', body, reviewHandler('mutate', configuration, metrics, state, log));
  app.post('/validate', body, reviewHandler('validate', configuration, metrics, state, log));
  app.use((request, response) => {
    const known = request.path === '/mutate' || request.path === '/validate';
    if (known) response.set('allow', 'POST');
    refuse(response, known ? 405 : 404, 'POST an AdmissionReview to /mutate or /validate');
  });
  app.use(errorHandler(metrics, log));
  return app;
}

function reviewHandler(
  route: Route,
  configuration: WebhookConfiguration,
  metrics: WebhookMetrics,
  state: Pick<State, 'stopping'>,
  log: (line: string) => void,
): RequestHandler {
  return (request, response) => {
    const started = performance.now();
    // Asked now and not when the request began: the server may have been told to stop while the body was on its way.
    if (state.stopping) response.set('connection', 'close');
    const parsed = parseBody(request.body);
    const reviewed = parsed.ok
      ? review(route, parsed.value, configuration)
      : ({ outcome: 'malformed', message: parsed.why } as const);
    if (reviewed.outcome === 'malformed') {
      refuse(response, 400, reviewed.message);
    } else {
      const text = JSON.stringify(reviewed.answer);
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
      response.end(text);
      if (reviewed.fault !== undefined) log(`webhook: ${route}: ${reviewed.fault}`);
    }
    metrics.observe(route, reviewed.outcome, (performance.now() - started) / 1000);
  };
}

type Body = { readonly ok: true; readonly value: unknown } | { readonly ok: false; readonly why: string };

/** UTF-8 and JSON, strictly: a byte that is replaced silently could make two names one. */
function parseBody(body: unknown): Body {
  if (!Buffer.isBuffer(body) || body.length === 0) return { ok: false, why: 'the body is empty' };
  if (!isUtf8(body)) return { ok: false, why: 'the body is not UTF-8' };
  try {
    return { ok: true, value: JSON.parse(body.toString('utf8')) };
  } catch (error) {
    return { ok: false, why: `the body is not JSON: ${error instanceof Error ? error.message : String(error)}` };
  }
}

/** What went wrong before a review could be read: a body that is not, or a path that makes no sense; else a fault of ours. */
function errorHandler(metrics: WebhookMetrics, log: (line: string) => void): ErrorRequestHandler {
  return (error: unknown, request, response, next) => {
    if (response.headersSent) {
      next(error);
      return;
    }
    const { status } = error as { status?: unknown };
    const theirs = error instanceof BodyRefused || (typeof status === 'number' && status >= 400 && status < 500);
    const code = theirs ? Number(status) : 500;
    if (!theirs) log(`webhook: ${error instanceof Error ? error.stack : String(error)}`);
    const why = error instanceof BodyRefused ? error.message : String(error);
    // What is left of the body is not worth reading, so the connection cannot be used again.
    response.set('connection', 'close');
    if (code === 503) response.set('retry-after', '1');
    refuse(response, code, theirs ? why : 'internal: the operator finds the reason in the log');
    const route: Route = request.path === '/validate' ? 'validate' : 'mutate';
    metrics.observe(route, code === 503 ? 'overloaded' : theirs ? 'malformed' : 'internal', 0);
  };
}

function refuse(response: Response, code: number, message: string): void {
  response.status(code).json({ code, message });
}

function createHealthServer(metrics: WebhookMetrics, state: State): HttpServer {
  const app = express();
  app.disable('x-powered-by');
  app.get('/healthz', (_request, response) => {
    response.type('text').send('ok');
  });
  app.get('/readyz', (_request, response) => {
    const why = state.stopping ? 'stopping' : state.ready ? undefined : 'no certificate that API servers trust yet';
    response
      .status(why === undefined ? 200 : 503)
      .type('text')
      .send(why ?? 'ok');
  });
  app.get('/metrics', async (_request, response) => {
    response.set('content-type', metrics.contentType).send(await metrics.render());
  });
  return createHttpServer(app);
}

async function listen(server: Server, port: number, host: string | undefined): Promise<void> {
  server.listen(port, host);
  await once(server, 'listening');
}

/** Idle connections close at once, others after their answer; what is left after the grace time is cut. */
async function closeServer(server: Server, graceMs: number): Promise<void> {
  const closed = once(server, 'close');
  server.close();
  server.closeIdleConnections();
  const timer = setTimeout(() => server.closeAllConnections(), graceMs);
  await closed;
  clearTimeout(timer);
}

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

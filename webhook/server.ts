// The HTTPS server that API servers call, and the plain one for probes and metrics.
// Owns HTTP, TLS, limits of time and size, and stopping; what is answered to a review is review.ts's business.
import { isUtf8 } from 'node:buffer';
import { X509Certificate } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import express, { type ErrorRequestHandler, type Express, type RequestHandler, type Response } from 'express';
import { type BodyLimits, BodyRefused, createBodyReader, type ReadBody } from '../src/serving/body-limit.ts';
import { type CertificateSource, createHealthHandler, startHttpServer } from '../src/serving/http-server.ts';
import { selfSigned } from '../src/serving/x509.ts';
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

  const { connections } = limits;
  const healthServer = async (port: number) => {
    const health = createHealthHandler({ notReadyReason: () => notReadyReason(state), metrics });
    const started = await startHttpServer(health, { listen: { host, port }, connections });
    failed.defer(() => started.close(0));
    return started;
  };
  const health = options.healthPort === undefined ? undefined : await healthServer(options.healthPort);
  const logger = { info: (line: string) => log(`webhook: ${line}`), warn: (line: string) => log(`webhook: ${line}`) };
  const server = await startHttpServer(createApp(configuration, metrics, state, log, limits), {
    listen: { host, port: options.port ?? 0 },
    tls: {
      source: options.certificate ?? developmentCertificate(names),
      minVersion: 'TLSv1.3',
      logger,
      onLoaded: ({ cert }) => metrics.certificateLoaded(new X509Certificate(cert).validToDate),
      onRejected: metrics.certificateRefused,
    },
    requestMs: timeouts.requestMs,
    idleMs: timeouts.idleMs,
    connections,
  });
  state.ready = true;
  failed.move();

  const stop = async (): Promise<void> => {
    state.stopping = true;
    await delay(timeouts.drainMs);
    await server.close(timeouts.graceMs);
    await health?.close(0);
  };
  let stopped: Promise<void> | undefined;
  return {
    url: `https://${host?.includes(':') ? `[${host}]` : (host ?? 'localhost')}:${server.port}`,
    port: server.port,
    healthPort: health?.port,
    certificate: server.certificate?.cert ?? '',
    metrics: metrics.render,
    close: () => {
      stopped ??= stop();
      return stopped;
    },
  };
}

function notReadyReason({ ready, stopping }: State): string | undefined {
  if (stopping) return 'stopping';
  return ready ? undefined : 'no certificate that API servers trust yet';
}

function developmentCertificate(names: readonly string[]): CertificateSource {
  return async () => ({ certificate: selfSigned(names, new Date()), close: async () => {} });
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
  const read = createBodyReader(limits);
  app.post('/mutate', reviewHandler('mutate', read, configuration, metrics, state, log));
  app.post('/validate', reviewHandler('validate', read, configuration, metrics, state, log));
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
  read: ReadBody,
  configuration: WebhookConfiguration,
  metrics: WebhookMetrics,
  state: Pick<State, 'stopping'>,
  log: (line: string) => void,
): RequestHandler {
  return async (request, response) => {
    const body = await read(request, response);
    const started = performance.now();
    // Asked now and not when the request began: the server may have been told to stop while the body was on its way.
    if (state.stopping) response.set('connection', 'close');
    const parsed = parseBody(body);
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
function parseBody(body: Buffer): Body {
  if (body.length === 0) return { ok: false, why: 'the body is empty' };
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
    refuse(response, code, theirs ? why : 'internal: the log of the webhook has the reason');
    const route: Route = request.path === '/validate' ? 'validate' : 'mutate';
    metrics.observe(route, code === 503 ? 'overloaded' : theirs ? 'malformed' : 'internal', 0);
  };
}

function refuse(response: Response, code: number, message: string): void {
  response.status(code).json({ code, message });
}

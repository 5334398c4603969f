// The webhook's HTTPS server for API servers (/mutate, /validate) and its plain one for probes and metrics: limits of
// time and size, graceful stop. admission-review.ts answers the reviews.
import { isUtf8 } from 'node:buffer';
import { X509Certificate } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import express, { type ErrorRequestHandler, type Express, type RequestHandler, type Response } from 'express';
import type { Logger } from '../src/common/logger.ts';
import { MIB } from '../src/common/quantity.ts';
import { attempt, err, type Result } from '../src/common/result.ts';
import { type BodyLimits, BodyRefused, createBodyReader, type ReadBody } from '../src/serving/body-limit.ts';
import {
  type CertificateSource,
  createHealthHandler,
  type ServerLogger,
  startHttpServer,
} from '../src/serving/http-server.ts';
import { selfSigned } from '../src/serving/x509.ts';
import { type Decision, type Route, review } from './admission-review.ts';
import type { WebhookConfiguration } from './config.ts';
import { createMetrics, type WebhookMetrics } from './metrics.ts';

export type WebhookOptions = {
  /** The current one, for each review. */
  readonly configuration: () => WebhookConfiguration;
  /** Whether those are the rules that administrators wrote last; by default they are. */
  readonly rulesAreValid?: () => boolean;
  readonly logger: ServerLogger & Pick<Logger, 'error'>;
  /** Gets a line for each pod that is patched or refused. */
  readonly decisions?: Pick<Logger, 'info'>;
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
};

export type Webhook = {
  readonly url: string;
  readonly port: number;
  readonly healthPort: number | undefined;
  /** The first certificate, in PEM; a self-signed one is also the authority to trust. */
  readonly certificate: string;
  /** The metrics page in Prometheus' text format. */
  readonly metrics: () => Promise<string>;
  /**
   * Serves for the drain time and until clients have left, then stops accepting, answers open requests and closes idle
   * connections; after the grace time closes the rest.
   */
  readonly close: () => Promise<void>;
};

type Timeouts = {
  /** From a request's head to its last byte, and for the TLS handshake. */
  readonly requestMs: number;
  /**
   * How long a connection stays open without a request, or with the head of one that is not whole. Above the 90 s after
   * which API servers close theirs. Some have never had a request: Go's Transport opens one for a request that is waiting,
   * and keeps it for later if another one becomes free before (dialConnFor in net/http/transport.go).
   */
  readonly idleMs: number;
  /**
   * How long it serves after `close`, since API servers learn late that a replica stops. From then on each answer is the
   * last one on its connection. 0: it stops at once.
   */
  readonly drainMs: number;
  /**
   * How long it goes on after that, until API servers have closed the connections that stayed idle. One that this side closes
   * can meet a request, and that costs a pod's creation: Go sends a POST of which it has written a byte again for nothing
   * but an Idempotency-Key (shouldRetryRequest, ibid.), client-go after such errors only GET (isErrRetryableFunc in
   * rest/request.go), and HTTP/2, whose GOAWAY would say which requests to send again, is off in API servers' calls of
   * webhooks (NextProtos in k8s.io/apiserver/pkg/util/webhook/client.go).
   */
  readonly leaveMs: number;
  readonly graceMs: number;
};

type Limits = BodyLimits & {
  /** On each of the two ports; further connections are closed unread. */
  readonly connections: number;
};

type State = { ready: boolean; stopping: boolean };

/** `leaveMs`: the 90 s after which Go closes an idle connection (IdleConnTimeout of http.DefaultTransport), and a reserve. */
const TIMEOUTS: Timeouts = { requestMs: 15_000, idleMs: 120_000, drainMs: 0, leaveMs: 92_000, graceMs: 10_000 };
const KIB = 1024;
/**
 * API servers read no request above 3 MiB, the review of an update has two pods, and JSON writes some values longer.
 * Connections for all that an API server serves at once (600 by default: --max-requests-inflight and its mutating part),
 * for the 25 that it keeps idle for each of both paths, and for those that it has closed, or opened ahead, meanwhile: one
 * that is refused costs a pod's creation. All bodies and connections together take at most some 320 MiB, within the chart's
 * limit of 512 MiB.
 */
const LIMITS: Limits = { connections: 1024, largestBytes: 8 * MIB, freeBytes: 64 * KIB, sharedBytes: 48 * MIB };

/**
 * Serves once there is a certificate; until then only the probes are answered, as not ready. Rejects where no
 * certificate can be had or a port is taken.
 */
export async function startWebhook(options: WebhookOptions): Promise<Webhook> {
  const { configuration, logger, decisions, host, names = ['localhost', '127.0.0.1', '::1'] } = options;
  const timeouts = { ...TIMEOUTS, ...options.timeouts };
  const limits = { ...LIMITS, bodyMs: timeouts.requestMs, ...options.limits };
  const metrics = createMetrics(options.rulesAreValid);
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
  const server = await startHttpServer(createApp({ configuration, metrics, state, logger, decisions, limits }), {
    listen: { host, port: options.port ?? 0 },
    tls: {
      source: options.certificate ?? developmentCertificate(names),
      minVersion: 'TLSv1.3',
      logger,
      onLoaded: ({ cert }) => metrics.certificateLoaded(new X509Certificate(cert).validToDate),
      onRejected: metrics.certificateRefused,
    },
    requestMs: timeouts.idleMs,
    handshakeMs: timeouts.requestMs,
    idleMs: timeouts.idleMs,
    connections,
  });
  state.ready = true;
  failed.move();

  const stop = async (): Promise<void> => {
    state.stopping = true;
    if (timeouts.drainMs > 0) {
      await delay(timeouts.drainMs);
      const left = await server.untilUnused(timeouts.leaveMs);
      if (left > 0) logger.warn(`stops with connections that clients have not closed: ${left}`);
    }
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

type AppOptions = {
  readonly configuration: () => WebhookConfiguration;
  readonly metrics: WebhookMetrics;
  /** `stopping` makes every answer the last one on its connection. */
  readonly state: Pick<State, 'stopping'>;
  readonly logger: Pick<Logger, 'error'>;
  readonly decisions?: Pick<Logger, 'info'> | undefined;
  readonly limits?: BodyLimits;
};

/** The application without a listener. */
export function createApp(options: AppOptions): Express {
  const app = express();
  app.disable('x-powered-by');
  app.disable('etag');
  // Any content type is read, as long as the body is a review.
  const readBody = createBodyReader(options.limits ?? LIMITS);
  app.post('/mutate', reviewHandler('mutate', readBody, options));
  app.post('/validate', reviewHandler('validate', readBody, options));
  app.use((request, response) => {
    const known = request.path === '/mutate' || request.path === '/validate';
    if (known) response.set('allow', 'POST');
    refuse(response, known ? 405 : 404, 'POST an AdmissionReview to /mutate or /validate');
  });
  app.use(errorHandler(options));
  return app;
}

function reviewHandler(
  route: Route,
  readBody: ReadBody,
  { configuration, metrics, state, logger, decisions }: AppOptions,
): RequestHandler {
  return async (request, response) => {
    const body = await readBody(request, response);
    const started = performance.now();
    // Checked only now: the server may have begun to stop while the body was on its way.
    if (state.stopping) response.set('connection', 'close');
    const parsed = parseBody(body);
    const reviewed = parsed.ok
      ? review(route, parsed.value, configuration())
      : ({ outcome: 'malformed', message: parsed.error } as const);
    if (reviewed.outcome === 'malformed') {
      refuse(response, 400, reviewed.message);
    } else {
      const text = JSON.stringify(reviewed.answer);
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
      response.end(text);
      const { decision, problems, fault } = reviewed;
      if (decision) decisions?.info(...lineOf(decision));
      if (problems) metrics.refused(problems);
      if (fault !== undefined) logger.error(`${route}: ${fault}`);
    }
    metrics.observe(route, reviewed.outcome, (performance.now() - started) / 1000);
  };
}

const lineOf = ({ message, code, pod }: Decision) => [message, { code, ...(pod !== undefined && { pod }) }] as const;

/** Strict about UTF-8: a decoder that replaces wrong bytes could make two names equal. */
function parseBody(body: Buffer): Result<unknown> {
  if (body.length === 0) return err('the body is empty');
  if (!isUtf8(body)) return err('the body is not UTF-8');
  const value = attempt(() => JSON.parse(body.toString('utf8')) as unknown);
  return value.ok ? value : err(`the body is not JSON: ${value.error}`);
}

/** Answers a body that cannot be read or a malformed path (4xx), and faults of the webhook (500). */
function errorHandler({ metrics, logger }: AppOptions): ErrorRequestHandler {
  return (error: unknown, request, response, next) => {
    if (response.headersSent) {
      next(error);
      return;
    }
    const { status } = error as { status?: unknown };
    const isClientError = error instanceof BodyRefused || (typeof status === 'number' && status >= 400 && status < 500);
    const code = isClientError ? Number(status) : 500;
    if (!isClientError) logger.error(String(error instanceof Error ? error.stack : error));
    const message = error instanceof BodyRefused ? error.message : String(error);
    // The rest of the body stays unread, so the connection cannot be used again.
    response.set('connection', 'close');
    if (code === 503) response.set('retry-after', '1');
    refuse(response, code, isClientError ? message : 'internal: the log of the webhook has the reason');
    const route: Route = request.path === '/validate' ? 'validate' : 'mutate';
    metrics.observe(route, code === 503 ? 'overloaded' : isClientError ? 'malformed' : 'internal', 0);
  };
}

function refuse(response: Response, code: number, message: string): void {
  response.status(code).json({ code, message });
}

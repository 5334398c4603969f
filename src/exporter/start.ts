// Starts the exporter half: metrics, status page and health over HTTP, with authorization. It reads snapshots from a
// source (agent/snapshot/source.ts): the node half in the same process, or the socket of another process, which then
// needs no privileges.
import { hostname } from 'node:os';
import type { RequestHandler } from 'express';
import type { Source } from '../agent/snapshot/source.ts';
import type { Logger } from '../common/logger.ts';
import type { ReviewCall } from '../kube/token-review.ts';
import { requireAuth } from '../serving/auth.ts';
import { openBearerTokenFile } from '../serving/bearer-token-file.ts';
import { startHttpServer } from '../serving/http-server.ts';
import { fromFiles } from '../serving/tls-files.ts';
import { createTokenReviewCache } from '../serving/token-review-cache.ts';
import { createMetricsCache } from './metrics-cache.ts';
import { createExporter } from './routes.ts';
import type { ExporterSettings } from './settings.ts';

const CONNECTIONS = 256;

export type Exporter = { readonly port: number; close(): Promise<void> };

/** Undefined if no authorization is configured. Rejects if the settings cannot be applied. */
export async function guardOf(
  { page: { bearerTokenFile, tokenReview } }: Pick<ExporterSettings, 'page'>,
  review: ReviewCall | undefined,
  log: Pick<Logger, 'warn'>,
): Promise<RequestHandler | undefined> {
  if (bearerTokenFile === '' && !tokenReview) return undefined;
  if (tokenReview && !review) throw new Error('page.tokenReview: needs a cluster (kubernetes.enabled)');
  const clock = () => performance.now();
  const bearer = bearerTokenFile === '' ? undefined : await openBearerTokenFile(bearerTokenFile, clock);
  return requireAuth(
    { bearer, reviews: tokenReview && review ? createTokenReviewCache(review, clock) : undefined },
    log.warn,
  );
}

/** Resolves when it listens; rejects if it cannot. */
export async function startExporter(
  configuration: ExporterSettings,
  source: Source,
  access: RequestHandler | undefined,
  log: Logger,
): Promise<Exporter> {
  const { host, port, processMetrics, compatibilityMetrics, kubernetes } = configuration;
  const { certFile, keyFile } = configuration.page;
  const page = createMetricsCache({
    processes: processMetrics,
    compatibility: compatibilityMetrics,
    nodeName: kubernetes.nodeName || hostname(),
    source,
    log,
  });
  const tls = { source: fromFiles({ certFile, keyFile }), minVersion: 'TLSv1.2', logger: log } as const;
  const server = await startHttpServer(createExporter({ ...source, scrape: page.scrape }, access), {
    listen: { host, port },
    tls: certFile === '' ? undefined : tls,
    connections: CONNECTIONS,
  });
  return {
    port: server.port,
    async close() {
      await Promise.all([server.close(0), page.close()]);
    },
  };
}

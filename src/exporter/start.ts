// Starts the exporter half: metrics, status page and health over HTTP, with authorization. It reads snapshots from a
// source (agent/snapshot/source.ts): the node half in the same process, or the socket of another process, which then
// needs no privileges.
import { hostname } from 'node:os';
import type { Source } from '../agent/snapshot/source.ts';
import type { Logger } from '../common/logger.ts';
import type { ReviewCall } from '../kube/token-review.ts';
import { type AccessRules, requireAuth } from '../serving/auth.ts';
import { openBearerTokenFile } from '../serving/bearer-token-file.ts';
import { startHttpServer } from '../serving/http-server.ts';
import { fromFiles } from '../serving/tls-files.ts';
import { createTokenReviewCache } from '../serving/token-review-cache.ts';
import { createMetricsCache } from './metrics-cache.ts';
import { createExporter, type Guards } from './routes.ts';
import { type ExporterSettings, reviewingSetting } from './settings.ts';

const CONNECTIONS = 256;

export type Exporter = { readonly port: number; close(): Promise<void> };

/** Empty if no authorization is configured. Rejects if the settings cannot be applied. */
export async function guardsOf(
  { page }: Pick<ExporterSettings, 'page'>,
  review: ReviewCall | undefined,
  log: Pick<Logger, 'warn'>,
): Promise<Guards> {
  const reviewing = reviewingSetting(page);
  if (reviewing !== undefined && !review) throw new Error(`page.${reviewing}: needs a cluster (kubernetes.enabled)`);
  const clock = () => performance.now();
  const { bearerTokenFile } = page;
  const bearer = bearerTokenFile === '' ? undefined : await openBearerTokenFile(bearerTokenFile, clock);
  const reviews = reviewing !== undefined && review ? createTokenReviewCache(review, clock) : undefined;
  const guard = (rules: AccessRules) => (rules.bearer || rules.reviews ? requireAuth(rules, log.warn) : undefined);
  return {
    status: guard({ bearer, reviews }),
    all: guard({ bearer, reviews: page.tokenReview ? reviews : undefined }),
  };
}

/** Resolves when it listens; rejects if it cannot. */
export async function startExporter(
  configuration: ExporterSettings,
  source: Source,
  guards: Guards,
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
  const server = await startHttpServer(createExporter({ ...source, scrape: page.scrape }, guards), {
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

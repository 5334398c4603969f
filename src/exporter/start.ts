// The exporter half: the page of metrics, the status page and health over HTTP, for whom they are. It has what it serves from a
// source (snapshots/source.ts), which is the node half in this process, or its socket: then this half needs no right at all.
import { hostname } from 'node:os';
import type { RequestHandler } from 'express';
import type { Source, Standing } from '../agent/snapshot/source.ts';
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

export type ExporterHooks = {
  readonly log: (text: string) => void;
  /** Hears of what may come again and again. */
  readonly onProblem: (text: string) => void;
};

export type Exporter = {
  readonly port: number;
  /** There is a newer snapshot; undefined: whoever has them is away. */
  tell(standing: Standing | undefined): void;
  close(): Promise<void>;
};

/** Nothing where everybody may read the page. Rejects where the settings cannot be kept. */
export async function guardOf(
  { page: { bearerTokenFile, tokenReview } }: Pick<ExporterSettings, 'page'>,
  review: ReviewCall | undefined,
  onProblem: (text: string) => void,
): Promise<RequestHandler | undefined> {
  if (bearerTokenFile === '' && !tokenReview) return undefined;
  if (tokenReview && !review) throw new Error('page.tokenReview: there is no cluster to ask');
  const clock = () => performance.now();
  const bearer = bearerTokenFile === '' ? undefined : await openBearerTokenFile(bearerTokenFile, clock);
  return requireAuth(
    { bearer, reviews: tokenReview && review ? createTokenReviewCache(review, clock) : undefined },
    onProblem,
  );
}

/** Listens once it resolves. Rejects where it cannot. */
export async function startExporter(
  configuration: ExporterSettings,
  source: Source,
  access: RequestHandler | undefined,
  { log, onProblem }: ExporterHooks,
): Promise<Exporter> {
  const { host, port, processMetrics, compatibilityMetrics, kubernetes } = configuration;
  const { certFile, keyFile } = configuration.page;
  const page = createMetricsCache({
    processes: processMetrics,
    compatibility: compatibilityMetrics,
    nodeName: kubernetes.nodeName || hostname(),
    material: source.material,
    onProblem,
  });
  const logger = { info: log, warn: log };
  const tls = { source: fromFiles({ certFile, keyFile }), minVersion: 'TLSv1.2', logger } as const;
  const server = await startHttpServer(createExporter({ ...source, scrape: page.scrape }, access), {
    listen: { host, port },
    tls: certFile === '' ? undefined : tls,
    connections: CONNECTIONS,
  });
  return {
    port: server.port,
    tell(standing) {
      if (standing) page.publish(standing);
      else page.withdraw();
    },
    async close() {
      await Promise.all([server.close(0), page.close()]);
    },
  };
}

// What the exporter serves: the page of metrics, health, the status page and its data. No request reads the driver or takes a
// lock of sampling: it hands out what the last sample left.
import express, { type Express, type RequestHandler } from 'express';
import { NO_SAMPLE, type Source } from '../agent/snapshot/source.ts';
import { OPEN_METRICS, toOpenMetrics, wantsOpenMetrics } from './format/openmetrics.ts';
import type { Scraped } from './metrics-cache.ts';
import type { PageForm } from './render-worker.ts';
import { STATUS_PAGE } from './status-page.ts';

export type ExporterSource = Pick<Source, 'standing' | 'status' | 'history' | 'own'> & {
  readonly scrape: (form: PageForm) => Promise<Scraped>;
};

const TEXT_FORMAT = 'text/plain; version=0.0.4; charset=utf-8';

/** `guard` stands before all that tells of tenants; probes are answered to everybody. */
export function createExporter(source: ExporterSource, guard?: RequestHandler): Express {
  const app = express();
  app.disable('x-powered-by');
  app.disable('etag');

  // No restart of the agent cures a driver that hangs, and the sampler is started anew anyway: that is /readyz' to say.
  app.get('/livez', (_request, response) => {
    response.type('text').send('ok\n');
  });
  app.get('/readyz', (_request, response) => {
    const standing = source.standing();
    if (!standing) response.status(503).type('text').send(`${NO_SAMPLE}\n`);
    else if (!standing.up)
      response
        .status(503)
        .type('text')
        .send(`${standing.problem ?? 'the driver does not answer'}\n`);
    else response.type('text').send('ok\n');
  });
  if (guard) app.use(guard);

  app.get('/metrics', async (request, response) => {
    const open = wantsOpenMetrics(request.headers.accept);
    const gzip = /\bgzip\b/.test(request.headers['accept-encoding'] ?? '');
    const body = await source.scrape(`${open ? 'openmetrics' : 'text'}${gzip ? '+gzip' : ''}`);
    if (body === 'late') {
      response
        .status(503)
        .type('text')
        .send('the page is not made yet: the machine is short of time, or the agent hangs\n');
      return;
    }
    response.setHeader('Content-Type', open ? OPEN_METRICS : TEXT_FORMAT);
    if (body === 'nothing') {
      // Before the first sample, and without a driver library: absence must be visible.
      const down =
        '# HELP cotenant_up 1 while the driver answers and the last sample is fresh.\n# TYPE cotenant_up gauge\ncotenant_up 0\n';
      const text = `${down}${await source.own().catch(() => '')}`;
      response.end(open ? toOpenMetrics(text) : text);
      return;
    }
    if (gzip) response.setHeader('Content-Encoding', 'gzip');
    response.setHeader('Vary', 'Accept, Accept-Encoding');
    response.setHeader('Content-Length', body.byteLength);
    response.end(body);
  });

  const told =
    (ask: () => Promise<string | Uint8Array>): RequestHandler =>
    async (_request, response) => {
      response.setHeader('Cache-Control', 'no-store');
      try {
        const body = await ask();
        response.type('json').send(typeof body === 'string' ? body : Buffer.from(body.buffer));
      } catch (error) {
        response
          .status(503)
          .type('text')
          .send(`${(error as Error).message}\n`);
      }
    };
  app.get('/status.json', told(source.status));
  app.get('/history.json', told(source.history));
  app.get('/', (_request, response) => {
    response.setHeader(
      'Content-Security-Policy',
      "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
    );
    response.type('html').send(STATUS_PAGE);
  });
  app.use((_request, response) => {
    response.status(404).type('text').send('there are /, /metrics, /livez, /readyz, /status.json and /history.json\n');
  });
  return app;
}

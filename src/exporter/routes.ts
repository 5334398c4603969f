// HTTP routes of the exporter: /metrics, health, the status page and its data. All are served from the last sample; no
// request reads the driver or waits for sampling.
import express, { type Express, type RequestHandler } from 'express';
import type { Source } from '../agent/snapshot/source.ts';
import { acceptedFormat } from './accept.ts';
import type { Scraped } from './metrics-cache.ts';
import { CONTENT_TYPES, type Format, renderDown } from './render.ts';
import { STATUS_PAGE } from './status-page.ts';

type ExporterSource = Pick<Source, 'health' | 'status' | 'history'> & {
  readonly scrape: (format: Format) => Promise<Scraped>;
};

/** Health probes need no authorization. */
export type Guards = {
  /** Of the data of the status page: processes of all tenants. */
  readonly status?: RequestHandler | undefined;
  /** Of all other pages. */
  readonly all?: RequestHandler | undefined;
};

export function createExporter(source: ExporterSource, guards: Guards = {}): Express {
  const app = express();
  // A guard reviews the path as it is sent.
  app.enable('strict routing').enable('case sensitive routing');
  app.disable('x-powered-by');
  app.disable('etag');

  // Always ok while the loop runs: a restart of the agent does not cure a hung driver. /readyz reports that.
  app.get('/livez', (_request, response) => {
    response.type('text').send('ok\n');
  });
  app.get('/readyz', async (_request, response) => {
    const health = await source.health().catch((error: Error) => ({ up: false, problem: error.message }));
    const text = health.up ? 'ok' : (health.problem ?? 'the driver does not answer');
    response
      .status(health.up ? 200 : 503)
      .type('text')
      .send(`${text}\n`);
  });
  const json =
    (get: () => Promise<string | Uint8Array>): RequestHandler =>
    async (_request, response) => {
      response.setHeader('Cache-Control', 'no-store');
      try {
        const body = await get();
        response.type('json').send(typeof body === 'string' ? body : Buffer.from(body.buffer));
      } catch (error) {
        response
          .status(503)
          .type('text')
          .send(`${(error as Error).message}\n`);
      }
    };
  const { status = (_request, _response, next) => next(), all } = guards;
  app.get('/status.json', status, json(source.status));
  app.get('/history.json', status, json(source.history));
  if (all) app.use(all);

  app.get('/metrics', async (request, response) => {
    const format = acceptedFormat(request.headers.accept);
    const page = await source.scrape(format);
    if (page === 'late') {
      response
        .status(503)
        .type('text')
        .send('the metrics are not rendered yet: the machine is short of CPU time, or the agent hangs\n');
      return;
    }
    response.setHeader('Content-Type', CONTENT_TYPES[format]);
    if (page === 'nothing') {
      // Absence must be visible.
      response.end(await renderDown(format));
      return;
    }
    const gzip = /\bgzip\b/.test(request.headers['accept-encoding'] ?? '');
    const body = gzip ? page.gzip : page.plain;
    if (gzip) response.setHeader('Content-Encoding', 'gzip');
    response.setHeader('Vary', 'Accept, Accept-Encoding');
    response.setHeader('Content-Length', body.byteLength);
    response.end(body);
  });
  app.get('/', (_request, response) => {
    response.setHeader(
      'Content-Security-Policy',
      "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
    );
    response.type('html').send(STATUS_PAGE);
  });
  app.use((_request, response) => {
    response
      .status(404)
      .type('text')
      .send('not found; the paths are /, /metrics, /livez, /readyz, /status.json and /history.json\n');
  });
  return app;
}

// What the exporter serves: the page of metrics, health, the status page and its data. No request reads the driver or takes a
// lock of sampling: it hands out what the last sample left.
import { once } from 'node:events';
import type { Server } from 'node:http';
import type { Server as HttpsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import express, { type Express, type RequestHandler } from 'express';
import { NO_SAMPLE, type Source } from '../agent/snapshot/source.ts';
import type { CertificateSource } from '../serving/x509.ts';
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

export type Listening = { readonly port: number; close(): Promise<void> };
/** What a certificate comes from, and who hears of what becomes of it. */
export type Tls = { readonly source: CertificateSource; readonly log: (text: string) => void };

const MOST_CONNECTIONS = 256;
const TLS = { minVersion: 'TLSv1.2', handshakeTimeout: 10_000 } as const;

// Asked for by name below: an import of node:http takes all of its names, and one of them, WebSocket, loads a whole HTTP
// client: 14 MiB of memory.

/** Listens; port 0 takes a free one. Rejects where the certificate cannot serve at the start. */
export async function serve(
  app: Express,
  at: { host: string; port: number } | { socket: string },
  tls?: Tls,
): Promise<Listening> {
  let secure: HttpsServer | undefined;
  const source = await tls?.source({
    take(next) {
      secure?.setSecureContext({ minVersion: TLS.minVersion, ...next });
      tls.log('the page has a new certificate');
    },
    refuse: (why) => tls.log(`the page keeps its certificate: ${why}`),
    log: tls.log,
  });
  if (source) secure = process.getBuiltinModule('node:https').createServer({ ...TLS, ...source.certificate }, app);
  const server: Server = secure ?? process.getBuiltinModule('node:http').createServer(app);
  server.keepAliveTimeout = 120_000;
  server.maxConnections = MOST_CONNECTIONS;
  if ('socket' in at) server.listen(at.socket);
  // Without an address it is also right where there is no IPv6.
  else if (at.host === '::') server.listen(at.port);
  else server.listen(at.port, at.host);
  await once(server, 'listening').catch(async (error: unknown) => {
    await source?.close();
    throw error;
  });
  const address = server.address();
  return {
    port: typeof address === 'string' || address === null ? 0 : (address as AddressInfo).port,
    async close() {
      await Promise.all([source?.close(), stopServer(server)]);
    },
  };
}

async function stopServer(server: Server): Promise<void> {
  const closed = once(server, 'close');
  server.close();
  server.closeAllConnections();
  await closed;
}

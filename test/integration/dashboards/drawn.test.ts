// The boards as a reader sees them: the JSON that ships, drawn by Grafana's own components in a browser, on a live
// Prometheus that scrapes a small cluster at work. A picture of each, in both themes, is left in the build output.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { extname, join, normalize } from 'node:path';
import type { ExecutionContext } from 'ava';
import { BOARDS } from '../../../dashboards/boards.ts';
import { bundled } from '../../boards/bundle.ts';
import { liveCluster } from '../../boards/live.ts';
import { testUnless } from '../../support/gate.ts';
import { BUILD, eventually } from '../../support/native/node.ts';
import { browser, type OpenPage, openPage } from '../../support/services/browser.ts';
import { prometheusReason } from '../../support/services/prometheus.ts';

type Shown = {
  readonly title: string;
  readonly type: string;
  readonly series: number;
  readonly standIn?: string;
  readonly empty?: string;
  readonly titleClipped: boolean;
  readonly legendClipped: readonly string[];
  readonly columnsClipped: boolean;
  readonly plotRatio?: number;
};
type Drawn = {
  readonly failed?: string;
  readonly height: number;
  readonly panels: readonly Shown[];
  readonly errors: readonly string[];
};

const bundle = bundled();
const missing = 'reason' in bundle ? bundle.reason : prometheusReason();
const testOfDrawing = testUnless(browser === undefined ? 'there is no Chromium or Chrome on the PATH' : missing);

const OUTPUT = join(import.meta.dirname, '../../../dashboards/output');
const PICTURES = join(BUILD, 'boards');
const WIDTH = 1280;
const SECONDS = 60;
const LEAST_PLOT = 0.55;
const MOST_SERIES = 10;
const LEAST_PANELS = 15;
const SETTLE_MS = 60_000;
/** A busy machine is scraped late, and leaves some seconds without an answer: a board is drawn again for so long. */
const AGAIN_MS = 60_000;
/** In a cluster at work these have nothing to show; all others have data. */
const MAY_BE_EMPTY: readonly string[] = [
  // In steps of a minute.
  'Most compute in 24 hours',
];
/** Of these @grafana/ui has none. */
const STAND_INS = ['histogram', 'state timeline'];

const HTML = `<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="/page.css"><body style="margin:0">
<div id="root"></div><script>
window.errors = [];
const note = (...parts) => window.errors.push(parts.map(String).join(' '));
console.error = note;
addEventListener('error', ({ message }) => note(message));
addEventListener('unhandledrejection', ({ reason }) => note(reason));
</script><script src="/page.js"></script>`;
const TYPES: Readonly<Record<string, string>> = {
  ...{ '.js': 'text/javascript', '.css': 'text/css', '.json': 'application/json', '.svg': 'image/svg+xml' },
};

/** The page, its parts, Grafana's icons and the boards. */
async function serve(t: ExecutionContext, { page, icons }: { page: string; icons: string }): Promise<string> {
  const fileOf = (path: string) => {
    if (path.startsWith('/boards/')) return join(OUTPUT, path.slice('/boards/'.length));
    if (path.startsWith('/public/')) return join(icons, path.slice('/public/'.length).replace(/^build\//, ''));
    return join(page, path);
  };
  const server = createServer(({ url = '/' }, response) => {
    const path = normalize(new URL(url, 'http://x').pathname);
    try {
      const body = path === '/' ? HTML : readFileSync(fileOf(path));
      response.writeHead(200, { 'content-type': TYPES[extname(path)] ?? 'text/html' }).end(body);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.close();
    server.closeAllConnections();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** What is wrong with a panel, in words. */
function complaints(shown: Shown): readonly string[] {
  const { title, series, empty, titleClipped, legendClipped, plotRatio, type, standIn } = shown;
  const wrong = [
    empty !== undefined && empty !== 'none' && !MAY_BE_EMPTY.includes(title) && `shows "${empty}"`,
    titleClipped && 'has a clipped title',
    shown.columnsClipped && 'has columns outside of its width',
    legendClipped.length > 0 && `has clipped names: ${legendClipped.join(', ')}`,
    type === 'timeseries' && empty === undefined && (plotRatio ?? 0) < LEAST_PLOT && `leaves ${plotRatio} to its plot`,
    type === 'timeseries' && series > MOST_SERIES && `shows ${series} series`,
    standIn !== undefined && !STAND_INS.includes(standIn) && `is drawn by a stand-in: ${standIn}`,
  ];
  return wrong.flatMap((each) => (each ? [`${title} ${each}`] : []));
}

/** Draws a board and takes its picture. */
async function draw(page: OpenPage, address: string, picture: string): Promise<readonly string[]> {
  await page.resize(WIDTH, 900);
  await page.evaluate(`location.assign(${JSON.stringify(address)})`);
  const loaded = `location.href === ${JSON.stringify(address)} && 'drawn' in window`;
  await eventually(
    async () => (await page.evaluate(loaded).catch(() => false)) || undefined,
    `${address} is loaded`,
    SETTLE_MS,
  );
  const drawn = (await page.evaluate('window.drawn')) as Drawn;
  if (drawn.failed !== undefined) return [drawn.failed];
  await page.resize(WIDTH, drawn.height);
  writeFileSync(picture, await page.picture());
  const few = drawn.panels.length < LEAST_PANELS ? [`${drawn.panels.length} panels`] : [];
  return [...few, ...drawn.panels.flatMap(complaints), ...drawn.errors.map((each) => `console: ${each}`)];
}

testOfDrawing('each board has data, room for its plots and whole names, in both themes', async (t) => {
  t.timeout(600_000);
  if ('reason' in bundle) return t.fail(bundle.reason);
  const prometheus = await liveCluster(t);
  const url = await serve(t, bundle);
  const page = await openPage(t, 'about:blank');
  mkdirSync(PICTURES, { recursive: true });
  for (const name of BOARDS.keys()) {
    for (const theme of ['dark', 'light']) {
      let found: readonly string[] = ['not drawn'];
      const end = Date.now() + AGAIN_MS;
      for (let tries = 0; found.length > 0 && (tries === 0 || Date.now() < end); tries += 1) {
        const shown = {
          board: name,
          theme,
          tries: String(tries),
          seconds: String(SECONDS),
          prometheus: prometheus.url,
        };
        found = await draw(page, `${url}/?${new URLSearchParams(shown)}`, join(PICTURES, `${name}-${theme}.png`));
      }
      t.deepEqual(found, [], `${name}, ${theme}`);
    }
  }
  return undefined;
});

testOfDrawing('what a reader would complain about is found', (t) => {
  const fine = {
    title: 'X',
    type: 'timeseries',
    series: 3,
    titleClipped: false,
    columnsClipped: false,
    legendClipped: [],
  };
  const count = (shown: Partial<Shown>) => complaints({ ...fine, plotRatio: 0.9, ...shown }).length;
  t.is(count({}), 0);
  const wrong: readonly Partial<Shown>[] = [
    ...[{ empty: 'No data' }, { titleClipped: true }, { columnsClipped: true }, { legendClipped: ['a'] }],
    ...[{ plotRatio: 0.5 }, { series: 11 }, { standIn: 'gauge' }],
  ];
  for (const each of wrong) t.is(count(each), 1, JSON.stringify(each));
});

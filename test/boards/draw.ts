// Draws the boards that ship, by Grafana's own components in a browser, on a Prometheus; says what a reader would complain
// about, and takes pictures.
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { extname, join, normalize } from 'node:path';
import { eventually, type Teardown } from '../support/native/node.ts';
import { browser, type OpenPage, openPage } from '../support/services/browser.ts';
import { prometheusReason } from '../support/services/prometheus.ts';
import { bundled } from './bundle.ts';

/** A panel as it was drawn. */
export type Shown = {
  readonly title: string;
  readonly type: string;
  readonly series: number;
  readonly standIn?: string;
  readonly empty?: string;
  readonly titleClipped: boolean;
  readonly legendClipped: readonly string[];
  /** Text of cells of tables that does not fit. */
  readonly cellsClipped: readonly string[];
  /** Of axes. */
  readonly labelsClipped: readonly string[];
  readonly columnsClipped: boolean;
  readonly plotRatio?: number;
};
type Drawn = {
  readonly failed?: string;
  readonly height: number;
  readonly panels: readonly Shown[];
  readonly errors: readonly string[];
};

const OUTPUT = join(import.meta.dirname, '../../dashboards/output');
/** Pixels of a screen on which a board must be readable: of a desk, if it says nothing else. */
const WIDTH = 1280;
const LEAST_PLOT = 0.55;
const MOST_SERIES = 10;
const LEAST_PANELS = 15;
const SETTLE_MS = 120_000;
/** Pixels that a reader sees without scrolling. */
const FIRST_SCREEN = 720;
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
async function serve(t: Teardown, { page, icons }: { page: string; icons: string }): Promise<string> {
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

/** Why no board can be drawn here; undefined: it can. */
export function drawingReason(): string | undefined {
  if (browser === undefined) return 'there is no Chromium or Chrome on the PATH';
  const bundle = bundled();
  return 'reason' in bundle ? bundle.reason : prometheusReason();
}

/** How each board is drawn: on a desk in both themes, and on a wall. */
export const LOOKS: Readonly<Record<string, { readonly theme: string; readonly width?: string }>> = {
  dark: { theme: 'dark' },
  light: { theme: 'light' },
  wall: { theme: 'dark', width: '2560' },
};

/** Of a board: theme, width, Prometheus, range, step and chosen variables, as page.jsx reads them. */
export type Asked = Readonly<Record<string, string>> & { readonly board: string };

export type Found = {
  readonly panels: readonly Shown[];
  /** Of the page and not of a panel. */
  readonly problems: readonly string[];
};

export type Pen = {
  /** Draws a board and writes its picture; with `small` only what is seen first, at half of its size. */
  draw(asked: Asked, picture: string, small?: boolean): Promise<Found>;
};

export async function openPen(t: Teardown): Promise<Pen> {
  const bundle = bundled();
  if ('reason' in bundle) throw new Error(bundle.reason);
  const url = await serve(t, bundle);
  const page = await openPage(t, 'about:blank');
  return {
    async draw(asked, picture, small = false) {
      const width = Number(asked.width ?? WIDTH);
      const drawn = await load(page, width, `${url}/?${new URLSearchParams(asked)}`);
      if (drawn.failed !== undefined) return { panels: [], problems: [drawn.failed] };
      const height = small ? FIRST_SCREEN : drawn.height;
      await page.resize(width, height);
      writeFileSync(picture, await still(page, small ? { width, height, scale: 0.5 } : undefined));
      const few = drawn.panels.length < LEAST_PANELS ? [`${drawn.panels.length} panels`] : [];
      return { panels: drawn.panels, problems: [...few, ...drawn.errors.map((each) => `console: ${each}`)] };
    },
  };
}

const MOST_PICTURES = 10;

/** Once two pictures are the same: what scrolls by itself, as tables do, is painted last, and anew after each resizing. */
async function still(page: OpenPage, part: Parameters<OpenPage['picture']>[0]): Promise<Buffer> {
  await page.evaluate('settled()');
  let [before, after]: [Buffer, Buffer] = [Buffer.of(), await page.picture(part)];
  for (let count = 0; count < MOST_PICTURES && !after.equals(before); count += 1) {
    await page.evaluate('settled()');
    [before, after] = [after, await page.picture(part)];
  }
  return after;
}

async function load(page: OpenPage, width: number, address: string): Promise<Drawn> {
  await page.resize(width, 900);
  await page.evaluate(`location.assign(${JSON.stringify(address)})`);
  const loaded = `location.href === ${JSON.stringify(address)} && 'drawn' in window`;
  await eventually(
    async () => (await page.evaluate(loaded).catch(() => false)) || undefined,
    `${address} is loaded`,
    SETTLE_MS,
  );
  return (await page.evaluate('window.drawn')) as Drawn;
}

export const isEmpty = ({ empty }: Shown): boolean => empty !== undefined && empty !== 'none';
export const isClipped = ({ titleClipped, columnsClipped, ...texts }: Shown): boolean =>
  titleClipped || columnsClipped || [texts.legendClipped, texts.cellsClipped, texts.labelsClipped].flat().length > 0;
const HAVE_PLOTS = ['timeseries', 'state-timeline'];

/** What is wrong with a panel, in words. `mayBeEmpty`: titles of those that need no data. */
export function complaints(shown: Shown, mayBeEmpty: readonly string[] = []): readonly string[] {
  const { title, series, empty, titleClipped, legendClipped, plotRatio, type, standIn } = shown;
  const wrong = [
    isEmpty(shown) && !mayBeEmpty.includes(title) && `shows "${empty}"`,
    titleClipped && 'has a clipped title',
    shown.columnsClipped && 'has columns outside of its width',
    shown.cellsClipped.length > 0 && `has clipped cells: ${[...new Set(shown.cellsClipped)].join(', ')}`,
    legendClipped.length > 0 && `has clipped names: ${legendClipped.join(', ')}`,
    shown.labelsClipped.length > 0 && `has clipped labels of axes: ${shown.labelsClipped.join(', ')}`,
    HAVE_PLOTS.includes(type) &&
      empty === undefined &&
      (plotRatio ?? 0) < LEAST_PLOT &&
      `leaves ${plotRatio} to its plot`,
    type === 'timeseries' && series > MOST_SERIES && `shows ${series} series`,
    standIn !== undefined && !STAND_INS.includes(standIn) && `is drawn by a stand-in: ${standIn}`,
  ];
  return wrong.flatMap((each) => (each ? [`${title} ${each}`] : []));
}

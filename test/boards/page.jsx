// Draws a board's JSON with Grafana's own components, on what a Prometheus answers, as Grafana would at this width; then
// measures what it drew. Panel types that @grafana/ui does not have are drawn by stand-ins, which say so. The address:
// ?board=NAME&prometheus=URL&theme=dark|light&seconds=RANGE&step=SECONDS&to=UNIX&var-NAME=VALUE
import {
  createTheme,
  dateTime,
  FieldType,
  getDisplayProcessor,
  getFieldDisplayValues,
  standardTransformers,
  standardTransformersRegistry,
  ThemeContext,
  toDataFrame,
  transformDataFrame,
} from '@grafana/data';
import { BigValue, GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { createElement as h } from 'react';
import { createRoot } from 'react-dom/client';
import { firstValueFrom } from 'rxjs';

const asked = new URLSearchParams(location.search);
const theme = createTheme({ colors: { mode: asked.get('theme') ?? 'dark' } });
const seconds = Number(asked.get('seconds') ?? 60);
const to = Number(asked.get('to') ?? Math.floor(Date.now() / 1000));
const timeRange = { from: dateTime((to - seconds) * 1000), to: dateTime(to * 1000), raw: { from: 'now-1m', to: 'now' } };
// Grafana's grid: 24 columns, rows of 30 px, and 8 px between panels.
const [COLUMNS, CELL, GAP, EDGE] = [24, 30, 8, 16];
const pageWidth = Number(asked.get('width') ?? 1280);
const column = (pageWidth - 2 * EDGE - GAP * (COLUMNS - 1)) / COLUMNS;
const STEP = Number(asked.get('step') ?? 2);
const TIMES = { __rate_interval: `${Math.max(10, 4 * STEP)}s`, __interval: `${STEP}s`, __range: `${seconds}s` };
/** What a link chose; all of the other variables. */
const VARIABLES = Object.fromEntries(
  [...asked].flatMap(([name, value]) => (name.startsWith('var-') ? [[name.slice('var-'.length), value]] : [])),
);
const LINE = { drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none' };
const GRAPH = {
  ...LINE,
  ...{ barAlignment: 0, stacking: { mode: 'none', group: 'A' }, showPoints: 'never', pointSize: 5, spanNulls: false },
  ...{ axisPlacement: 'auto', axisLabel: '', scaleDistribution: { type: 'linear' }, thresholdsStyle: { mode: 'off' } },
  ...{ hideFrom: { tooltip: false, viz: false, legend: false }, axisGridShow: true, axisBorderShow: false },
};

/** Labels of axes that are cut at the edge of their canvas. */
const cutLabels = new WeakMap();
const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
Object.assign(CanvasRenderingContext2D.prototype, {
  clearRect(...box) {
    cutLabels.delete(this.canvas);
    clearRect.apply(this, box);
  },
  fillText(text, x, y, ...rest) {
    const { actualBoundingBoxLeft, actualBoundingBoxRight } = this.measureText(text);
    const left = this.getTransform().transformPoint({ x: x - actualBoundingBoxLeft, y }).x;
    const right = this.getTransform().transformPoint({ x: x + actualBoundingBoxRight, y }).x;
    if (left < -1 || right > this.canvas.width + 1)
      cutLabels.set(this.canvas, [...(cutLabels.get(this.canvas) ?? []), text]);
    fillText.call(this, text, x, y, ...rest);
  },
});

const { mergeTransformer, organizeFieldsTransformer } = standardTransformers;
standardTransformersRegistry.setInit(() =>
  [mergeTransformer, organizeFieldsTransformer].map((transformation) => ({ ...transformation, transformation: async () => transformation })),
);

async function get(path, query) {
  const url = `${asked.get('prometheus')}/api/v1/${path}?${new URLSearchParams(query)}`;
  const answer = await (await fetch(url)).json();
  if (answer.status !== 'success') throw new Error(`${path} ${JSON.stringify(query)}: ${answer.error}`);
  return answer.data;
}

/** All values of each variable, unless the address or a repeated row chose one. */
const replaced = (text, chosen) =>
  text.replace(/\$\{?([a-z_]\w*)(?::\w+)?\}?/gi, (_, name) => chosen[name] ?? VARIABLES[name] ?? TIMES[name] ?? '.+');

const named = (legend, labels) =>
  legend ? legend.replace(/\{\{(\w+)\}\}/g, (_, name) => labels[name] ?? '') : JSON.stringify(labels);

async function framesOf(target, chosen) {
  const { refId, legendFormat } = target;
  const query = replaced(target.expr, chosen);
  if (target.instant) {
    const { result } = await get('query', { query, time: to });
    if (target.format === 'table') return result.length === 0 ? [] : [tableFrame(refId, result)];
    return result.map(({ metric, value }) => series(refId, named(legendFormat, metric), metric, [value]));
  }
  const { result } = await get('query_range', { query, start: to - seconds, end: to, step: STEP });
  return result.map(({ metric, values }) => series(refId, named(legendFormat, metric), metric, values));
}

function series(refId, name, labels, values) {
  // A step without a value is a gap.
  const at = new Map(values.map(([time, value]) => [time, Number(value)]));
  const times = values.length === 1 ? [...at.keys()] : steps();
  return toDataFrame({
    refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: times.map((time) => time * 1000), config: {} },
      {
        ...{ name: 'Value', type: FieldType.number, labels },
        ...{ values: times.map((time) => at.get(time) ?? null), config: { displayNameFromDS: name } },
      },
    ],
  });
}

const steps = () => Array.from({ length: seconds / STEP + 1 }, (_, index) => to - seconds + index * STEP);

function tableFrame(refId, result) {
  const labels = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))];
  return toDataFrame({
    refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: result.map(({ value }) => value[0] * 1000), config: {} },
      ...labels.map((name) => ({
        ...{ name, type: FieldType.string, config: {} },
        values: result.map(({ metric }) => metric[name] ?? ''),
      })),
      {
        ...{ name: `Value #${refId}`, type: FieldType.number, config: {} },
        values: result.map(({ value }) => Number(value[1])),
      },
    ],
  });
}

const MATCHES = {
  byName: ({ name, config }, _, wanted) => [name, config.displayNameFromDS, config.displayName].includes(wanted),
  byFrameRefID: (_, frame, refId) => frame.refId === refId,
};

/** With the panel's defaults and overrides, as Grafana applies them. */
function configured({ fieldConfig }, frames, custom) {
  let index = 0;
  for (const frame of frames) {
    for (const field of frame.fields) {
      const config = structuredClone({ ...fieldConfig.defaults, ...field.config });
      config.custom = { ...custom, ...config.custom };
      for (const { matcher, properties } of fieldConfig.overrides ?? []) {
        if (!MATCHES[matcher.id](field, frame, matcher.options)) continue;
        for (const { id, value } of properties) {
          if (id.startsWith('custom.')) config.custom[id.slice('custom.'.length)] = value;
          else config[id] = value;
        }
      }
      const first = config.thresholds?.steps?.[0];
      if (first) first.value = Number.NEGATIVE_INFINITY;
      if (field.type !== FieldType.time && config.color === undefined && custom === GRAPH)
        config.color = { mode: 'palette-classic' };
      field.config = config;
      if (field.type === FieldType.number) field.state = { ...field.state, seriesIndex: index++ };
      if (field.type === FieldType.number || field.type === FieldType.string) {
        // Links have no page to lead to here.
        delete field.config.links;
        field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
      }
    }
  }
  return frames;
}

const standIn = (what, content) =>
  h(
    'div',
    { 'data-stand-in': what, style: { font: '12px sans-serif', color: theme.colors.text.primary } },
    h('div', { style: { color: theme.colors.text.secondary } }, `stand-in for Grafana's ${what}`),
    content,
  );

const ROWS = { gridTemplateColumns: 'max-content 1fr', gridAutoRows: 18 };

const DRAW = {
  stat({ panel, frames, width, height }) {
    const fieldConfig = { defaults: {}, overrides: [] };
    const values = getFieldDisplayValues({
      ...{ fieldConfig, reduceOptions: { calcs: ['lastNotNull'], values: false }, theme, timeZone: 'utc' },
      ...{ replaceVariables: (text) => text, data: configured(panel, frames) },
    });
    const shown = values.map(({ display }, index) =>
      h(BigValue, {
        ...{ key: index, value: display, width: width / values.length, height, theme },
        ...{ colorMode: 'value', graphMode: 'none', justifyMode: 'auto', textMode: panel.options.textMode ?? 'auto' },
      }),
    );
    return h('div', { style: { display: 'flex' } }, shown);
  },
  timeseries: ({ panel, frames, width, height }) =>
    h(TimeSeries, {
      ...{ frames: configured(panel, frames, GRAPH), width, height, timeRange, timeZone: 'utc', structureRev: 1 },
      ...{ legend: panel.options.legend, options: {} },
    }),
  table: ({ panel, frames, width, height }) =>
    h(TableNG, { data: configured(panel, frames)[0], width, height, sortBy: panel.options.sortBy, structureRev: 1 }),
  'state-timeline': ({ panel, frames, height }) =>
    standIn(
      'state timeline',
      h(
        'div',
        // As Grafana's, whose names have the room that they need.
        { style: { ...{ height: height - 20, overflow: 'hidden', display: 'grid', columnGap: 8 }, ...ROWS } },
        configured(panel, frames, {}).flatMap(({ fields: [, field] }, index) => [
          h('div', { key: `name ${index}`, style: { whiteSpace: 'nowrap' } }, field.config.displayNameFromDS),
          h(
            'div',
            { key: index, className: 'plot', style: { display: 'flex', minWidth: 0 } },
            field.values.map((value, at) => {
              const color = value === null ? 'transparent' : field.display(value).color;
              return h('div', { key: at, style: { flex: 1, background: color, marginTop: 2 } });
            }),
          ),
        ]),
      ),
    ),
  histogram({ frames }) {
    const counts = new Map();
    for (const { fields } of frames) counts.set(fields[1].values[0], (counts.get(fields[1].values[0]) ?? 0) + 1);
    const bars = [...counts].sort(([left], [right]) => left - right);
    return standIn(
      'histogram',
      bars.map(([value, count]) => h('div', { key: value }, `${value}: ${'█'.repeat(count)} ${count}`)),
    );
  },
};

async function loaded({ panel, chosen }) {
  const { targets = [], transformations = [] } = panel;
  const answers = (await Promise.all(targets.map((target) => framesOf(target, chosen)))).flat();
  const frames = transformations.length === 0 ? answers : await firstValueFrom(transformDataFrame(transformations, answers));
  return frames.filter(({ length }) => length > 0);
}

/** Rows that repeat are there once for each value of their variable, with the panels that follow them. */
async function expanded(board) {
  const list = [];
  let shift = 0;
  for (const [index, panel] of board.panels.entries()) {
    const end = board.panels.findIndex(({ type }, at) => at > index && type === 'row');
    if (panel.type !== 'row' || panel.repeat === undefined) {
      if (!list.some((each) => each.panel === panel)) list.push({ panel, y: panel.gridPos.y + shift, chosen: {} });
      continue;
    }
    const part = board.panels.slice(index, end < 0 ? undefined : end);
    const height = Math.max(...part.map(({ gridPos }) => gridPos.y + gridPos.h)) - panel.gridPos.y;
    const { query } = board.templating.list.find(({ name }) => name === panel.repeat);
    const [, selector, label] = /^label_values\((.*), (\w+)\)$/.exec(query);
    const values = await get(`label/${label}/values`, { 'match[]': replaced(selector, {}) });
    for (const [at, value] of values.entries()) {
      const chosen = { [panel.repeat]: value };
      for (const each of part) list.push({ panel: each, y: each.gridPos.y + shift + at * height, chosen });
    }
    shift += (values.length - 1) * height;
  }
  return list;
}

const Panel = ({ panel, y, chosen, frames }) => {
  const { gridPos } = panel;
  const width = gridPos.w * column + (gridPos.w - 1) * GAP;
  const height = gridPos.h * CELL + (gridPos.h - 1) * GAP;
  const place = { position: 'absolute', left: EDGE + gridPos.x * (column + GAP), top: 48 + y * (CELL + GAP), width, height };
  const title = replaced(panel.title, chosen);
  if (panel.type === 'row')
    return h('h3', { style: { ...place, font: '500 16px sans-serif', color: theme.colors.text.primary } }, `⌄ ${title}`);
  const content = (innerWidth, innerHeight) => {
    if (frames.length > 0) return DRAW[panel.type]({ panel, frames, width: innerWidth, height: innerHeight });
    return h('div', { className: 'empty', style: { textAlign: 'center' } }, panel.fieldConfig.defaults.noValue ?? 'No data');
  };
  const padding = panel.type === 'table' ? 'none' : 'md';
  const chrome = h(PanelChrome, { width, height, title, description: panel.description, padding }, content);
  return h('div', { style: place, className: 'drawn', 'data-title': title, 'data-type': panel.type, 'data-series': frames.length }, chrome);
};

/** Also of text that is cut at its left. */
function textWidth(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  return range.getBoundingClientRect().width;
}

/** What a reader would complain about, of each panel. */
const measured = () =>
  [...document.querySelectorAll('.drawn')].map((element) => {
    const box = element.getBoundingClientRect();
    const plot = element.querySelector('.u-over, .plot')?.getBoundingClientRect();
    const clipped = (found) => found.scrollWidth > found.clientWidth + 1 || found.scrollHeight > found.clientHeight + 4;
    const names = [...element.querySelectorAll('button[class*="LegendLabel"], li button')];
    const hidden = names.filter((name) => {
      const { bottom, right } = name.getBoundingClientRect();
      return clipped(name) || bottom > box.bottom || right > box.right;
    });
    return {
      ...{ title: element.dataset.title, type: element.dataset.type, series: Number(element.dataset.series) },
      standIn: element.querySelector('[data-stand-in]')?.dataset.standIn,
      empty: element.querySelector('.empty')?.textContent,
      // A fraction of a pixel too few, and its end is an ellipsis.
      titleClipped: [...element.querySelectorAll('h2')].some((title) => textWidth(title) > title.getBoundingClientRect().width),
      labelsClipped: [...element.querySelectorAll('canvas')].flatMap((canvas) => cutLabels.get(canvas) ?? []),
      legendClipped: hidden.map(({ textContent }) => textContent),
      cellsClipped: [...element.querySelectorAll('[role=gridcell], [role=columnheader]')]
        .filter((cell) => textWidth(cell) > cell.clientWidth + 1)
        .map(({ textContent }) => textContent),
      columnsClipped: [...element.querySelectorAll('[role=grid]')].some((grid) => grid.scrollWidth > grid.clientWidth + 1),
      plotRatio: plot && plot.width / box.width,
    };
  });

async function main() {
  const board = await (await fetch(`/boards/${asked.get('board')}.json`)).json();
  const list = await expanded(board);
  const shown = await Promise.all(list.map(async (each) => ({ ...each, frames: await loaded(each) })));
  const bottom = Math.max(...shown.map(({ panel, y }) => y + panel.gridPos.h)) * (CELL + GAP) + 64;
  const root = document.getElementById('root');
  Object.assign(root.style, { position: 'relative', width: `${pageWidth}px`, height: `${bottom}px` });
  document.body.style.background = theme.colors.background.canvas;
  const heading = h(
    'div',
    { style: { font: '500 18px sans-serif', padding: 14, color: theme.colors.text.primary } },
    `${board.title}   `,
    h('small', {}, board.links.map(({ title }) => title).join('  ·  ')),
  );
  const content = [heading, ...shown.map((each, key) => h(Panel, { key, ...each }))];
  createRoot(root).render(h(ThemeContext.Provider, { value: theme }, h(GlobalStyles), ...content));
  if (!(await settled())) window.errors.push('a table is not drawn');
  return { height: bottom, panels: measured(), errors: window.errors };
}

/** Panels measure themselves and draw again, tables after all others. */
async function settled() {
  const isDrawn = (table) => table.dataset.series === '0' || table.querySelector('[role=gridcell]') !== null;
  for (let frame = 0; frame < 1000; frame += 1) {
    await new Promise(requestAnimationFrame);
    if (frame >= 30 && [...document.querySelectorAll('.drawn[data-type=table]')].every(isDrawn)) return true;
  }
  return false;
}

window.settled = settled;

window.drawn = main().catch((error) => ({ failed: String(error?.stack ?? error) }));

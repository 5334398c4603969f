// Building blocks of the boards: selectors for the chosen nodes and GPUs, panels with our defaults, queries.

import * as common from '@grafana/grafana-foundation-sdk/common';
import {
  LegendDisplayMode,
  LegendPlacement,
  SortOrder,
  StackingMode,
  TooltipDisplayMode,
  VisibilityMode,
  VizLegendOptionsBuilder,
  VizTooltipOptionsBuilder,
} from '@grafana/grafana-foundation-sdk/common';
import type { DynamicConfigValue, ValueMap } from '@grafana/grafana-foundation-sdk/dashboard';
import {
  MappingType,
  RowBuilder,
  ThresholdsConfigBuilder,
  ThresholdsMode,
} from '@grafana/grafana-foundation-sdk/dashboard';
import { PanelBuilder as HistogramBuilder } from '@grafana/grafana-foundation-sdk/histogram';
import { DataqueryBuilder, PromQueryFormat } from '@grafana/grafana-foundation-sdk/prometheus';
import { PanelBuilder as StatBuilder } from '@grafana/grafana-foundation-sdk/stat';
import { PanelBuilder as TimelineBuilder } from '@grafana/grafana-foundation-sdk/statetimeline';
import { PanelBuilder as TableBuilder } from '@grafana/grafana-foundation-sdk/table';
import { PanelBuilder as SeriesBuilder } from '@grafana/grafana-foundation-sdk/timeseries';
import type { BoardKey } from './lib/board-uids.ts';
import { CONFIGURATION } from './lib/configuration.ts';
import { type Aggregate, type Sum, textOf } from './lib/expressions.ts';
import { type MetricName, select } from './lib/metrics.ts';
import { type Lead, rowLink, seriesLink } from './links.ts';

export type Panel = StatBuilder | TimelineBuilder | TableBuilder | SeriesBuilder | HistogramBuilder | RowBuilder;

export const DATASOURCE = { type: 'prometheus', uid: '$datasource' };
/** Identifies a container; the name of a pod is unique in its namespace. */
export const WHO = 'namespace, pod, container';
export const WHO_LEGEND = '{{namespace}}/{{pod}} {{container}}';
/** The node without its domain, so that legends fit; `shortNode` adds the label. */
export const NODE_LEGEND = '{{node}}';
export const GPU_LEGEND = `${NODE_LEGEND} GPU {{gpu}}`;
/** Names end at their first dot, and addresses stay. */
const shortNode = (expr: string): string =>
  `label_replace(${expr}, "node", "$1", "instance", "([0-9.]+:?[0-9]*|[^.]+).*")`;

/** A metric of the chosen nodes. */
export const ofTarget = (metric: MetricName): string => select(metric, 'job=~"$job"', 'instance=~"$instance"');
/** A metric that other targets of a Prometheus have, too, of the agents on the chosen nodes. */
export const ofAgents = (metric: MetricName): string =>
  select(metric, 'job=~"$job"', 'instance=~"$instance"', `job="${CONFIGURATION.job}"`);
/** A metric of the chosen GPUs on the chosen nodes. */
export const ofGpus = (metric: MetricName): string =>
  select(metric, 'job=~"$job"', 'instance=~"$instance"', 'gpu=~"$gpu"');
/** GPUs and MIG instances of a kind on the chosen nodes; both have the same metrics. */
const kind = (matcher: string): string =>
  select('cotenant_device_info', 'job=~"$job"', 'instance=~"$instance"', matcher);
/** Physical GPUs, without MIG instances. */
export const GPUS = kind('mig_mode!=""');
/** GPUs that can have grants: without MIG. */
export const GRANTABLE = kind('mig_mode="disabled"');
/** What containers can use: GPUs without MIG, and MIG instances. */
export const USABLE = kind('mig_mode!="enabled"');
/** Restricts an expression to these. */
export const among = (which: string, expr: string): string => `(${expr} and on (job, instance, gpu_uuid) ${which})`;
/** The increase per second of a counter of the chosen GPUs. */
export const rate = (counter: MetricName): string => `rate(${ofGpus(counter)}[$__rate_interval])`;

export const prometheus = (expr: string, legend: string): DataqueryBuilder =>
  new DataqueryBuilder().datasource(DATASOURCE).expr(expr).legendFormat(legend);

/** An expression, its legend, and how its lines look. */
type Query = readonly [expr: string, legend: string, style?: DynamicConfigValue[]];

type Asking = {
  withTarget(target: DataqueryBuilder): unknown;
  overrideByQuery(refId: string, properties: DynamicConfigValue[]): unknown;
};

const refIdOf = (index: number): string => String.fromCharCode(65 + index);

/** The panel with these queries, named A, B, C and so on. */
function withQueries<P extends Asking>(panel: P, queries: readonly Query[], leads: readonly Lead[] = []): P {
  for (const [index, [expr, legend]] of queries.entries()) {
    const shown = legend.includes(NODE_LEGEND) ? shortNode(expr) : expr;
    panel.withTarget(prometheus(shown, legend).refId(refIdOf(index)));
  }
  for (const [index, [expr, legend, style = []]] of queries.entries()) {
    // A sum over all of them leads to none.
    const links = leads
      .filter(({ by }) => legend.includes(`{{${by}}}`))
      .map((lead) => seriesLink(lead, labelsOf(expr)).build());
    const properties = links.length === 0 ? style : [...style, property('links', links)];
    if (properties.length > 0) panel.overrideByQuery(refIdOf(index), [...properties]);
  }
  return panel;
}

/** Labels of the series that an expression gives: those of its aggregation. */
const labelsOf = (expr: string): readonly string[] => /\bby \(([^)]*)\)/.exec(expr)?.[1]?.split(', ') ?? [];

/** One query, of which only the last value counts. */
const withLast = <P extends Asking>(panel: P, expr: string, legend = ''): P => {
  panel.withTarget(prometheus(expr, legend).refId('A').instant());
  return panel;
};

/** The series of an expression that were the largest of the time range: never more than `count`, as `topk` alone would
 * give when their order changes. They are looked for in steps of the rate interval, which no rate leaves a gap between,
 * and which cost a quarter of the panel's own. */
export function top(count: number, expr: string | Aggregate): string {
  const ranking = `topk(${count}, ${largest(textOf(expr))})`;
  if (typeof expr === 'string') return `(${expr}) and ${ranking}`;
  // What is chosen before it is aggregated costs a third.
  return textOf({ ...expr, of: `(${expr.of}) and on (${expr.by}) ${ranking}` });
}
/** In one step. */
const newest = (expr: string): string => `last_over_time((${expr})[$__rate_interval:$__rate_interval] @ end())`;
const largest = (expr: string): string => `max_over_time((${expr})[$__range:$__rate_interval] @ end())`;

/** The same for an aggregation by labels of what is computed from two metrics: `some` wraps the first of them, so that
 * the second is looked up for the largest alone. Half of the work of `top`, or less. */
export function topOfTwo(count: number, by: string, expr: (some: (first: string) => string) => string): string {
  const ranking = `topk(${count}, ${largest(expr((first) => first))})`;
  return expr((first) => `(${first} and on (${by}) ${ranking})`);
}

/** What the series of a sum that `top` leaves out add up to, so that a stack is whole; 0 where it leaves out none. */
export function others(count: number, expr: Sum): string {
  const all = textOf(expr);
  return `sum((${expr.of}) unless on (${expr.by}) topk(${count}, ${largest(all)})) or 0 * sum(${newest(all)})`;
}

const HEAT = CONFIGURATION.clocksThrottled.reasons.join('|');
/** Number of GPUs that heat or power hardware slows now. */
export const slowedByHeat = (...matchers: readonly string[]): string =>
  `count(max by (instance, gpu) (${select('cotenant_device_throttle_reason', ...matchers, `reason=~"${HEAT}"`)} == 1)) or vector(0)`;

/** Values of `slowed`, for a timeline. */
export const SLOWED: ValueMap['options'] = {
  1: { text: 'lowered', color: 'text' },
  2: { text: 'slowed by heat or power', color: 'red' },
};
/** Reasons for which clocks are lowered: 1 for what is usual under load, 2 for heat and power hardware. An idle GPU lowers its
 * clocks, which is no news. `chosen`: matchers. */
export const slowed = (chosen: readonly string[]): string => {
  const each = (matcher: string) =>
    `max by (job, instance, gpu, gpu_uuid, reason) (${select('cotenant_device_throttle_reason', ...chosen, matcher)}) == 1`;
  return `${each(`reason!~"idle|${HEAT}"`)} or 2 * (${each(`reason=~"${HEAT}"`)})`;
};

/** Begins a part of a board; with `repeat` there is one for each value of this variable. */
export const row = (title: string, repeat?: string): RowBuilder =>
  repeat === undefined ? new RowBuilder(title) : new RowBuilder(title).repeat(repeat);

export type Step = readonly [value: number | null, color: string];
/** One large value. */
type Answer = {
  readonly title: string;
  /** What it is, what is normal, and what to do if it is not. */
  readonly is: string;
  readonly expr: string;
  readonly unit?: string;
  readonly steps?: readonly Step[];
  readonly texts?: ValueMap['options'];
  /** Shows the name of the series with this legend instead of the value. */
  readonly named?: string;
};

export const RED_FROM_ONE: readonly Step[] = [
  [null, 'green'],
  [1, 'red'],
];
export const ORANGE_FROM_ONE: readonly Step[] = [
  [null, 'green'],
  [1, 'orange'],
];

/** The top of a board: four values beside each other, so that their titles fit at 1280 px. */
export const answers = (...list: readonly Answer[]): readonly Panel[] =>
  list.map(({ title, is, expr, unit = 'none', steps: list_ = [[null, 'text']], texts, named }) => {
    const panel = new StatBuilder()
      .title(title)
      .description(is)
      .datasource(DATASOURCE)
      .span(list.length % 4 === 0 ? 6 : 8)
      .height(3)
      .unit(unit)
      .thresholds(steps(...list_))
      .graphMode(common.BigValueGraphMode.None)
      .reduceOptions(new common.ReduceDataOptionsBuilder().calcs(['lastNotNull']));
    if (unit === 'none') panel.decimals(0);
    if (texts) panel.mappings([mapping(texts)]);
    if (named !== undefined) panel.textMode(common.BigValueTextMode.Name);
    return withLast(panel, expr, named ?? '');
  });

type Look = {
  readonly span: number;
  readonly unit: string;
  /** Absent: lines from 0 on. */
  readonly as?: 'stack' | 'bars' | 'any range';
  readonly links?: readonly Lead[];
};

export function graph(title: string, description: string, look: Look, ...queries: readonly Query[]): SeriesBuilder {
  const panel = new SeriesBuilder()
    .title(title)
    .description(description)
    .datasource(DATASOURCE)
    .span(look.span)
    .height(9)
    .legend(
      new VizLegendOptionsBuilder()
        .showLegend(true)
        .displayMode(LegendDisplayMode.List)
        .placement(LegendPlacement.Bottom)
        .calcs([]),
    )
    // An hour in minutes: more points cost as much more, and hardly show more.
    .maxDataPoints(60)
    .tooltip(new VizTooltipOptionsBuilder().mode(TooltipDisplayMode.Multi).sort(SortOrder.Descending))
    .unit(look.unit);
  if (look.as !== 'any range') panel.min(0);
  // Nothing at all is a line at the bottom of 0 to 1, and not of 0 to 100.
  if (look.unit === 'short' || look.unit === 'percentunit') panel.axisSoftMax(1);
  if (look.as === 'bars') panel.drawStyle(common.GraphDrawStyle.Bars);
  // Bars before each other would hide the smaller ones, or look like a sum.
  if (look.as === 'bars' || look.as === 'stack')
    panel
      .fillOpacity(look.as === 'bars' ? 80 : 30)
      .stacking(new common.StackingConfigBuilder().mode(StackingMode.Normal).group('A'));
  return withQueries(panel, queries, look.links);
}

/** A state timeline with a row per series, and texts for its values. */
export function timeline(
  title: string,
  description: string,
  texts: ValueMap['options'],
  ...queries: readonly Query[]
): TimelineBuilder {
  const panel = new TimelineBuilder()
    .title(title)
    .description(description)
    .datasource(DATASOURCE)
    .span(12)
    .height(9)
    .showValue(VisibilityMode.Never)
    .mappings([mapping(texts)]);
  return withQueries(panel, queries);
}

/** The number of series per value, with a bar for each integer. */
export function histogram(title: string, description: string, expr: string): HistogramBuilder {
  const panel = new HistogramBuilder()
    .title(title)
    .description(description)
    .datasource(DATASOURCE)
    .span(12)
    .height(9)
    .unit('none')
    .bucketSize(1)
    .combine(true);
  return withLast(panel, expr);
}

/** A dashed line that is not part of the stack. */
export function line(name: string): DynamicConfigValue[] {
  return [
    color(name),
    property('custom.stacking', { mode: StackingMode.None, group: 'line' }),
    property('custom.fillOpacity', 0),
    property('custom.lineStyle', { fill: 'dash', dash: [8, 6] }),
  ];
}

export const color = (fixedColor: string): DynamicConfigValue => property('color', { mode: 'fixed', fixedColor });

export const property = (id: string, value: unknown): DynamicConfigValue => ({ id, value });

/** What a stack leaves out, without a line: where it is nothing, a line would look like a sum. */
export const REST: DynamicConfigValue[] = [color('text'), property('custom.lineWidth', 0)];

export const mapping = (options: ValueMap['options']): ValueMap => ({ type: MappingType.ValueToText, options });

/** For a column of a table that has 1 where something answers. */
export const UP: DynamicConfigValue[] = [
  property('unit', 'none'),
  property('mappings', [mapping({ 0: { text: 'down', color: 'red' }, 1: { text: 'up' } })]),
  property('custom.cellOptions', { type: 'color-text' }),
];

export function steps(...list: readonly Step[]): ThresholdsConfigBuilder {
  return new ThresholdsConfigBuilder()
    .mode(ThresholdsMode.Absolute)
    .steps(list.map(([value, name]) => ({ value, color: name })));
}

/** Without a title: its labels are shown, its value is not. */
type Column = readonly [title: string, expr: string, unit?: string];

/** The column that leads to a board. */
const COLUMN_OF: Partial<Record<BoardKey, string>> = { node: 'Node', namespace: 'Namespace', container: 'Pod' };
/** Has the whole name of the node, for links; the column that is shown has it without its domain. */
const HIDDEN = 'Hostname';

/** In pixels, at least: the name of a pod of a Deployment, and what tells nodes and namespaces apart. */
const WIDTHS: Readonly<Record<string, number>> = { Pod: 285, Namespace: 165, Node: 270, GPU: 60 };

/** One row per set of labels: Grafana merges instant values with the same labels. */
export function table(
  title: string,
  description: string,
  columns: readonly Column[],
  named: Readonly<Record<string, string>>,
  ...leads: readonly Lead[]
): TableBuilder {
  const { instance: node, ...rest } = named;
  const labels = node === undefined ? named : { node, ...rest, instance: HIDDEN };
  const panel = new TableBuilder()
    .title(title)
    .description(description)
    .datasource(DATASOURCE)
    .span(24)
    .height(9)
    .unit('short')
    .noValue('-')
    .minWidth(60);
  for (const [index, [, expr]] of columns.entries())
    panel.withTarget(
      prometheus(node === undefined ? expr : shortNode(expr), '')
        .refId(refIdOf(index))
        .instant()
        .format(PromQueryFormat.Table),
    );
  for (const [name, , unit] of columns) if (unit !== undefined) panel.overrideByName(name, [property('unit', unit)]);
  // Without a unit of their own, numbers such as an index or a PID would get that of the values.
  for (const title of Object.values(labels)) {
    const width = WIDTHS[title];
    // The icon of a filter would take the place of short titles.
    const wide = width === undefined ? [] : [property('custom.width', width), property('custom.filterable', true)];
    panel.overrideByName(title, [property('unit', 'string'), ...wide]);
  }
  // In the words of Grafana before 12.2 and since.
  const hideFrom = { viz: true, legend: true, tooltip: true };
  panel.overrideByName(HIDDEN, [property('custom.hidden', true), property('custom.hideFrom', hideFrom)]);
  for (const lead of leads)
    panel.overrideByName(COLUMN_OF[lead.board] ?? '', [property('links', [rowLink(lead, labels).build()])]);
  const names = columns.map(([name], index) => [`Value #${refIdOf(index)}`, name] as const);
  const hidden = names.filter(([, name]) => name === '').map(([value]) => [value, true]);
  return panel.withTransformation({ id: 'merge', options: {} }).withTransformation({
    id: 'organize',
    options: {
      excludeByName: { Time: true, ...Object.fromEntries(hidden) },
      indexByName: Object.fromEntries(Object.keys(labels).map((name, index) => [name, index])),
      renameByName: { ...Object.fromEntries(names.filter(([, name]) => name !== '')), ...labels },
    },
  });
}

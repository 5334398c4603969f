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
import { MappingType, ThresholdsConfigBuilder, ThresholdsMode } from '@grafana/grafana-foundation-sdk/dashboard';
import { PanelBuilder as HistogramBuilder } from '@grafana/grafana-foundation-sdk/histogram';
import { DataqueryBuilder, PromQueryFormat } from '@grafana/grafana-foundation-sdk/prometheus';
import { PanelBuilder as StatBuilder } from '@grafana/grafana-foundation-sdk/stat';
import { PanelBuilder as TimelineBuilder } from '@grafana/grafana-foundation-sdk/statetimeline';
import { PanelBuilder as TableBuilder } from '@grafana/grafana-foundation-sdk/table';
import { PanelBuilder as SeriesBuilder } from '@grafana/grafana-foundation-sdk/timeseries';
import { type MetricName, select } from './lib/metrics.ts';

export type Panel = StatBuilder | TimelineBuilder | TableBuilder | SeriesBuilder | HistogramBuilder;

export const DATASOURCE = { type: 'prometheus', uid: '$datasource' };
/** Identifies a container; the name of a pod is unique in its namespace. */
export const WHO = 'namespace, pod, container';
export const WHO_LEGEND = '{{namespace}}/{{pod}} {{container}}';
export const GPU_LEGEND = '{{instance}} GPU {{gpu}}';

/** A metric of the chosen nodes. */
export const ofTarget = (metric: MetricName): string => select(metric, 'job=~"$job"', 'instance=~"$instance"');
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

export function prometheus(expr: string, legend: string): DataqueryBuilder {
  return new DataqueryBuilder().datasource(DATASOURCE).expr(expr).legendFormat(legend);
}

export function target(refId: string, expr: string, legend: string): DataqueryBuilder {
  return prometheus(expr, legend).refId(refId);
}

export function stat(title: string, description: string): StatBuilder {
  return new StatBuilder()
    .title(title)
    .description(description)
    .datasource(DATASOURCE)
    .span(8)
    .height(4)
    .unit('none')
    .graphMode(common.BigValueGraphMode.None)
    .reduceOptions(new common.ReduceDataOptionsBuilder().calcs(['lastNotNull']));
}

export function series(title: string, description: string, span: number): SeriesBuilder {
  return new SeriesBuilder()
    .title(title)
    .description(description)
    .datasource(DATASOURCE)
    .span(span)
    .height(8)
    .legend(
      new VizLegendOptionsBuilder()
        .showLegend(true)
        .displayMode(LegendDisplayMode.Table)
        .placement(LegendPlacement.Right)
        .calcs(['lastNotNull', 'max']),
    )
    .tooltip(new VizTooltipOptionsBuilder().mode(TooltipDisplayMode.Multi).sort(SortOrder.Descending));
}

/** A state timeline with a row per series, and texts for its values. */
export function timeline(title: string, description: string, texts: ValueMap['options']): TimelineBuilder {
  return new TimelineBuilder()
    .title(title)
    .description(description)
    .datasource(DATASOURCE)
    .span(12)
    .height(8)
    .showValue(VisibilityMode.Never)
    .mappings([mapping(texts)]);
}

/** The number of series per value, with a bar for each integer. */
export function histogram(title: string, description: string): HistogramBuilder {
  return new HistogramBuilder()
    .title(title)
    .description(description)
    .datasource(DATASOURCE)
    .span(12)
    .height(8)
    .unit('none')
    .bucketSize(1)
    .combine(true);
}

export function stacked(panel: SeriesBuilder): SeriesBuilder {
  return panel.min(0).fillOpacity(30).stacking(new common.StackingConfigBuilder().mode(StackingMode.Normal).group('A'));
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

export function color(fixedColor: string): DynamicConfigValue {
  return property('color', { mode: 'fixed', fixedColor });
}

export function property(id: string, value: unknown): DynamicConfigValue {
  return { id, value };
}

export function mapping(options: ValueMap['options']): ValueMap {
  return { type: MappingType.ValueToText, options };
}

export function steps(...list: readonly (readonly [value: number | null, color: string])[]): ThresholdsConfigBuilder {
  return new ThresholdsConfigBuilder()
    .mode(ThresholdsMode.Absolute)
    .steps(list.map(([value, name]) => ({ value, color: name })));
}

/** One row per set of labels: Grafana merges instant values with the same labels. */
export function table(
  title: string,
  description: string,
  columns: readonly { readonly title: string; readonly expr: string; readonly unit?: string }[],
  labels: Readonly<Record<string, string>>,
): TableBuilder {
  const refIds = columns.map((_, index) => String.fromCharCode(65 + index));
  const built = new TableBuilder()
    .title(title)
    .description(description)
    .datasource(DATASOURCE)
    .span(24)
    .height(9)
    .unit('short')
    .noValue('-')
    .filterable(true);
  for (const [index, { expr }] of columns.entries())
    built.withTarget(
      target(refIds[index] ?? '', expr, '')
        .instant()
        .format(PromQueryFormat.Table),
    );
  for (const { title: name, unit } of columns) {
    if (unit !== undefined) built.overrideByName(name, [property('unit', unit)]);
  }
  const values = Object.fromEntries(columns.map(({ title: name }, index) => [`Value #${refIds[index]}`, name]));
  return built.withTransformation({ id: 'merge', options: {} }).withTransformation({
    id: 'organize',
    options: {
      excludeByName: { Time: true },
      indexByName: Object.fromEntries(Object.keys(labels).map((name, index) => [name, index])),
      renameByName: { ...values, ...labels },
    },
  });
}

// A board around its panels: variables, marks, and what all of ours have in common. Pure.
import {
  AnnotationQueryBuilder,
  type Dashboard,
  DashboardBuilder,
  DashboardCursorSync,
  DatasourceVariableBuilder,
  QueryVariableBuilder,
  VariableRefresh,
  VariableSort,
} from '@grafana/grafana-foundation-sdk/dashboard';
import { DATASOURCE, type Panel, prometheus } from './builders.ts';
import { select } from './lib/metrics.ts';

// Of Grafana 10.3. A newer Grafana brings a board forward by itself, an older one cannot take it back.
const SCHEMA_VERSION = 39;

export type Plan = {
  readonly title: string;
  readonly uid: string;
  readonly description: string;
  /** All nodes may be chosen at once. */
  readonly allNodes: boolean;
  /** Behind data source, job and instance. */
  readonly variables?: readonly QueryVariableBuilder[];
  readonly marks?: readonly AnnotationQueryBuilder[];
  readonly panels: readonly Panel[];
};

/** In Grafana's classic JSON model, which every way of provisioning takes. */
export function boardOf(plan: Plan): Dashboard {
  const instance = variable('instance', select('cotenant_up', 'job=~"$job"'));
  const board = new DashboardBuilder(`Cotenant / ${plan.title}`)
    .uid(plan.uid)
    .description(plan.description)
    .tags(['cotenant', 'gpu'])
    .readonly()
    .refresh('30s')
    .time({ from: 'now-1h', to: 'now' })
    .tooltip(DashboardCursorSync.Crosshair)
    .withVariable(new DatasourceVariableBuilder('datasource').label('Data source').type('prometheus'))
    .withVariable(variable('job', select('cotenant_up')).includeAll(true))
    .withVariable(plan.allNodes ? instance.includeAll(true) : instance);
  for (const each of plan.variables ?? []) board.withVariable(each);
  for (const each of plan.marks ?? []) board.annotation(each);
  for (const panel of plan.panels) board.withPanel(panel);
  const built = board.build();
  // Numbered by place, so that links to a panel live as long as the order does.
  const numbered = (built.panels ?? []).map((panel, index) => ({ ...panel, id: index + 1 }));
  return { ...built, schemaVersion: SCHEMA_VERSION, panels: numbered };
}

/** A red mark at the time of each stop, which its series carries as its value. Counters would miss a container's first stop. */
export function stopMarks(expr: string): AnnotationQueryBuilder {
  return new AnnotationQueryBuilder()
    .name('Stops')
    .datasource(DATASOURCE)
    .enable(true)
    .iconColor('red')
    .expr(expr)
    .target(prometheus(expr, ''))
    .useValueForTime(true)
    .titleFormat('{{namespace}}/{{pod}} {{container}} stopped')
    .textFormat('{{reason}}, {{action}}');
}

/** A variable over the values of the label of its name, read again when the time range changes. */
export function variable(label: string, selector: string): QueryVariableBuilder {
  return new QueryVariableBuilder(label)
    .label(label.replace(/^./, (first) => first.toUpperCase()))
    .datasource(DATASOURCE)
    .query(`label_values(${selector}, ${label})`)
    .refresh(VariableRefresh.OnTimeRangeChanged)
    .sort(VariableSort.NaturalAsc)
    .multi(true)
    .allValue('.+');
}

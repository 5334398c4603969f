// Builds a dashboard from its panels: variables, annotations, and what all dashboards have in common. Pure.
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

// Of Grafana 10.3. Newer versions migrate it; older ones cannot read newer schemas.
const SCHEMA_VERSION = 39;

export type Plan = {
  readonly title: string;
  readonly uid: string;
  readonly description: string;
  /** Whether all nodes can be chosen at once. */
  readonly allNodes: boolean;
  /** After data source, job and instance. */
  readonly variables?: readonly QueryVariableBuilder[];
  readonly annotations?: readonly AnnotationQueryBuilder[];
  readonly panels: readonly Panel[];
};

/** In Grafana's classic JSON model, which all ways of provisioning accept. */
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
  for (const each of plan.annotations ?? []) board.annotation(each);
  for (const panel of plan.panels) board.withPanel(panel);
  const built = board.build();
  // Numbered by position, so that links to a panel stay valid while the order does.
  const numbered = (built.panels ?? []).map((panel, index) => ({ ...panel, id: index + 1 }));
  return { ...built, schemaVersion: SCHEMA_VERSION, panels: numbered };
}

/** A red line at the time of each stop, which is the value of the series. Counters would miss a container's first
 * stop. */
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

/** A variable with the values of the label of its name, queried again when the time range changes. */
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

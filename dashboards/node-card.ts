// The board "Node and card": who uses the GPUs of a node, within which limits, and what was done about those who went past.
// Owns its variables, layout and marks; the panels are in panels.ts, beside their queries.
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
import { CONFIGURATION, type Configuration } from './configuration.ts';
import { type MetricName, select } from './metrics.ts';
import { DATASOURCE, ofCards, ofTarget, panels, prometheus } from './panels.ts';

// Of Grafana 10.3. A newer Grafana brings a board forward by itself, an older one cannot take it back.
const SCHEMA_VERSION = 39;

/** The board in Grafana's classic JSON model, which every way of provisioning takes. */
export function nodeCard(configuration: Configuration = CONFIGURATION): Dashboard {
  const board = new DashboardBuilder('Cotenant / Node and card')
    .uid('cotenant-node-card')
    .description('GPUs of a node: who uses them, within which limits, and what was done about those who went past.')
    .tags(['cotenant', 'gpu'])
    .readonly()
    .refresh('30s')
    .time({ from: 'now-1h', to: 'now' })
    .tooltip(DashboardCursorSync.Crosshair)
    .withVariable(new DatasourceVariableBuilder('datasource').label('Data source').type('prometheus'))
    .withVariable(variable('job', select('cotenant_up')).includeAll(true))
    // Without "All": containers of a hundred nodes in one stack tell nothing. Several nodes can be chosen.
    .withVariable(variable('instance', select('cotenant_up', 'job=~"$job"')))
    .withVariable(variable('gpu', ofTarget('cotenant_device_info')).label('GPU').includeAll(true))
    .annotation(stops());
  for (const panel of panels(configuration)) board.withPanel(panel);
  const built = board.build();
  // Numbered by place, so that links to a panel live as long as the order does.
  const numbered = (built.panels ?? []).map((panel, index) => ({ ...panel, id: index + 1 }));
  return { ...built, schemaVersion: SCHEMA_VERSION, panels: numbered };
}

/** A variable over the values of the label of its name, read again when the time range changes. */
function variable(label: string, selector: string): QueryVariableBuilder {
  return new QueryVariableBuilder(label)
    .label(label.replace(/^./, (first) => first.toUpperCase()))
    .datasource(DATASOURCE)
    .query(`label_values(${selector}, ${label})`)
    .refresh(VariableRefresh.OnTimeRangeChanged)
    .sort(VariableSort.NaturalAsc)
    .multi(true)
    .allValue('.+');
}

/** A mark at the time of each stop, which the series carries as its value. Counters would miss a container's first stop. */
function stops(): AnnotationQueryBuilder {
  const lastKill: MetricName = 'cotenant_container_last_kill_timestamp_seconds';
  const expr = `${ofTarget(lastKill)} * 1000 and on (job, instance, gpu_uuid) ${ofCards('cotenant_device_info')}`;
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

// The board "Node and card": who uses the GPUs of a node, within which limits, and what was done about those who went past.
// Owns its variables, layout and marks; the panels are in panels.ts, beside their queries.
import { AnnotationQueryBuilder, type Dashboard } from '@grafana/grafana-foundation-sdk/dashboard';
import { boardOf, variable } from './board.ts';
import { DATASOURCE, ofCards, ofTarget, prometheus } from './builders.ts';
import { CONFIGURATION, type Configuration } from './configuration.ts';
import type { MetricName } from './metrics.ts';
import { panels } from './panels.ts';

export function nodeCard(configuration: Configuration = CONFIGURATION): Dashboard {
  return boardOf({
    title: 'Node and card',
    uid: 'cotenant-node-card',
    description: 'GPUs of a node: who uses them, within which limits, and what was done about those who went past.',
    // Containers of a hundred nodes in one stack tell nothing. Several nodes can be chosen.
    allNodes: false,
    variables: [variable('gpu', ofTarget('cotenant_device_info')).label('GPU').includeAll(true)],
    marks: [stops()],
    panels: panels(configuration),
  });
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

// The board "Node and GPU": use of the GPUs of a node by container, limits, hardware, and stops. Its panels are in panels.ts.
import type { AnnotationQueryBuilder, Dashboard } from '@grafana/grafana-foundation-sdk/dashboard';
import { boardOf, stopMarks, variable } from './board.ts';
import { ofGpus, ofTarget } from './builders.ts';
import { CONFIGURATION, type Configuration } from './lib/configuration.ts';
import type { MetricName } from './lib/metrics.ts';
import { panels } from './panels.ts';

export function nodeGpu(configuration: Configuration = CONFIGURATION): Dashboard {
  return boardOf({
    title: 'Node and GPU',
    uid: 'cotenant-node-gpu',
    description: 'GPUs of a node: use by container, limits, hardware, and stops of containers over their limits.',
    // The containers of a hundred nodes in one stack would be unreadable. Several nodes can be chosen.
    allNodes: false,
    variables: [variable('gpu', ofTarget('cotenant_device_info')).label('GPU').includeAll(true)],
    annotations: [stops()],
    panels: panels(configuration),
  });
}

function stops(): AnnotationQueryBuilder {
  const lastKill: MetricName = 'cotenant_container_last_kill_timestamp_seconds';
  return stopMarks(`${ofTarget(lastKill)} * 1000 and on (job, instance, gpu_uuid) ${ofGpus('cotenant_device_info')}`);
}

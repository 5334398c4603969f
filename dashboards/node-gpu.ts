// The board "Node and GPU": use of the GPUs of a node by container, limits, hardware, and stops. Its panels are in
// panels.ts.
import { boardOf, stopMarks, variable } from './board.ts';
import { ofGpus, ofTarget } from './builders.ts';
import { PANELS } from './panels.ts';

const STOPS = `${ofTarget('cotenant_container_last_kill_timestamp_seconds')} * 1000`;

export const nodeGpu = boardOf({
  title: 'Node and GPU',
  uid: 'cotenant-node-gpu',
  description: 'GPUs of a node: use by container, limits, hardware, and stops of containers over their limits.',
  // The containers of a hundred nodes in one stack would be unreadable. Several nodes can be chosen.
  allNodes: false,
  variables: [variable('gpu', ofTarget('cotenant_device_info')).label('GPU').includeAll(true)],
  annotations: [stopMarks(`${STOPS} and on (job, instance, gpu_uuid) ${ofGpus('cotenant_device_info')}`)],
  panels: PANELS,
});

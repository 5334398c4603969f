// The board "Node and GPU": use of the GPUs of a node by container, limits, hardware, and stops. Its panels are in
// panels.ts.
import { boardOf, stopMarks, variable } from './board.ts';
import { ofGpus, ofTarget } from './builders.ts';
import { select } from './lib/metrics.ts';
import { PANELS } from './panels.ts';

const STOPS = `${ofTarget('cotenant_container_last_kill_timestamp_seconds')} * 1000`;

export const nodeGpu = boardOf({
  board: 'node',
  description:
    'GPUs of a node: their containers, use, faults and hardware, and stops of containers over their limits. Choose one node to see each of its GPUs by itself.',
  variables: [
    // A GPU that MIG divides has no use of its own: its instances have.
    variable(
      'gpu',
      select('cotenant_device_info', 'job=~"$job"', 'instance=~"$instance"', 'mig_mode!="enabled"'),
    ).label('GPU'),
  ],
  annotations: [stopMarks(`${STOPS} and on (job, instance, gpu_uuid) ${ofGpus('cotenant_device_info')}`)],
  panels: PANELS,
});

// Alerts about GPUs: missing or unhealthy ones, failed isolation checks, overcommitted, unattributed and foreign
// memory.
import { usableMemory } from '../lib/expressions.ts';
import { METRICS, select } from '../lib/metrics.ts';
import { type Alert, alert, GPU, SEEING } from './rule.ts';

const TOTAL = select('cotenant_device_memory_total_bytes');
/** GPUs that MIG does not divide; instances cannot be granted in parts. */
const ON_GRANTABLE = `on (job, instance, gpu_uuid) ${select('cotenant_device_info', 'mig_mode="disabled"')}`;
export const USABLE = usableMemory(select);
const GRANTABLE = `(${USABLE} and ${ON_GRANTABLE})`;
/** Of each GPU, the part of its memory that is not granted. */
const FREE = `1 - ${select('cotenant_device_memory_allocated_bytes')} / ${GRANTABLE}`;

export const GPU_ALERTS: readonly Alert[] = [
  // Physical GPUs: a change of MIG instances removes none.
  alert('CotenantGpuMissing', 'critical', 'node', ({ gpuMissing: { within, step, lasts } }) => {
    const count = `count without (${METRICS.cotenant_device_info.labels.join(', ')}) (${select('cotenant_device_info', 'mig_mode!=""')})`;
    return {
      expr: `(max_over_time((${count})[${within}:${step}]) - ${count} > 0) and ${SEEING}`,
      lasts,
      summary: 'A GPU of {{ $labels.instance }} is missing.',
      description: `The driver lists {{ $value }} GPUs fewer than within the last ${within}.`,
    };
  }),
  alert('CotenantGpuUnhealthy', 'critical', 'gpu', ({ gpuUnhealthy }) => ({
    expr: `${select('cotenant_device_unhealthy_reason')} == 1 and ${SEEING}`,
    lasts: gpuUnhealthy.lasts,
    summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} is unhealthy: {{ $labels.reason }}.',
    description: `${GPU} is lost or needs a reset ({{ $labels.reason }}). Programs on it fail. It is cordoned until it is reset.`,
  })),
  // By the isolation check, which runs a program that tries to exceed a grant.
  alert('CotenantIsolationFailed', 'critical', 'gpu', ({ isolationFailed }) => ({
    expr: `${select('cotenant_device_fence_holds')} == 0 and ${SEEING}`,
    lasts: isolationFailed.lasts,
    summary: 'The isolation check failed on GPU {{ $labels.gpu }} of {{ $labels.instance }}.',
    description: `The {{ $labels.fence }} did not refuse an allocation beyond a grant on ${GPU}. If the other isolation mechanism works, new grants use that one; otherwise the GPU gets no new grants until one works. Running containers keep what they started with, and the agent stops those that exceed their grant.`,
  })),
  // Against the memory that can be granted.
  alert('CotenantMemoryOvercommitted', 'warning', 'gpu', ({ overcommitted }) => ({
    expr: `(${select('cotenant_device_memory_allocated_bytes')} / ${USABLE} > 1) and ${SEEING}`,
    lasts: overcommitted.lasts,
    summary: 'Memory of GPU {{ $labels.gpu }} of {{ $labels.instance }} is overcommitted.',
    description: `The grants on ${GPU} add up to {{ $value | humanizePercentage }} of its memory: not all containers can use their grant at the same time.`,
  })),
  alert('CotenantMemoryNearlyGranted', 'info', 'cluster', ({ nearlyGranted: { ratio, lasts } }) => ({
    expr: `sum by (job) (${select('cotenant_device_memory_allocated_bytes')} and ${ON_GRANTABLE}) / sum by (job) (${GRANTABLE}) > ${ratio}`,
    lasts,
    summary: '{{ $value | humanizePercentage }} of the GPU memory of {{ $labels.job }} are granted.',
    description: 'The cluster is nearly full: the next pods with a GPU share may wait.',
  })),
  // What is free adds up to more than one GPU, and yet no large pod fits.
  alert('CotenantMemoryFragmented', 'info', 'node', ({ fragmented: { ratio, lasts } }) => ({
    expr: `max without (gpu, gpu_uuid) (${FREE}) < ${ratio} and sum without (gpu, gpu_uuid) (${FREE}) > 1`,
    lasts,
    summary: 'Free GPU memory of {{ $labels.instance }} is fragmented.',
    description:
      'More than the memory of a whole GPU is free, but at most {{ $value | humanizePercentage }} of any single one.',
  })),
  // Only where containers miss it: beside all grants the GPU has less left. Managed memory is in the grants already.
  alert('CotenantUnattributedMemory', 'warning', 'gpu', ({ unattributed: { ratio, lasts } }) => {
    const found = select('cotenant_device_memory_unattributed_bytes');
    const managed = `sum without (namespace, pod, container, mode, kind) (${select('cotenant_container_memory_ledger_bytes', 'kind="managed"')})`;
    const unknown = `(${found} - ${managed} or ${found})`;
    return {
      expr: `(${unknown} / ${TOTAL} > ${ratio} and ${unknown} + ${select('cotenant_device_memory_allocated_bytes')} > ${USABLE}) and ${SEEING}`,
      lasts,
      summary:
        'Containers cannot use all their grants on GPU {{ $labels.gpu }} of {{ $labels.instance }}: others use its memory.',
      description: `{{ $value | humanizePercentage }} of ${GPU} is used by processes of the host, by processes that the agent cannot see, or was left in the driver. The grants need it, too.`,
    };
  }),
  alert('CotenantForeignUse', 'warning', 'gpu', ({ foreign: { bytes, lasts } }) => ({
    expr: `(${select('cotenant_foreign_memory_used_bytes')} > ${bytes}) and ${SEEING}`,
    lasts,
    summary: 'A container without a grant uses a GPU of {{ $labels.instance }}.',
    description: `{{ $labels.namespace }}/{{ $labels.pod }} {{ $labels.container }} uses {{ $value | humanize1024 }}B of ${GPU}. Containers with a grant may get less than they were granted.`,
  })),
];

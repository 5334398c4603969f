// Alerts about GPUs: lost ones, and memory that is promised twice or that nobody answers for.
import type { Configuration } from '../lib/configuration.ts';
import { METRICS, select } from '../lib/metrics.ts';
import { type AlertRule, GPU, rule, SEEING } from './rule.ts';

const TOTAL = select('cotenant_device_memory_total_bytes');

export function gpuAlerts(configuration: Configuration): readonly AlertRule[] {
  return [
    missing(configuration),
    unhealthy(configuration),
    fenceFails(configuration),
    overcommitted(configuration),
    unattributed(configuration),
    foreign(configuration),
  ];
}

/** GPUs as they are built in: another layout of one that MIG divides takes no GPU away. */
function missing(configuration: Configuration): AlertRule {
  const { within, step, lasts } = configuration.deviceMissing;
  const count = `count without (${METRICS.cotenant_device_info.labels.join(', ')}) (${select('cotenant_device_info', 'mig_mode!=""')})`;
  return rule(configuration, 'CotenantDeviceMissing', 'critical', {
    expr: `(max_over_time((${count})[${within}:${step}]) - ${count} > 0) and ${SEEING}`,
    lasts,
    summary: 'A GPU of {{ $labels.instance }} is gone.',
    description: `{{ $value }} fewer than within the last ${within}: the driver does not list them any more.`,
  });
}

function unhealthy(configuration: Configuration): AlertRule {
  return rule(configuration, 'CotenantDeviceUnhealthy', 'critical', {
    expr: `${select('cotenant_device_unhealthy_reason')} == 1 and ${SEEING}`,
    lasts: configuration.deviceUnhealthy.lasts,
    summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} is not healthy: {{ $labels.reason }}.',
    description: `${GPU} fell off the bus or wants a reset: by the driver's word, or after an Xid that says so ({{ $labels.reason }}). What runs on it fails or will; nothing new is placed there until it was reset.`,
  });
}

/** By the canary: not who uses the GPU, but whoever would. */
function fenceFails(configuration: Configuration): AlertRule {
  return rule(configuration, 'CotenantFenceFails', 'critical', {
    expr: `${select('cotenant_device_fence_holds')} == 0 and ${SEEING}`,
    lasts: configuration.fenceFails.lasts,
    summary: 'Limits do not hold on GPU {{ $labels.gpu }} of {{ $labels.instance }}.',
    description: `A request beyond a grant was not refused by the {{ $labels.fence }} on ${GPU}. Where another fence holds there, grants go on behind that one; else nothing is granted there until one holds. What runs there is held by what it was started with, and by the agent.`,
  });
}

/** Against what grants are made of. Some drivers do not tell apart what they keep. */
function overcommitted(configuration: Configuration): AlertRule {
  const usable = `(${TOTAL} - ${select('cotenant_device_memory_reserved_bytes')} or ${TOTAL})`;
  return rule(configuration, 'CotenantMemoryOvercommitted', 'warning', {
    expr: `(${select('cotenant_device_memory_allocated_bytes')} / ${usable} > 1) and ${SEEING}`,
    lasts: configuration.overcommitted.lasts,
    summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} is promised twice.',
    description: `Grants on ${GPU} sum to {{ $value | humanizePercentage }} of its memory: some of them cannot be filled.`,
  });
}

function unattributed(configuration: Configuration): AlertRule {
  const { ratio, lasts } = configuration.unattributed;
  return rule(configuration, 'CotenantUnattributedMemory', 'warning', {
    expr: `(${select('cotenant_device_memory_unattributed_bytes')} / ${TOTAL} > ${ratio}) and ${SEEING}`,
    lasts,
    summary: 'Memory of GPU {{ $labels.gpu }} of {{ $labels.instance }} is used by nobody that is known.',
    description: `{{ $value | humanizePercentage }} of ${GPU}: managed memory, processes of the host, or processes out of sight.`,
  });
}

function foreign(configuration: Configuration): AlertRule {
  const { bytes, lasts } = configuration.foreign;
  return rule(configuration, 'CotenantForeignUse', 'warning', {
    expr: `(${select('cotenant_foreign_memory_used_bytes')} > ${bytes}) and ${SEEING}`,
    lasts,
    summary: 'A container without a grant uses a GPU of {{ $labels.instance }}.',
    description: `{{ $labels.namespace }}/{{ $labels.pod }} {{ $labels.container }} holds {{ $value | humanize1024 }}B of ${GPU}. It takes what others were granted.`,
  });
}

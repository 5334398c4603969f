// Alerts about faults of GPUs: Xids, memory errors, throttled clocks.
import { CONTAINED_XIDS, RESETTING_XIDS } from '../../src/agent/counters/xid-counts.ts';
import type { Configuration } from '../lib/configuration.ts';
import { select } from '../lib/metrics.ts';
import { type AlertRule, GPU, rule, SEEING } from './rule.ts';

export function healthAlerts(configuration: Configuration): readonly AlertRule[] {
  return [
    xid(configuration, 'CotenantXidCritical', 'critical', RESETTING_XIDS, {
      summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} needs a reset: Xid {{ $labels.xid }}.',
      description: `The driver raised Xid {{ $labels.xid }} on ${GPU} {{ $value | humanizeDuration }} ago. All containers on the GPU are affected.`,
    }),
    xid(configuration, 'CotenantXidContained', 'warning', CONTAINED_XIDS, {
      summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} has a contained memory error: Xid {{ $labels.xid }}.',
      description: `The driver raised Xid {{ $labels.xid }} on ${GPU} {{ $value | humanizeDuration }} ago. At most one process was affected.`,
    }),
    uncorrected(configuration),
    remapFailed(configuration),
    remapPending(configuration),
    throttled(configuration),
  ];
}

/** By its time: increase() of a counter misses the first one. */
function xid(
  configuration: Configuration,
  alert: string,
  severity: 'critical' | 'warning',
  codes: readonly number[],
  texts: { summary: string; description: string },
): AlertRule {
  const { withinSeconds } = configuration.xid;
  const last = select('cotenant_device_xid_last_timestamp_seconds', `xid=~"${codes.join('|')}"`);
  const expr = `time() - max_over_time(${last}[${withinSeconds}s]) < ${withinSeconds}`;
  return rule(configuration, alert, severity, { expr, ...texts });
}

function uncorrected(configuration: Configuration): AlertRule {
  const errors = select('cotenant_device_ecc_errors_total', 'severity="uncorrected"');
  return rule(configuration, 'CotenantEccUncorrected', 'critical', {
    expr: `${errors} > 0 and ${SEEING}`,
    summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} has uncorrectable memory errors.',
    description: `{{ $value }} on ${GPU} since the driver was loaded. Programs that read that memory failed or were ended.`,
  });
}

function remapFailed(configuration: Configuration): AlertRule {
  return rule(configuration, 'CotenantRowRemapFailure', 'critical', {
    expr: `${select('cotenant_device_row_remap_failure')} == 1 and ${SEEING}`,
    summary: 'Row remapping failed on GPU {{ $labels.gpu }} of {{ $labels.instance }}.',
    description: `A memory row of ${GPU} failed, and no spare row could replace it.`,
  });
}

function remapPending(configuration: Configuration): AlertRule {
  const rows = select('cotenant_device_row_remap_pending');
  const pages = select('cotenant_device_page_retirement_pending');
  return rule(configuration, 'CotenantRowRemapPending', 'warning', {
    expr: `(${rows} == 1 or ${pages} == 1) and ${SEEING}`,
    summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} needs a reset to replace failed memory.',
    description: `Failed memory rows are remapped, or pages retired, at the next reset of ${GPU}.`,
  });
}

function throttled(configuration: Configuration): AlertRule {
  const reasons = configuration.clocksThrottled.reasons.join('|');
  return rule(configuration, 'CotenantClocksThrottled', 'warning', {
    expr: `${select('cotenant_device_throttle_reason', `reason=~"${reasons}"`)} == 1 and ${SEEING}`,
    lasts: configuration.clocksThrottled.lasts,
    summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} is throttled: {{ $labels.reason }}.',
    description: `${GPU} is too hot or gets too little power, and lowers its clocks. Containers on it get less compute than their grants say.`,
  });
}

// Alerts about faults of GPUs: Xids, memory errors, throttled clocks.
import { CONTAINED_XIDS, RESETTING_XIDS } from '../../src/agent/counters/xid-counts.ts';
import { grown } from '../lib/expressions.ts';
import { select } from '../lib/metrics.ts';
import { type Alert, alert, GPU, SEEING } from './rule.ts';

export const HEALTH_ALERTS: readonly Alert[] = [
  alert('CotenantXidCritical', 'critical', 'gpu', ({ xid }) => ({
    expr: raisedWithin(xid.withinSeconds, RESETTING_XIDS),
    summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} needs a reset: Xid {{ $labels.xid }}.',
    description: `The driver raised Xid {{ $labels.xid }} on ${GPU} {{ $value | humanizeDuration }} ago. All containers on the GPU are affected.`,
  })),
  alert('CotenantXidContained', 'warning', 'gpu', ({ xid }) => ({
    expr: raisedWithin(xid.withinSeconds, CONTAINED_XIDS),
    summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} has a contained memory error: Xid {{ $labels.xid }}.',
    description: `The driver raised Xid {{ $labels.xid }} on ${GPU} {{ $value | humanizeDuration }} ago. At most one process was affected.`,
  })),
  // By what grew: the count stays until the driver is loaded again, and is no news. What an error does to the whole GPU
  // has alerts of its own: CotenantXidCritical, CotenantRowRemapFailure and CotenantRowRemapPending.
  alert('CotenantEccUncorrected', 'warning', 'gpu', ({ eccUncorrected: { within } }) => {
    const errors = select('cotenant_device_ecc_errors_total', 'severity="uncorrected"');
    return {
      expr: `${grown(errors, within)} > 0 and ${SEEING}`,
      summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} has new uncorrectable memory errors.',
      description: `{{ $value | printf "%.0f" }} within ${within} on ${GPU}. Programs that read that memory failed or were ended.`,
    };
  }),
  alert('CotenantRowRemapFailure', 'critical', 'gpu', () => ({
    expr: `${select('cotenant_device_row_remap_failure')} == 1 and ${SEEING}`,
    summary: 'Row remapping failed on GPU {{ $labels.gpu }} of {{ $labels.instance }}.',
    description: `A memory row of ${GPU} failed, and no spare row could replace it.`,
  })),
  alert('CotenantRowRemapPending', 'warning', 'gpu', () => {
    const rows = select('cotenant_device_row_remap_pending');
    const pages = select('cotenant_device_page_retirement_pending');
    return {
      expr: `(${rows} == 1 or ${pages} == 1) and ${SEEING}`,
      summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} needs a reset to replace failed memory.',
      description: `Failed memory rows are remapped, or pages retired, at the next reset of ${GPU}.`,
    };
  }),
  alert('CotenantClocksThrottled', 'warning', 'gpu', ({ clocksThrottled }) => ({
    expr: `${select('cotenant_device_throttle_reason', `reason=~"${clocksThrottled.reasons.join('|')}"`)} == 1 and ${SEEING}`,
    lasts: clocksThrottled.lasts,
    summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} is throttled: {{ $labels.reason }}.',
    description: `${GPU} is too hot or gets too little power, and lowers its clocks. Containers on it get less compute than their grants say.`,
  })),
];

/** By its time: increase() of a counter misses the first one. */
function raisedWithin(seconds: number, codes: readonly number[]): string {
  const last = select('cotenant_device_xid_last_timestamp_seconds', `xid=~"${codes.join('|')}"`);
  return `time() - max_over_time(${last}[${seconds}s]) < ${seconds}`;
}

// Alerts about what breaks on GPUs: Xids, memory that fails, clocks that are held down.
import { CONTAINED_XIDS, RESETTING_XIDS } from '../../src/agent/counters/xid-counts.ts';
import type { Configuration } from '../lib/configuration.ts';
import { select } from '../lib/metrics.ts';
import { type AlertRule, GPU, rule, SEEING } from './rule.ts';

export function healthAlerts(configuration: Configuration): readonly AlertRule[] {
  return [
    xid(configuration, 'CotenantXidCritical', 'critical', RESETTING_XIDS, {
      summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} needs a reset: Xid {{ $labels.xid }}.',
      description: `The driver raised Xid {{ $labels.xid }} on ${GPU} {{ $value | humanizeDuration }} ago. No share of a GPU is safe from it.`,
    }),
    xid(configuration, 'CotenantXidContained', 'warning', CONTAINED_XIDS, {
      summary: 'Memory of GPU {{ $labels.gpu }} of {{ $labels.instance }} fails: Xid {{ $labels.xid }}.',
      description: `The driver raised Xid {{ $labels.xid }} on ${GPU} {{ $value | humanizeDuration }} ago. At most one process was hit.`,
    }),
    uncorrected(configuration),
    remapFailed(configuration),
    remapPending(configuration),
    throttled(configuration),
  ];
}

/** By its time: a counter would have to be scraped before. */
function xid(
  configuration: Configuration,
  alert: string,
  severity: 'critical' | 'warning',
  codes: readonly number[],
  words: { summary: string; description: string },
): AlertRule {
  const { withinSeconds } = configuration.xid;
  const last = select('cotenant_device_xid_last_timestamp_seconds', `xid=~"${codes.join('|')}"`);
  const expr = `time() - max_over_time(${last}[${withinSeconds}s]) < ${withinSeconds}`;
  return rule(configuration, alert, severity, { expr, ...words });
}

function uncorrected(configuration: Configuration): AlertRule {
  const errors = select('cotenant_device_ecc_errors_total', 'severity="uncorrected"');
  return rule(configuration, 'CotenantEccUncorrected', 'critical', {
    expr: `${errors} > 0 and ${SEEING}`,
    summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} has errors of memory that it cannot correct.',
    description: `{{ $value }} on ${GPU} since the driver was loaded. What read that memory got nothing, or was ended.`,
  });
}

function remapFailed(configuration: Configuration): AlertRule {
  return rule(configuration, 'CotenantRowRemapFailure', 'critical', {
    expr: `${select('cotenant_device_row_remap_failure')} == 1 and ${SEEING}`,
    summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} has memory that cannot be replaced.',
    description: `A row of ${GPU} failed, and no spare one took its place.`,
  });
}

function remapPending(configuration: Configuration): AlertRule {
  const rows = select('cotenant_device_row_remap_pending');
  const pages = select('cotenant_device_page_retirement_pending');
  return rule(configuration, 'CotenantRowRemapPending', 'warning', {
    expr: `(${rows} == 1 or ${pages} == 1) and ${SEEING}`,
    summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} waits for a reset to put failed memory aside.',
    description: `Rows or pages of ${GPU} are set aside when the GPU is next reset.`,
  });
}

function throttled(configuration: Configuration): AlertRule {
  const reasons = configuration.clocksHeld.reasons.join('|');
  return rule(configuration, 'CotenantClocksHeld', 'warning', {
    expr: `${select('cotenant_device_throttle_reason', `reason=~"${reasons}"`)} == 1 and ${SEEING}`,
    lasts: configuration.clocksHeld.lasts,
    summary: 'GPU {{ $labels.gpu }} of {{ $labels.instance }} is held below its clocks: {{ $labels.reason }}.',
    description: `${GPU} is too hot, or too little power reaches it. Everyone on it gets less compute than a share says.`,
  });
}

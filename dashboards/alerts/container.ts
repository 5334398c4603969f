// Alerts about containers: use over their limits, stops, denied allocations, isolation, and idle grants.
import { drift, grown, stopsWithin } from '../lib/expressions.ts';
import { type MetricName, select } from '../lib/metrics.ts';
import { USABLE } from './gpu.ts';
import { type Alert, alert, CONTAINER, GPU, SEEING, seenWithin } from './rule.ts';

const USED = select('cotenant_container_memory_used_bytes');
// 0 means no limit. A division by it would be +Inf, above any threshold.
const LIMIT = `(${select('cotenant_container_memory_limit_bytes')} > 0)`;
/** A container that started again has another id, and others of its labels are not those of its metrics. */
const SAME = 'job, instance, gpu, gpu_uuid, namespace, pod, container';
const OVER = `${select('cotenant_container_memory_over_limit')} == 1`;

export const CONTAINER_ALERTS: readonly Alert[] = [
  alert('CotenantContainerNearLimit', 'info', 'container', ({ nearLimit }) => ({
    // CotenantContainerOverLimit is for those over it.
    expr: `(${USED} / ${LIMIT} > ${nearLimit.ratio} unless ${OVER}) and ${SEEING}`,
    lasts: nearLimit.for,
    summary: `${CONTAINER}: close to its GPU memory limit.`,
    description: `It uses {{ $value | humanizePercentage }} of its grant on ${GPU}. Its next allocation may fail with out of memory.`,
  })),
  // By the agent's own verdict, tolerance included, as for Events and stops.
  alert('CotenantGrantOfGonePod', 'warning', 'container', ({ podGone: { seconds } }) => ({
    expr: `(time() - ${select('cotenant_container_pod_gone_timestamp_seconds')} > ${seconds}) and ${SEEING}`,
    summary: `${CONTAINER}: its pod is gone, and its grant is still held on {{ $labels.instance }}.`,
    description:
      'The pod has been gone from the API server for {{ $value | humanizeDuration }}, and the kubelet has not unpublished its volume: its containers may still run. No other pod gets its part of the GPU.',
  })),
  alert('CotenantContainerOverLimit', 'warning', 'container', ({ overLimit }) => ({
    expr: `(${USED} / ${LIMIT} and ${OVER}) and ${SEEING}`,
    lasts: overLimit.for,
    summary: `${CONTAINER}: over its GPU memory limit and not stopped.`,
    description: `It has used {{ $value | humanizePercentage }} of its grant on ${GPU} for more than ${overLimit.for}. Other containers on this GPU may fail to allocate what they were granted.`,
  })),
  // The interposer refuses no allocation of such a container, and the agent does not stop it. Memory that is granted to no
  // container is free for it to use.
  alert('CotenantUnlimitedOverGrant', 'warning', 'container', ({ overLimit }) => {
    const unlimited = select('cotenant_container_info', 'fence="none"');
    const beyond = `((${USED} - ${LIMIT} > 0) and on (${SAME}) ${unlimited})`;
    const together = `sum by (job, instance, gpu_uuid) (${beyond})`;
    const ungranted = `(${USABLE} - ${select('cotenant_device_memory_allocated_bytes')})`;
    return {
      expr: `(${beyond} and on (job, instance, gpu_uuid) (${together} - on (job, instance, gpu_uuid) ${ungranted} > 0)) and ${SEEING}`,
      lasts: overLimit.for,
      summary: `${CONTAINER}: without a memory limit, and it uses GPU memory that others were granted.`,
      description: `Its memory isolation is off, and it uses {{ $value | humanize1024 }}B more than its grant on ${GPU}. All such containers together use more than what is not granted there. Other containers may fail to allocate what they were granted.`,
    };
  }),
  // By the time of the stop: increase() of a counter that begins at 1 is 0. The maximum over the window keeps the alert
  // when the container, and with it the series, ends after one scrape. The steps of a stop (terminate, then kill) are
  // one alert.
  alert('CotenantContainerStopped', 'warning', 'container', ({ stopped: { withinSeconds } }) => ({
    expr: `time() - max without (action) (max_over_time(${select('cotenant_container_last_kill_timestamp_seconds')}[${withinSeconds}s])) < ${withinSeconds}`,
    summary: `${CONTAINER}: stopped by the Cotenant agent.`,
    description:
      'The agent stopped it {{ $value | humanizeDuration }} ago on {{ $labels.instance }} (GPU {{ $labels.gpu_uuid }}). Reason: {{ $labels.reason }}.',
  })),
  alert('CotenantStopLoop', 'warning', 'container', ({ stopLoop: { stops, withinSeconds } }) => ({
    expr: `${stopsWithin(withinSeconds)} >= ${stops}`,
    summary: `${CONTAINER}: stopped repeatedly.`,
    description: `The agent stopped it {{ $value }} times within ${withinSeconds / 60} minutes on {{ $labels.instance }}. It exceeds its grant again after each restart.`,
  })),
  alert('CotenantStopFailed', 'critical', 'container', ({ stopFailed }) => ({
    expr: `${grown(select('cotenant_container_kills_total', 'result=~"stuck|refused"'), stopFailed.within)} > 0`,
    summary: `${CONTAINER}: could not be stopped.`,
    description:
      'It still uses more than its grant of GPU {{ $labels.gpu_uuid }} on {{ $labels.instance }}. Result of the stop: {{ $labels.result }}.',
  })),
  // By the node's decisions; the audit log names the containers. A refused stop is decided again with the next sample.
  alert('CotenantStopsRefused', 'warning', 'node', ({ stopsRefused: { window, lasts } }) => ({
    expr: `(rate(${select('cotenant_enforcement_decisions_total', 'decision="refused"')}[${window}]) > 0) and ${SEEING}`,
    lasts,
    summary: 'The agent on {{ $labels.instance }} defers stops of containers ({{ $labels.reason }}).',
    description: `Enforcement deferred for ${lasts}: data stale or inconsistent, or stop rate limit reached. The audit log names the containers. Other containers on the GPU may not get what they were granted.`,
  })),
  alert('CotenantBypass', 'warning', 'container', ({ bypass }) => ({
    // Without a limit there is no interposer, and nothing in the ledger.
    expr: `(${select('cotenant_container_memory_bypass_bytes')} > ${bypass.bytes} and ${LIMIT}) and ${SEEING}`,
    lasts: bypass.for,
    summary: `${CONTAINER}: bypasses the interposer.`,
    description: `Processes without an entry in the usage ledger use {{ $value | humanize1024 }}B on ${GPU}. Only the agent, which stops containers, enforces the limit of this container.`,
  })),
  // For containers whose isolation was stronger before; CotenantBypass is for those that began without the interposer.
  // A container without GPU memory is assumed to have the interposer, so only one with memory counts.
  alert('CotenantIsolationWeakened', 'warning', 'container', ({ isolationWeakened: { within, step, lasts } }) => {
    const was = (held: string) =>
      `max_over_time((${select('cotenant_container_info', held)} and on (${SAME}) ${select('cotenant_container_memory_used_bytes')} > 0)[${within}:${step}])`;
    const after = (now: string, held: string) =>
      `(max without (mode, pod_uid, container_id, runtime) (${select('cotenant_container_info', now)}) and on (${SAME}) ${was(held)})`;
    const weaker = [
      after('fence="agent"', 'fence=~"driver|interposer"'),
      after('fence="interposer"', 'fence="driver"'),
    ].join(' or ');
    return {
      expr: `(${weaker}) and ${SEEING}`,
      lasts,
      summary: `${CONTAINER}: its memory limit is enforced by the {{ $labels.fence }} only.`,
      description: `Within the last ${within} a stronger mechanism, the driver or the interposer, enforced its limit on ${GPU}.`,
    };
  }),
  // Weaker than its node's mode because a setting says so; CotenantNotEnforcing is for nodes that do not enforce. One
  // failed scrape, or one page without a sample, must not restart the day, so the last value within a window counts.
  alert('CotenantContainerNotEnforced', 'info', 'container', ({ notEnforced: { lasts, within } }) => {
    const last = (metric: MetricName, matcher: string) => `last_over_time(${select(metric, matcher)}[${within}])`;
    const isUnder = (container: string, node: string) =>
      `(${last('cotenant_container_enforcement', container)} and on (job, instance) (${last('cotenant_enforcement_mode', node)} == 1))`;
    const weaker = `${isUnder('enforcement!="enforce"', 'enforcement="enforce"')} or ${isUnder('enforcement="off"', 'enforcement="report"')}`;
    return {
      expr: `max without (mode) (${weaker}) and ${seenWithin(within)}`,
      lasts,
      summary: `${CONTAINER}: exempt from the enforcement mode of its node.`,
      description: `For ${lasts} its enforcement mode has been {{ $labels.enforcement }}, set by the {{ $labels.source }}: the agent does not stop it when it exceeds its grant on {{ $labels.instance }}.`,
    };
  }),
  alert('CotenantLedgerMismatch', 'warning', 'container', ({ ledgerMismatch: { bytes, lasts } }) => {
    const own = `(${USED} - ${select('cotenant_container_memory_bypass_bytes')})`;
    const inLedger = `sum without (kind) (${select('cotenant_container_memory_ledger_bytes', 'kind!="managed"')})`;
    return {
      expr: `(${own} - ${inLedger} > ${bytes}) and ${SEEING}`,
      lasts,
      summary: `${CONTAINER}: uses more memory than its usage ledger says.`,
      description: `Its processes use {{ $value | humanize1024 }}B on ${GPU} that the ledger does not have, although they have entries in it. Either the ledger file was changed, or they allocate in a way that the interposer does not count.`,
    };
  }),
  alert('CotenantDenialStorm', 'info', 'container', ({ denialStorm: { perSecond, window, lasts } }) => ({
    expr: `(rate(${select('cotenant_container_allocations_denied_total')}[${window}]) > ${perSecond}) and ${SEEING}`,
    lasts,
    summary: `${CONTAINER}: many GPU memory allocations are denied.`,
    description: `{{ $value | printf "%.1f" }} allocations per second on ${GPU} are denied because of its grant.`,
  })),
  // Against the effective limit, which the arbiter exports where it enforces one, borrowed compute included. Both are
  // means over the window, because the limit changes when other containers come and go.
  alert('CotenantComputeOverLimit', 'warning', 'container', ({ computeOverLimit: { ratio, window, lasts } }) => {
    const share = `rate(${select('cotenant_container_sm_seconds_total')}[${window}])`;
    const most = `avg_over_time(${select('cotenant_container_sm_limit_effective_ratio')}[${window}])`;
    return {
      expr: `(${share} > (${ratio} * ${most})) and ${SEEING}`,
      lasts,
      summary: `${CONTAINER}: uses more compute than its limit.`,
      description: `It uses {{ $value | humanizePercentage }} of ${GPU}, more than its effective limit, borrowed compute included. Other containers get less than they were granted.`,
    };
  }),
  // Charged time above used time is no fault: the arbiter also charges for short gaps between launches.
  alert('CotenantComputeDrift', 'warning', 'container', ({ computeDrift: { ratio, window, lasts } }) => ({
    expr: `(${drift(window)} > ${ratio}) and ${SEEING}`,
    lasts,
    summary: `${CONTAINER}: uses more compute than it is charged for.`,
    description: `The driver's samples show {{ $value | humanizePercentage }} of ${GPU} more than the arbiter charges: some of its work runs without a lease from the arbiter.`,
  })),
  // Waits are summed over threads, of which there may be many with short waits. So they must also exceed the time for
  // which the container had the GPU.
  alert('CotenantComputeThrottled', 'info', 'container', ({ throttled: { secondsPerSecond, window, lasts } }) => {
    const waits = `rate(${select('cotenant_container_sm_throttled_seconds_total')}[${window}])`;
    const charged = `rate(${select('cotenant_container_sm_charged_seconds_total')}[${window}])`;
    return {
      expr: `(${waits} > ${secondsPerSecond} and ${waits} > ${charged}) and ${SEEING}`,
      lasts,
      summary: `${CONTAINER}: throttled more than it runs.`,
      description: `Its threads together waited {{ $value | printf "%.2f" }} s per second for ${GPU}, longer than it had the GPU. Its compute grant is too small for its work, or others use all of the GPU.`,
    };
  }),
  // Only for containers that have had the GPU for the whole window. The GPU's activity counters are not per container,
  // so they count only where one container has the whole GPU or MIG instance.
  alert('CotenantGrantIdle', 'info', 'container', ({ idle: { window, lasts, activeRatio } }) => {
    const limit = select('cotenant_container_memory_limit_bytes');
    const info = select('cotenant_container_info', 'mode=~"exclusive|mig"');
    // The other labels stay, so that they match those of the other metrics.
    const whole = (at: string) => `max without (pod_uid, container_id, runtime, fence) (${info}${at})`;
    const held = (at: string) => `(${limit}${at} or ${whole(at)})`;
    const none = `(rate(${select('cotenant_container_sm_seconds_total')}[${window}]) == 0)`;
    const active = `max_over_time(${select('cotenant_device_sm_active_ratio')}[${window}])`;
    const hardly = `(${whole('')} and on (job, instance, gpu_uuid) (${active} < ${activeRatio}))`;
    return {
      expr: `((${none} or ${hardly}) and ${held('')} and ${held(` offset ${window}`)}) and ${SEEING}`,
      lasts,
      summary: `${CONTAINER}: does not use its GPU.`,
      description: `For ${window} it ran no kernel on ${GPU}, or, if it has the whole GPU or MIG instance, less than ${100 * activeRatio} % of the SMs were active. Its grant is not available to others.`,
    };
  }),
  alert('CotenantUnknownEntryPoints', 'info', 'container', ({ unknownEntryPoints }) => ({
    expr: `${select('cotenant_container_unknown_entry_points_total')} > 0 and ${SEEING}`,
    lasts: unknownEntryPoints.lasts,
    summary: `${CONTAINER}: uses driver functions that the interposer does not know.`,
    description:
      'It looked up {{ $value }} unknown entry points on {{ $labels.instance }}, because this version of Cotenant is older than the driver. Memory that it allocates through them is not in the ledger.',
  })),
  alert('CotenantEngineRefused', 'warning', 'container', ({ engineRefused }) => ({
    expr: `${select('cotenant_container_engine_refused_processes')} > 0 and ${SEEING}`,
    lasts: engineRefused.for,
    summary: `${CONTAINER}: could not switch to the current engine of the interposer.`,
    description:
      '{{ $value }} of its processes on {{ $labels.instance }} failed to load the engine that the agent ordered and keep the previous one. Limits are still enforced; fixes in the new engine do not apply to them.',
  })),
  alert('CotenantEngineOutdated', 'warning', 'container', ({ engineOutdated }) => ({
    expr: `${select('cotenant_container_engine_outdated')} == 1 and ${SEEING}`,
    lasts: engineOutdated.lasts,
    summary: `${CONTAINER}: not ordered to use the current engine of the interposer.`,
    description:
      'The log of the agent on {{ $labels.instance }} has the reason. Limits are still enforced, by the previous engine.',
  })),
  // Only a restart helps, so it fires at once.
  alert('CotenantContainerGpuMissing', 'warning', 'container', ({ gpuMissingInContainer }) => ({
    expr: `${select('cotenant_container_gpu_missing')} == 1 and ${SEEING}`,
    lasts: gpuMissingInContainer.lasts,
    summary: `${CONTAINER}: runs without its GPU.`,
    description:
      'The container runtime on {{ $labels.instance }} created it while the agent did not answer. It has no GPU until it is restarted.',
  })),
];

// Alerts about containers: their limits, what they are refused, how they are held, and whether they use what they have.
import type { Configuration } from '../lib/configuration.ts';
import { type MetricName, select } from '../lib/metrics.ts';
import { type AlertRule, CONTAINER, drift, GPU, grown, rule, SEEING, seenWithin, stopsWithin } from './rule.ts';

const USED = select('cotenant_container_memory_used_bytes');
// 0 says that there is no limit. A division by it would be +Inf, which is more than any threshold.
const LIMIT = `(${select('cotenant_container_memory_limit_bytes')} > 0)`;
const OVER = `${select('cotenant_container_memory_over_limit')} == 1`;
export function containerAlerts(configuration: Configuration): readonly AlertRule[] {
  return [
    nearLimit(configuration),
    overLimit(configuration),
    stopped(configuration),
    stopLoop(configuration),
    stopFailed(configuration),
    stopsRefused(configuration),
    bypass(configuration),
    fenceWeakened(configuration),
    notEnforced(configuration),
    ledgerMismatch(configuration),
    denialStorm(configuration),
    coresIgnored(configuration),
    computeDrift(configuration),
    throttled(configuration),
    idle(configuration),
    unknownEntryPoints(configuration),
    engineRefused(configuration),
    engineBehind(configuration),
    withoutGpus(configuration),
  ];
}

function nearLimit({ nearLimit, runbook }: Configuration): AlertRule {
  return {
    alert: 'CotenantContainerNearLimit',
    // Who is over has an alert of its own.
    expr: `(${USED} / ${LIMIT} > ${nearLimit.ratio} unless ${OVER}) and ${SEEING}`,
    for: nearLimit.for,
    labels: { severity: 'info' },
    annotations: {
      summary: `${CONTAINER}: close to its GPU memory limit.`,
      description: `Holds {{ $value | humanizePercentage }} of its memory on ${GPU}. Its next allocation may be refused.`,
      runbook_url: `${runbook}#cotenantcontainernearlimit`,
    },
  };
}

/** Over is what the agent calls over, tolerance included, so that alert, event and stop go by one measure. */
function overLimit({ overLimit, runbook }: Configuration): AlertRule {
  return {
    alert: 'CotenantContainerOverLimit',
    expr: `(${USED} / ${LIMIT} and ${OVER}) and ${SEEING}`,
    for: overLimit.for,
    labels: { severity: 'warning' },
    annotations: {
      summary: `${CONTAINER}: over its GPU memory limit and not stopped.`,
      description: `Holds {{ $value | humanizePercentage }} of its memory on ${GPU} for more than ${overLimit.for}. Others on this GPU may be refused what they were granted.`,
      runbook_url: `${runbook}#cotenantcontaineroverlimit`,
    },
  };
}

/**
 * Goes by the time of the stop, not by increase() of the counter: a counter that is born at 1 has increased by 0. The maximum
 * over the time keeps the alert when the container, and with it the series, is gone after one scrape. A stop has steps
 * (terminate, then kill), each with a series: it is one alert.
 */
function stopped({ stopped, runbook }: Configuration): AlertRule {
  const { withinSeconds } = stopped;
  const lastKill = select('cotenant_container_last_kill_timestamp_seconds');
  return {
    alert: 'CotenantContainerStopped',
    expr: `time() - max without (action) (max_over_time(${lastKill}[${withinSeconds}s])) < ${withinSeconds}`,
    labels: { severity: 'warning' },
    annotations: {
      summary: `${CONTAINER}: stopped by Cotenant.`,
      description:
        'Stopped {{ $value | humanizeDuration }} ago on {{ $labels.instance }} (GPU {{ $labels.gpu_uuid }}). Reason: {{ $labels.reason }}.',
      runbook_url: `${runbook}#cotenantcontainerstopped`,
    },
  };
}

function bypass({ bypass, runbook }: Configuration): AlertRule {
  return {
    alert: 'CotenantBypass',
    // Without a limit there is no interposer, so that the ledger rightly knows nothing.
    expr: `(${select('cotenant_container_memory_bypass_bytes')} > ${bypass.bytes} and ${LIMIT}) and ${SEEING}`,
    for: bypass.for,
    labels: { severity: 'warning' },
    annotations: {
      summary: `${CONTAINER}: uses a GPU past the interposer.`,
      description: `{{ $value | humanize1024 }}B on ${GPU} belong to processes that account to no ledger. Only the agent holds this container to its limit.`,
      runbook_url: `${runbook}#cotenantbypass`,
    },
  };
}

function engineRefused({ engineRefused, runbook }: Configuration): AlertRule {
  return {
    alert: 'CotenantEngineRefused',
    expr: `${select('cotenant_container_engine_refused_processes')} > 0 and ${SEEING}`,
    for: engineRefused.for,
    labels: { severity: 'warning' },
    annotations: {
      summary: `${CONTAINER}: does not run the interposer's engine that it was told to.`,
      description:
        '{{ $value }} of its processes on {{ $labels.instance }} could not change and go on with the engine that they had. Limits hold as before; what the new engine mends is not mended there.',
      runbook_url: `${runbook}#cotenantenginerefused`,
    },
  };
}

function stopLoop(configuration: Configuration): AlertRule {
  const { stops, withinSeconds } = configuration.stopLoop;
  return rule(configuration, 'CotenantStopLoop', 'warning', {
    expr: `${stopsWithin(withinSeconds)} >= ${stops}`,
    summary: `${CONTAINER}: stopped again and again.`,
    description: `{{ $value }} times within ${withinSeconds / 60} minutes on {{ $labels.instance }}. It starts into the same fault each time.`,
  });
}

function stopFailed(configuration: Configuration): AlertRule {
  const failed = select('cotenant_container_kills_total', 'result=~"stuck|refused"');
  return rule(configuration, 'CotenantStopFailed', 'critical', {
    expr: `${grown(failed, configuration.stopFailed.within)} > 0`,
    summary: `${CONTAINER}: could not be stopped.`,
    description:
      'It holds memory of GPU {{ $labels.gpu_uuid }} on {{ $labels.instance }} past its grant. Result of the stop: {{ $labels.result }}.',
  });
}

/** By the node's decisions: of whom they were is in the audit log. One that is refused is decided again with the next sample. */
function stopsRefused(configuration: Configuration): AlertRule {
  const { window, lasts } = configuration.stopsRefused;
  const refused = select('cotenant_enforcement_decisions_total', 'decision="refused"');
  return rule(configuration, 'CotenantStopsRefused', 'warning', {
    expr: `(rate(${refused}[${window}]) > 0) and ${SEEING}`,
    lasts,
    summary: 'The agent on {{ $labels.instance }} does not stop who is to be stopped: {{ $labels.reason }}.',
    description: `For ${lasts} it has refused that again and again: the ground is not firm, or the rate of stops is used up. Its audit log says which, and who. Others on the GPU go without what they were granted.`,
  });
}

/**
 * Whoever began without the interposer is told of by CotenantBypass; this is who had a stronger fence and has it no more. Who holds
 * nothing is taken to have the interposer, so only what was seen to hold memory was held by anything.
 */
function fenceWeakened(configuration: Configuration): AlertRule {
  const { within, step, lasts } = configuration.fenceWeakened;
  // A container that started again has another id.
  const same = 'job, instance, gpu, gpu_uuid, namespace, pod, container';
  const was = (held: string) =>
    `max_over_time((${select('cotenant_container_info', held)} and on (${same}) ${select('cotenant_container_memory_used_bytes')} > 0)[${within}:${step}])`;
  const after = (now: string, held: string) =>
    `(max without (mode, pod_uid, container_id, runtime) (${select('cotenant_container_info', now)}) and on (${same}) ${was(held)})`;
  const weaker = [
    after('fence="agent"', 'fence=~"driver|interposer"'),
    after('fence="interposer"', 'fence="driver"'),
  ].join(' or ');
  return rule(configuration, 'CotenantFenceWeakened', 'warning', {
    expr: `(${weaker}) and ${SEEING}`,
    lasts,
    summary: `${CONTAINER}: its limit is held by the {{ $labels.fence }} now, and by something stronger before.`,
    description: `Within the last ${within} a stronger fence held it on ${GPU}: the driver, or the interposer.`,
  });
}

/**
 * Weaker than its node's mode, by somebody's word. Of a node that is weak itself, the node's own alert tells. A day is long: one scrape
 * that fails, or one page without a sample, is not to begin it anew. So what was told within a while counts.
 */
function notEnforced(configuration: Configuration): AlertRule {
  const { lasts, within } = configuration.notEnforced;
  const told = (metric: MetricName, matcher: string) => `last_over_time(${select(metric, matcher)}[${within}])`;
  const isUnder = (container: string, node: string) =>
    `(${told('cotenant_container_enforcement', container)} and on (job, instance) (${told('cotenant_enforcement_mode', node)} == 1))`;
  const weaker = `${isUnder('enforcement!="enforce"', 'mode="enforce"')} or ${isUnder('enforcement="off"', 'mode="report"')}`;
  return rule(configuration, 'CotenantContainerNotEnforced', 'info', {
    expr: `max without (mode) (${weaker}) and ${seenWithin(within)}`,
    lasts,
    summary: `${CONTAINER}: its node enforces more than is done to it.`,
    description: `For ${lasts} it has been under the mode {{ $labels.enforcement }}, said by {{ $labels.source }}: it is not stopped when it goes past its grant on {{ $labels.instance }}.`,
  });
}

function ledgerMismatch(configuration: Configuration): AlertRule {
  const { bytes, lasts } = configuration.ledgerMismatch;
  const own = `(${USED} - ${select('cotenant_container_memory_bypass_bytes')})`;
  const told = `sum without (kind) (${select('cotenant_container_memory_ledger_bytes', 'kind!="managed"')})`;
  return rule(configuration, 'CotenantLedgerMismatch', 'warning', {
    expr: `(${own} - ${told} > ${bytes}) and ${SEEING}`,
    lasts,
    summary: `${CONTAINER}: holds more than its ledger says.`,
    description: `By {{ $value | humanize1024 }}B on ${GPU}, and by processes that are in the ledger: its file was changed, or they take memory in a way that the interposer does not count.`,
  });
}

function denialStorm(configuration: Configuration): AlertRule {
  const { perSecond, window, lasts } = configuration.denialStorm;
  return rule(configuration, 'CotenantDenialStorm', 'info', {
    expr: `(rate(${select('cotenant_container_allocations_denied_total')}[${window}]) > ${perSecond}) and ${SEEING}`,
    lasts,
    summary: `${CONTAINER}: is refused memory all the time.`,
    description: `{{ $value | printf "%.1f" }} requests a second on ${GPU} are refused because of its grant.`,
  });
}

/**
 * Against the most that it may have, as the arbiter says it: what a policy lends is in that, and where nothing holds a container to
 * its share there is none. Its mean over the time, like the share's: it changes as others come and go.
 */
function coresIgnored(configuration: Configuration): AlertRule {
  const { ratio, window, lasts } = configuration.coresIgnored;
  const share = `rate(${select('cotenant_container_sm_seconds_total')}[${window}])`;
  const most = `avg_over_time(${select('cotenant_container_sm_limit_effective_ratio')}[${window}])`;
  return rule(configuration, 'CotenantComputeOverShare', 'warning', {
    expr: `(${share} > (${ratio} * ${most})) and ${SEEING}`,
    lasts,
    summary: `${CONTAINER}: gets more compute than it may have.`,
    description: `{{ $value | humanizePercentage }} of ${GPU}, where it is held to less, what its policy lends included.`,
  });
}

/** The other way round is no fault: the arbiter charges for gaps between launches, too. */
function computeDrift(configuration: Configuration): AlertRule {
  const { ratio, window, lasts } = configuration.computeDrift;
  return rule(configuration, 'CotenantComputeDrift', 'warning', {
    expr: `(${drift(window)} > ${ratio}) and ${SEEING}`,
    lasts,
    summary: `${CONTAINER}: uses more compute than it is charged for.`,
    description: `By {{ $value | humanizePercentage }} of ${GPU}, by the driver's samples: it has work there that does not go by the arbiter's turns.`,
  });
}

/**
 * Waits are summed over threads, and nobody tells of how many: of many of them each may wait a little. So they are to wait for longer
 * than the GPU was kept for them, too.
 */
function throttled(configuration: Configuration): AlertRule {
  const { secondsPerSecond, window, lasts } = configuration.throttled;
  const waits = `rate(${select('cotenant_container_sm_throttled_seconds_total')}[${window}])`;
  const has = `rate(${select('cotenant_container_sm_charged_seconds_total')}[${window}])`;
  return rule(configuration, 'CotenantComputeThrottled', 'info', {
    expr: `(${waits} > ${secondsPerSecond} and ${waits} > ${has}) and ${SEEING}`,
    lasts,
    summary: `${CONTAINER}: waits longer for its turns than it has them.`,
    description: `Its threads together waited {{ $value | printf "%.2f" }} s in each second for ${GPU}, and had it for less.`,
  });
}

/**
 * It has its grant or its GPU for as long, or it would be told to be idle before it began. How much of a GPU was at work the
 * GPU's own counters say, and not of whom: of a whole GPU that is its holder, of a shared one nobody's.
 */
function idle(configuration: Configuration): AlertRule {
  const { window, lasts, activeRatio } = configuration.idle;
  const limit = select('cotenant_container_memory_limit_bytes');
  const info = select('cotenant_container_info', 'mode=~"exclusive|mig"');
  // All other labels stay, those of the scrape's target included, so that it is the same as in the other metrics.
  const whole = (at: string) => `max without (pod_uid, container_id, runtime, fence) (${info}${at})`;
  const held = (at: string) => `(${limit}${at} or ${whole(at)})`;
  const none = `(rate(${select('cotenant_container_sm_seconds_total')}[${window}]) == 0)`;
  const active = `max_over_time(${select('cotenant_device_sm_active_ratio')}[${window}])`;
  const hardly = `(${whole('')} and on (job, instance, gpu_uuid) (${active} < ${activeRatio}))`;
  return rule(configuration, 'CotenantGrantIdle', 'info', {
    expr: `((${none} or ${hardly}) and ${held('')} and ${held(` offset ${window}`)}) and ${SEEING}`,
    lasts,
    summary: `${CONTAINER}: does not use the GPU that it has.`,
    description: `For ${window} no kernel of it was seen on ${GPU}, or, where it has the GPU or instance to itself, never more than ${100 * activeRatio} % of it was at work; nobody else can have its share.`,
  });
}

function unknownEntryPoints(configuration: Configuration): AlertRule {
  return rule(configuration, 'CotenantUnknownEntryPoints', 'info', {
    expr: `${select('cotenant_container_unknown_entry_points_total')} > 0 and ${SEEING}`,
    lasts: configuration.unknownEntryPoints.lasts,
    summary: `${CONTAINER}: looks up parts of the driver that are not known here.`,
    description:
      '{{ $value }} look-ups on {{ $labels.instance }}: this build is older than the driver. What is taken by such calls is seen by the driver alone.',
  });
}

function engineBehind(configuration: Configuration): AlertRule {
  return rule(configuration, 'CotenantEngineBehind', 'warning', {
    expr: `${select('cotenant_container_engine_outdated')} == 1 and ${SEEING}`,
    lasts: configuration.engineBehind.lasts,
    summary: `${CONTAINER}: was not told of the engine that is wanted.`,
    description: 'The agent of {{ $labels.instance }} says in its log what is in the way. Limits hold as before.',
  });
}

/** Only a new start helps it, so it is said at once. */
function withoutGpus(configuration: Configuration): AlertRule {
  return rule(configuration, 'CotenantContainerWithoutGpus', 'warning', {
    expr: `${select('cotenant_container_gpu_missing')} == 1 and ${SEEING}`,
    lasts: configuration.withoutGpus.lasts,
    summary: `${CONTAINER}: runs without the GPU that it was granted.`,
    description:
      'The container runtime of {{ $labels.instance }} made it without an answer from the agent. It sees no GPU until it starts anew.',
  });
}

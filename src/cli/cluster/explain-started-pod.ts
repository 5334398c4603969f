// Explains what a pod was granted and what stopped its containers, from its grant, its containers' states and the
// agent's Events. Pure.
import { parsePodGrant } from '../../api/grant-annotation.ts';
import { ACTION_ANNOTATION, GPUS_ANNOTATION } from '../../api/names.ts';
import { parseNodeGpus } from '../../api/node-annotation.ts';
import { mib } from '../lib/text.ts';
import { type Cause, cause, eventMs, type PodFacts, sentence } from './explanation.ts';
import {
  conditionOf,
  type Event,
  type Pod,
  statusesOf,
  type Terminated,
  timeOfEvent,
  writerOfEvent,
} from './objects.ts';
import { type ContainerUse, useOn } from './use.ts';

/** Reasons of the agent's Events: overuse and its end, a refused change of compute, missing GPUs. */
const AGENT_EVENTS = [
  'GPUMemoryQuotaExceeded',
  'GPUMemoryQuotaRestored',
  'GPUComputeQuotaExceeded',
  'GPUComputeQuotaRestored',
  'GPUComputeChangeRefused',
  'GPUsMissing',
];
const STOPS: readonly unknown[] = ['kill', 'terminate'];
const AGENT = 'cotenant-agent';

export function grantCauses(text: string, { pod, use, node }: PodFacts): Cause[] {
  const grant = parsePodGrant(text);
  if (!grant.ok) return [{ text: `Its grant cannot be read: ${grant.error}.` }];
  const at = pod && conditionOf(pod, 'PodScheduled')?.lastTransitionTime;
  const list = parseNodeGpus(node?.metadata.annotations?.[GPUS_ANNOTATION] ?? '');
  const known = list.ok ? list.value.gpus : [];
  return grant.value.containers.flatMap((container) =>
    container.gpus.map((gpu) => {
      const device = known.find(({ gpuUuid }) => gpuUuid === gpu.gpuUuid);
      const where = device ? `GPU ${device.index} (${device.model}, ${gpu.gpuUuid})` : gpu.gpuUuid;
      const limit = gpu.limitBytes === gpu.memoryBytes ? '' : ` (limit ${mib(gpu.limitBytes)})`;
      const cores = gpu.coresPercent > 0 ? ` and ${gpu.coresPercent} % of the compute` : '';
      const seen = useOn(use, {
        namespace: pod?.metadata.namespace ?? '',
        pod: pod?.metadata.name ?? '',
        container: container.name,
        gpuUuid: gpu.gpuUuid,
      });
      const used =
        seen === undefined ? '' : usedText(seen, container.memoryIsolation === 'off' ? undefined : gpu.limitBytes);
      const fence = seen?.fence === undefined ? '' : `, and ${fenceText(seen.fence)}`;
      const more = seen?.aboveGrantBytes;
      const above = more ? `: it holds ${mib(more)} more than its grant, which others on that GPU may lack` : '';
      const off = container.memoryIsolation === 'off' ? `; memory isolation is off, as it requested${above}` : '';
      const amounts = `${mib(gpu.memoryBytes)}${limit}${cores}`;
      return cause(at, `${container.name} was granted ${amounts} of ${where}${used}${fence}${off}.`);
    }),
  );
}

/** Of memory and compute; empty: neither is known. */
function usedText({ usedBytes, smRatio }: ContainerUse, limitBytes = Number.POSITIVE_INFINITY): string {
  const above = (bytes: number) => (bytes > limitBytes ? ` (${mib(bytes - limitBytes)} above its limit)` : '');
  const parts = [
    ...(usedBytes === undefined ? [] : [`${mib(usedBytes)}${above(usedBytes)}`]),
    ...(smRatio === undefined ? [] : [`${Math.round(smRatio * 100)} % of the compute`]),
  ];
  return parts.length === 0 ? '' : `; it uses ${parts.join(' and ')}`;
}

/** A program whose work waits for later work gets its share with less done in it. */
export function reliefCauses({ namespace, name, use }: PodFacts): Cause[] {
  const own = use?.known ? use.containers.filter((one) => one.namespace === namespace && one.pod === name) : [];
  return own.flatMap(({ container, gpuUuid, relieved = 0 }) => {
    if (relieved === 0) return [];
    const launches = relieved === 1 ? '1 launch' : `${relieved} launches`;
    const text =
      `${container} had ${launches} on ${gpuUuid} let go before its share allowed it, ` +
      'as its work in flight might wait for them; what they use delays its later launches.';
    return [{ reason: 'launches-relieved', text }];
  });
}

/** Memory that a container may lack within its grant, because others on its GPU are not held to theirs. */
export function neighborCauses({ namespace, name, use }: PodFacts): Cause[] {
  if (!use?.known) return [];
  const isOwn = (one: ContainerUse) => one.namespace === namespace && one.pod === name;
  return use.containers.filter(isOwn).flatMap(({ container, gpuUuid }) => {
    const taken = use.containers
      .filter((one) => one.gpuUuid === gpuUuid && !isOwn(one))
      .reduce((sum, { aboveGrantBytes = 0 }) => sum + aboveGrantBytes, 0);
    if (taken === 0) return [];
    const text =
      `Containers of other pods on ${gpuUuid}, whose memory isolation is off, hold ${mib(taken)} more than their ` +
      `grants: allocations of ${container} may fail within its grant.`;
    return [{ reason: 'neighbors-above-grant', text }];
  });
}

const fenceText = (fence: string): string =>
  fence === 'none' ? 'its limit is not enforced' : `its limit is enforced by the ${fence}`;

/** How its containers ended, by their states. */
export function stopsOf(pod: Pod, facts: PodFacts): Cause[] {
  return statusesOf(pod).flatMap(({ name, state, lastState, restartCount }) => {
    const ends = [state?.terminated, lastState?.terminated].filter((one) => one !== undefined);
    return ends
      .filter(({ exitCode, message }) => exitCode !== 0 || message)
      .map((ended, index) => {
        const restarts = index === 0 && restartCount > 0 ? ` (restarted ${restartCount} times so far)` : '';
        const how = endOf(ended, stoppedByAgent(facts, name, ended));
        return cause(ended.finishedAt, `Container ${name}${restarts} ended with ${how}.`);
      });
  });
}

function endOf({ exitCode, signal, reason, message }: Terminated, byAgent: boolean): string {
  const how = byAgent ? ', stopped by the agent' : reason && reason !== 'Error' ? ` (${reason})` : '';
  return `exit code ${exitCode}${signal ? `, signal ${signal}` : ''}${how}${message ? `: ${message.trim().replace(/\.$/, '')}` : ''}`;
}

/** Has the agent an Event of a stop of this container, from within a minute of its end? */
function stoppedByAgent({ events }: PodFacts, container: string, ended: Terminated): boolean {
  return events.some((event) => {
    const apartMs = Math.abs(eventMs(event) - Date.parse(ended.finishedAt ?? ''));
    const isStop = STOPS.includes(event.metadata.annotations?.[ACTION_ANNOTATION]);
    const isOfContainer = event.involvedObject.fieldPath === `spec.containers{${container}}`;
    return isQuotaEvent(event) && apartMs <= 60_000 && isStop && isOfContainer;
  });
}

const isQuotaEvent = (event: Event): boolean =>
  AGENT_EVENTS.includes(event.reason ?? '') && writerOfEvent(event) === AGENT;

/** The agent's Events on the pod, without those that a termination message repeats. */
export function quotaEvents({ events, pod }: PodFacts): Cause[] {
  const messages = (pod ? statusesOf(pod) : []).flatMap(({ state, lastState }) =>
    [state, lastState].flatMap((one) => one?.terminated?.message ?? []),
  );
  return events
    .filter((event) => isQuotaEvent(event) && !messages.some((text) => text.includes(event.message ?? '')))
    .map((event) => cause(timeOfEvent(event), `The agent: ${sentence(event.message ?? '')}`));
}

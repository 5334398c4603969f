// Explains the state of a pod (`cotenant why`) from the pod, its Events, its node and other pods. Pure. Order: present
// state, causes with the newest first, the grant, the surroundings. collect.ts reads the objects.

import { parsePodGrant } from '../../api/grant-annotation.ts';
import { ACTION_ANNOTATION, GPUS_ANNOTATION, GRANT_ANNOTATION, isOwnKey, REQUEST_ANNOTATION } from '../../api/names.ts';
import { parseNodeGpus } from '../../api/node-annotation.ts';
import { parsePodRequest } from '../../api/request-annotation.ts';
import { ownsKey, ownsResource } from '../../request/dialects/dialect.ts';
import { FOREIGN_DIALECTS } from '../../request/dialects/index.ts';
import { age, askedByPod, mib, oneLine } from '../lib/text.ts';
import { type InventoryNode, largestFree } from './inventory.ts';
import {
  conditionOf,
  countOfEvent,
  type Event,
  hasEnded,
  type Node,
  type Pod,
  statusesOf,
  type Terminated,
  timeOfEvent,
  writerOfEvent,
} from './objects.ts';
import { type GoneHolder, type Use, useOn } from './use.ts';

export type PodFacts = {
  readonly namespace: string;
  readonly name: string;
  /** Undefined: no pod has this name. */
  readonly pod?: Pod;
  /** Events of objects with the pod's name. */
  readonly events: readonly Event[];
  /** Without a pod: grants that agents hold for containers of such a pod. */
  readonly held?: readonly (GoneHolder & { readonly node: string })[];
  /** Without a pod: the namespace's Events about objects that could not be created. */
  readonly refusals?: readonly Event[];
  readonly node?: Node;
  /** Agents on the pod's node; undefined: the user may not read them. */
  readonly agents?: readonly Pod[];
  /** Pods of Cotenant's scheduler; undefined: the user may not read them. */
  readonly schedulers?: readonly Pod[];
  readonly use?: Use;
  /** Of a pending pod: what each node has free; absent: the user may not read it. */
  readonly free?: readonly Pick<InventoryNode, 'name' | 'free'>[];
  readonly notes: readonly string[];
};

type PodState = 'absent' | 'no share' | 'pending' | 'waiting' | 'running' | 'ended' | 'terminating';
type Cause = {
  readonly at?: string;
  readonly reason?: 'launches-relieved' | 'held-by-gone-pod';
  readonly text: string;
};
export type Explanation = {
  readonly namespace: string;
  readonly pod: string;
  readonly state: PodState;
  readonly headline: string;
  readonly causes: readonly Cause[];
  readonly notes: readonly string[];
};

/** Does a name belong to another system, which Cotenant reads only if its dialect is enabled? */
const isForeignResource = (name: string): boolean => FOREIGN_DIALECTS.some((dialect) => ownsResource(dialect, name));
const isForeignKey = (name: string): boolean => FOREIGN_DIALECTS.some((dialect) => ownsKey(dialect, name));
const DEFAULT_SCHEDULER = 'default-scheduler';
const USUAL_WAITS = new Set(['ContainerCreating', 'PodInitializing']);
const DRIVER = 'cotenant.io';
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

export function explain(all: PodFacts, nowMs: number): Explanation {
  const { namespace, name, pod, notes } = all;
  const facts = { ...all, events: all.events.filter((event) => isAbout(event, pod)) };
  const whole = (state: PodState, headline: string, ...causes: readonly (readonly Cause[])[]): Explanation => {
    return { namespace, pod: name, state, headline: oneLine(headline), causes: causes.flat(), notes };
  };
  const podName = `${namespace}/${name}`;
  if (!pod) {
    const causes = newestFirst([...refusalsOf(facts, nowMs), ...quotaEvents(facts)]);
    return whole(
      'absent',
      `There is no pod ${podName}.`,
      heldCauses(facts),
      causes.length > 0 ? causes : [nothingRefused(facts)],
    );
  }
  const [request, grant] = [REQUEST_ANNOTATION, GRANT_ANNOTATION].map((key) => pod.metadata.annotations?.[key]);
  if (request === undefined && grant === undefined) {
    return whole('no share', `${podName} asks for no share of a GPU (phase ${pod.status?.phase}).`, unread(pod));
  }
  const asked = request === undefined ? [] : [askedCause(request)];
  const stops = newestFirst([...stopsOf(pod, facts), ...quotaEvents(facts)]);
  const got = grant === undefined ? [] : grantCauses(grant, facts);
  const { nodeName } = pod.spec;
  if (pod.metadata.deletionTimestamp !== undefined) {
    const { deletionTimestamp, deletionGracePeriodSeconds: graceSeconds = 0 } = pod.metadata;
    const since = age(deletionTimestamp, nowMs + graceSeconds * 1000);
    return whole('terminating', `${podName} is being deleted, for ${since}.`, endingOf(pod, facts), stops);
  }
  if (hasEnded(pod)) {
    const { phase, reason, message } = pod.status ?? {};
    const why = reason === undefined ? '' : `: ${reason}${message ? `, ${message}` : ''}`;
    return whole('ended', `${podName} has ended (${phase}${why}).`, stops, got, asked);
  }
  if (!nodeName) {
    const since = age(pod.metadata.creationTimestamp, nowMs);
    const headline = `${podName} is pending for ${since}: no node was chosen for it yet.`;
    return whole(
      'pending',
      headline,
      pendingOf(pod, facts, nowMs),
      largestFree(facts.free).map((text) => ({ text })),
      asked,
    );
  }
  if (statusesOf(pod).some(({ state }) => state?.running)) {
    const headline = `${podName} runs on node ${nodeName}.`;
    return whole('running', headline, got, reliefCauses(facts), stops, nodeCauses(facts));
  }
  const headline = `${podName} is bound to node ${nodeName} and waits: none of its containers runs.`;
  const past = newestFirst([...mountCauses(facts), ...stops]);
  return whole('waiting', headline, waitingOf(pod), past, nodeCauses(facts), got);
}

/** Events of this pod, not of an earlier one with its name. The agent does not always know the UID. */
function isAbout({ involvedObject: { kind, uid } }: Event, pod: Pod | undefined): boolean {
  return kind === 'Pod' && (!pod || !uid || uid === pod.metadata.uid);
}

/** Lines for people. */
export function explanationLines({ headline, causes, notes }: Explanation): string[] {
  const lines = causes.map(({ at, text }) => `  ${at === undefined ? '' : `${at} `}${oneLine(text)}`);
  return [headline, ...lines, ...notes.map((note) => oneLine(note))];
}

/** Causes without a time are present facts. */
const timeOf = ({ at }: Cause): number => (at === undefined ? Number.POSITIVE_INFINITY : Date.parse(at));
const newestFirst = (causes: readonly Cause[]): Cause[] => causes.toSorted((a, b) => timeOf(b) - timeOf(a));
/** In whole seconds, as in most Kubernetes objects. */
const cause = (at: string | undefined, text: string): Cause =>
  at === undefined ? { text } : { at: at.replace(/\.\d+Z$/, 'Z'), text };

// --- the pod does not exist

/** A pod that was deleted by force holds its GPUs until the kubelet unpublishes its volume. */
function heldCauses({ held = [] }: PodFacts): Cause[] {
  return held.map(({ node, container, gpuUuid, grantedBytes, goneSince }) => ({
    at: goneSince.replace(/\.\d+Z$/, 'Z'),
    reason: 'held-by-gone-pod',
    text:
      `The agent of node ${node} found the pod gone and holds the grant of ${container}, ${mib(grantedBytes)} of ${gpuUuid}: ` +
      `the kubelet of ${node} has not unpublished its volume. It does once the containers have ended and it answers.`,
  }));
}

/** One per owner and reason: each Event's text has the name of another pod that was never created. */
function refusalsOf({ name, refusals = [] }: PodFacts, nowMs: number): Cause[] {
  const ours = refusals.filter(
    ({ involvedObject, message = '' }) => isOwner(involvedObject.name ?? '', name) && /cotenant/.test(message),
  );
  const alike = Object.groupBy(ours, ({ involvedObject: { kind, name: owner }, message = '' }) =>
    JSON.stringify([kind, owner, reasonOf(message).replace(/pods "[^"]*"/, '')]),
  );
  return Object.values(alike).flatMap((events = []) => {
    const [newest] = events.toSorted((a, b) => eventMs(b) - eventMs(a));
    if (!newest) return [];
    const { kind, name: owner } = newest.involvedObject;
    const times = events.reduce((sum, event) => sum + countOfEvent(event), 0);
    const first = events.map(({ firstTimestamp }) => firstTimestamp ?? '').toSorted()[0];
    const often = times > 1 ? `, ${times} times in ${age(first, nowMs)}` : '';
    const reason = reasonOf(newest.message ?? '');
    const down = /failed calling webhook/.test(reason)
      ? ' The webhook does not answer: pods that ask for a share are not created until it does.'
      : '';
    return cause(timeOfEvent(newest), `${kind} ${owner} could not create its pod${often}: ${sentence(reason)}${down}`);
  });
}

const eventMs = (event: Event): number => Date.parse(timeOfEvent(event) ?? '');

/** Without the prefix of controllers. */
const reasonOf = (message: string): string =>
  message
    .replace(/^\(combined from similar events\): /, '')
    .replace(/^(Error creating|Create Pod \S+ in StatefulSet \S+ failed error): /, '');

/** The owner's name is the beginning of its pods' names; users also name the owner's owner, such as the Deployment. */
const isOwner = (owner: string, asked: string): boolean =>
  owner !== '' && (asked === owner || asked.startsWith(`${owner}-`) || owner.startsWith(`${asked}-`));

function nothingRefused({ refusals }: PodFacts): Cause {
  const text =
    refusals === undefined
      ? 'It is not known whether one was refused.'
      : 'No Event reports a refused pod of that name; Events are kept for an hour unless the cluster is configured otherwise.';
  return { text };
}

// --- the pod requests no GPU

function unread(pod: Pod): Cause[] {
  const names = [...pod.spec.containers, ...(pod.spec.initContainers ?? [])].flatMap(({ resources }) =>
    Object.keys({ ...resources?.requests, ...resources?.limits }),
  );
  const keys = Object.keys({ ...pod.metadata.annotations, ...pod.metadata.labels });
  const [own, foreign] = [names.find(isOwnKey), names.find(isForeignResource) ?? keys.find(isForeignKey)];
  if (own !== undefined) {
    return [{ text: `It names ${own}, but has not passed the webhook, so it gets no share.` }];
  }
  return foreign === undefined ? [] : [{ text: `It names ${foreign}, whose dialect is not enabled in the webhook.` }];
}

// --- the pod is not scheduled

function askedCause(text: string): Cause {
  const request = parsePodRequest(text);
  return { text: request.ok ? `${askedByPod(request.value)}.` : 'What it asks for cannot be read.' };
}

function pendingOf(pod: Pod, { events, schedulers }: PodFacts, nowMs: number): Cause[] {
  const scheduler = pod.spec.schedulerName ?? DEFAULT_SCHEDULER;
  const scheduled = conditionOf(pod, 'PodScheduled');
  if (scheduled?.reason === 'SchedulingGated') {
    return [cause(scheduled.lastTransitionTime, 'It is held back by its own scheduling gates.')];
  }
  const [failed] = events
    .filter(({ reason }) => reason === 'FailedScheduling')
    .toSorted((a, b) => eventMs(b) - eventMs(a));
  const message = failed?.message ?? scheduled?.message;
  if (message !== undefined) {
    const at = (failed && timeOfEvent(failed)) ?? scheduled?.lastTransitionTime;
    return [cause(at, `The scheduler ${scheduler} finds no node: ${sentence(message)}`), ...noSlots(message)];
  }
  const since = age(pod.metadata.creationTimestamp, nowMs);
  const silent = { text: `The scheduler ${scheduler} has not reported on it for ${since}: is it running?` };
  const ready = schedulers?.filter((one) => conditionOf(one, 'Ready')?.status === 'True');
  if (ready?.length !== 0 || scheduler === DEFAULT_SCHEDULER) return [silent];
  const names = schedulers?.map(({ metadata }) => metadata.name).join(', ');
  return [silent, { text: `No pod of Cotenant's own scheduler is ready (${names || 'none exists'}).` }];
}

/** When the agent ends, the kubelet withdraws its extended resources, and kube-scheduler reports only that they are
 * missing. */
const noSlots = (message: string): Cause[] =>
  /Insufficient cotenant\.io\/gpu\b(?!-)/.test(message)
    ? [{ text: 'A node without cotenant.io/gpu shares no GPU, accepts no more tenants, or has no running agent.' }]
    : [];

// --- the pod is scheduled and not started

/** The kubelet's Events about Cotenant's volume: with the agent's message if it has one, else an explanation of the
 * kubelet's. */
function mountCauses({ events, pod }: PodFacts): Cause[] {
  const ours = events.filter(({ reason, message = '' }) => reason === 'FailedMount' && /cotenant/.test(message));
  const causes = ours.flatMap((event) => {
    const text = mountText(event.message ?? '', pod?.spec.nodeName ?? '');
    return text === undefined ? [] : [cause(timeOfEvent(event), text)];
  });
  return newestFirst(causes).slice(0, 1);
}

function mountText(message: string, node: string): string | undefined {
  const own = /desc = cotenant: (.*)$/s.exec(message)?.[1];
  if (own !== undefined) return `The node's agent refuses its volume: ${sentence(own)}`;
  if (/no CSIDriver object/.test(message)) {
    return `The cluster has no CSIDriver ${DRIVER}: is Cotenant installed, with volumes enabled?`;
  }
  if (/not found in the list of registered CSI drivers/.test(message)) {
    return `The agent has not announced itself to the kubelet of node ${node}: it is missing there, or just starts.`;
  }
  if (/code = Unavailable|connection refused|no such file/.test(message)) {
    return `The agent of node ${node} does not answer; the pod starts when it does.`;
  }
  // "timed out waiting" has no information beyond the other Events.
  return /timed out waiting/.test(message) ? undefined : `Its volume cannot be mounted: ${sentence(message)}`;
}

function nodeCauses({ pod, node, agents }: PodFacts): Cause[] {
  const name = pod?.spec.nodeName ?? '';
  const ready = node && conditionOf(node, 'Ready');
  const causes: Cause[] = [];
  if (ready && ready.status !== 'True') {
    causes.push(cause(ready.lastTransitionTime, `Node ${name} is not ready: ${sentence(ready.message ?? '')}`));
  }
  const down = agents && agentDown(agents, name);
  return down ? [...causes, down] : causes;
}

function agentDown(agents: readonly Pod[], node: string): Cause | undefined {
  if (agents.length === 0) return { text: `No agent of Cotenant runs on node ${node}.` };
  if (agents.some((agent) => conditionOf(agent, 'Ready')?.status === 'True')) return undefined;
  const [agent] = agents;
  const { lastTransitionTime, message } = (agent && conditionOf(agent, 'Ready')) ?? {};
  const text = `The agent of node ${node} (pod ${agent?.metadata.name}) is not ready${message ? `: ${message}` : ''}.`;
  return cause(lastTransitionTime, text);
}

function waitingOf(pod: Pod): Cause[] {
  return statusesOf(pod).flatMap(({ name, state }) => {
    const { reason, message } = state?.waiting ?? {};
    if (reason === undefined || USUAL_WAITS.has(reason)) return [];
    return [{ text: `Container ${name} waits: ${reason}${message ? `: ${sentence(message)}` : '.'}` }];
  });
}

// --- the pod runs or ran

function grantCauses(text: string, { pod, use, node }: PodFacts): Cause[] {
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
      const used = seen?.usedBytes === undefined ? '' : `; it uses ${mib(seen.usedBytes)}`;
      const fence = seen?.fence === undefined ? '' : `, and ${fenceText(seen.fence)}`;
      const off = container.memoryIsolation === 'off' ? '; memory isolation is off, as it requested' : '';
      const amounts = `${mib(gpu.memoryBytes)}${limit}${cores}`;
      return cause(at, `${container.name} was granted ${amounts} of ${where}${used}${fence}${off}.`);
    }),
  );
}

/** A program whose work waits for later work gets its share with less done in it. */
function reliefCauses({ namespace, name, use }: PodFacts): Cause[] {
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

const fenceText = (fence: string): string =>
  fence === 'none' ? 'its limit is not enforced' : `its limit is enforced by the ${fence}`;

/** How its containers ended, by their states. */
function stopsOf(pod: Pod, facts: PodFacts): Cause[] {
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
function quotaEvents({ events, pod }: PodFacts): Cause[] {
  const messages = (pod ? statusesOf(pod) : []).flatMap(({ state, lastState }) =>
    [state, lastState].flatMap((one) => one?.terminated?.message ?? []),
  );
  return events
    .filter((event) => isQuotaEvent(event) && !messages.some((text) => text.includes(event.message ?? '')))
    .map((event) => cause(timeOfEvent(event), `The agent: ${sentence(event.message ?? '')}`));
}

// --- the pod is terminating

function endingOf(pod: Pod, facts: PodFacts): Cause[] {
  const node = pod.spec.nodeName ?? '';
  const running = statusesOf(pod).filter(({ state }) => state?.running);
  const ours = pod.spec.volumes?.some(({ csi }) => csi?.driver === DRIVER) ?? false;
  const causes: Cause[] = [...nodeCauses(facts)];
  if (running.length > 0) {
    causes.push({ text: `Still running: ${running.map(({ name }) => name).join(', ')}.` });
  } else if (ours && facts.agents && agentDown(facts.agents, node)) {
    causes.push({
      text: 'Its containers have ended and use no GPU; the pod is removed when the agent is back and unmounts its volume.',
    });
  }
  const { finalizers = [] } = pod.metadata;
  if (finalizers.length > 0) causes.push({ text: `It is kept by the finalizers ${finalizers.join(', ')}.` });
  return causes;
}

/** A message of another program as a sentence. */
const sentence = (text: string): string => {
  const line = oneLine(text);
  return /[.!?…]$/.test(line) ? line : `${line}.`;
};

// Explains the state of a pod (`cotenant why`) from the pod, its Events, its node and other pods. Pure. Order: present
// state, causes with the newest first, the grant, the surroundings. collect.ts reads the objects.

import { GRANT_ANNOTATION, isOwnKey, REQUEST_ANNOTATION } from '../../api/names.ts';
import { parsePodRequest } from '../../api/request-annotation.ts';
import { ownsKey, ownsResource } from '../../request/dialects/dialect.ts';
import { FOREIGN_DIALECTS } from '../../request/dialects/index.ts';
import { age, askedByPod, mib, oneLine } from '../lib/text.ts';
import { grantCauses, neighborCauses, quotaEvents, reliefCauses, stopsOf } from './explain-started-pod.ts';
import { type Cause, cause, eventMs, newestFirst, type PodFacts, sentence } from './explanation.ts';
import { largestFree } from './inventory.ts';
import { conditionOf, countOfEvent, type Event, hasEnded, type Pod, statusesOf, timeOfEvent } from './objects.ts';

type PodState = 'absent' | 'no share' | 'pending' | 'waiting' | 'running' | 'ended' | 'terminating';
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
    return whole('running', headline, got, reliefCauses(facts), neighborCauses(facts), stops, nodeCauses(facts));
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

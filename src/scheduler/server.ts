// The HTTP API that kube-scheduler calls: /filter, /prioritize, /preempt and /bind of the scheduler extender protocol; and
// /fits for others, which only reads.
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import type { Logger } from '../common/logger.ts';
import { MIB } from '../common/quantity.ts';
import { BodyRefused, createBodyReader, type ReadBody } from '../serving/body-limit.ts';
import { sendJson } from '../serving/http-server.ts';
import type { Binder } from './bind.ts';
import type { Decider, Filtered } from './decisions/filter-and-score.ts';
import type { Fit, WantedPods } from './decisions/fits.ts';
import type { DecideInLag } from './decisions/watch-lag.ts';
import type { RoomMaker } from './evictions/make-room.ts';
import type { Nominations } from './evictions/nominations.ts';
import type { PreemptionPlanner } from './evictions/preemption.ts';
import {
  filterResult,
  preemptionResult,
  readBindingRequest,
  readFitsAsked,
  readNodesAsked,
  readPreemptionAsked,
} from './extender-api.ts';
import type { Gangs } from './groups/gangs.ts';
import type { PodGroups } from './groups/pod-groups.ts';
import type { Outcome, SchedulerMetrics, Verb } from './metrics.ts';

type ExtenderParts = {
  readonly decider: Decider;
  /** What would fit, by the allocations as they are. */
  readonly countFits: (wanted: WantedPods) => Fit | undefined;
  readonly binder: Binder;
  readonly planner: PreemptionPlanner;
  readonly roomMaker: RoomMaker;
  readonly podGroups: PodGroups;
  readonly gangs: Gangs;
  readonly nominations: Nominations;
  readonly decideInLag: DecideInLag;
  /** Nodes of an answer to filter, the best ones: kube-scheduler scores each of them by all its plugins. */
  readonly mostNodes: number;
  readonly metrics: SchedulerMetrics;
  /** What is missing until nodes and pods were read; then undefined. */
  readonly notReadyReason: () => string | undefined;
  readonly logger: Logger;
};

/** A list of 5,000 names is 150 kB; whole Nodes are ten times that and more, each. */
const BODY_LIMITS = { largestBytes: 8 * MIB, freeBytes: MIB, sharedBytes: 64 * MIB };
const VERBS: Readonly<Record<string, Verb>> = {
  '/filter': 'filter',
  '/prioritize': 'prioritize',
  '/preempt': 'preempt',
  '/bind': 'bind',
  '/fits': 'fits',
};

export function createExtender(parts: ExtenderParts): RequestListener {
  const read = createBodyReader(BODY_LIMITS);
  return async (request, response) => {
    const url = request.url ?? '';
    const verb = Object.hasOwn(VERBS, url) ? VERBS[url] : undefined;
    if (!verb || request.method !== 'POST') {
      sendJson(response, verb ? 405 : 404, { error: 'POST to /filter, /prioritize, /preempt, /bind or /fits' });
      return;
    }
    try {
      await answer(verb, parts, read, { request, response });
    } catch (error) {
      // The caller went away, or this is a fault: a broken answer must not be taken for a decision.
      if (!request.destroyed) parts.logger.error(`${url}: ${error instanceof Error ? error.stack : String(error)}`);
      if (response.headersSent) response.destroy();
      else sendJson(response, 500, { error: 'internal error; the log of the scheduler extender has the cause' });
    }
  };
}

type Exchange = { readonly request: IncomingMessage; readonly response: ServerResponse };

async function answer(verb: Verb, parts: ExtenderParts, read: ReadBody, { request, response }: Exchange) {
  let body: Buffer;
  try {
    body = await read(request, response);
  } catch (error) {
    if (!(error instanceof BodyRefused)) throw error;
    const hint = error.status === 413 ? '; set nodeCacheCapable for this extender' : '';
    response.setHeader('connection', 'close');
    sendJson(response, error.status, { error: `${error.message}${hint}` });
    parts.metrics.observe(verb, 'malformed', 0);
    return;
  }
  const startedMs = performance.now();
  const { outcome, status = 200, answer } = await answers[verb](parseJson(body), parts);
  sendJson(response, status, answer);
  parts.metrics.observe(verb, outcome, (performance.now() - startedMs) / 1000);
}

/** Undefined where it is not JSON, which no verb takes for its arguments. */
function parseJson(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString('utf8'));
  } catch {
    return undefined;
  }
}

const only = (node: string): Filtered => ({ feasible: [node], failed: {}, unresolvable: {} });

/** kube-scheduler counts equal reasons: one node has the sentence. */
function noneOf(names: readonly string[], because: string): Filtered {
  const failed = names.map((name, index) => [
    name,
    index === 0 ? because : 'node(s) where its pod group does not fit whole',
  ]);
  return { feasible: [], failed: Object.fromEntries(failed), unresolvable: {} };
}

type Answered = { readonly outcome: Outcome; readonly status?: number; readonly answer: object };

const answers: Readonly<Record<Verb, (value: unknown, parts: ExtenderParts) => Answered | Promise<Answered>>> = {
  async filter(value, parts) {
    const { decider, binder, roomMaker, podGroups, gangs, nominations, decideInLag, mostNodes, notReadyReason } = parts;
    const asked = readNodesAsked(value);
    if (!asked.ok) return { outcome: 'malformed', status: 400, answer: { Error: asked.error } };
    const notReady = notReadyReason();
    if (notReady !== undefined) return { outcome: 'failed', answer: { Error: notReady } };
    const { request: annotation, podUid, preempting, names } = asked.value;
    const completed = await podGroups.complete(asked.value.aspects);
    if (!completed.ok) return { outcome: 'failed', answer: { Error: completed.error } };
    const aspects = completed.value;
    const request = decider.read(annotation, aspects);
    if (!request.ok) return { outcome: 'refused', answer: { Error: request.error } };
    // Another extender, a volume or a quota may have refused the best nodes since.
    const most = binder.cachedRequest(podUid)?.hasOnlyBest ? Number.POSITIVE_INFINITY : mostNodes;
    const place = () => gangs.place({ podUid, request: request.value, aspects }, names);
    const decide = async (): Promise<Filtered> => {
      let held = place();
      if (held?.ok && !(await gangs.confirm(podUid))) held = place();
      if (held) return held.ok ? only(held.value) : noneOf(names, held.error);
      return nominations.without(preempting, () => {
        const fitting = decider.filter(request.value, names, most);
        if (fitting.feasible.length > 0 && !roomMaker.holds(podUid)) return fitting;
        // kube-scheduler binds to the nominated node, and bind evicts there.
        const node = roomMaker.nominate(preempting, request.value, names);
        return node === undefined ? fitting : only(node);
      });
    };
    const filtered = await decideInLag(decide, ({ feasible }) => feasible.length === 0);
    if (annotation !== undefined) {
      const hasOnlyBest = filtered.feasible.length === most;
      binder.cacheRequest(podUid, { text: annotation, aspects, priority: preempting.priority, hasOnlyBest });
    }
    const outcome = filtered.feasible.length > 0 ? 'ok' : 'refused';
    return { outcome, answer: filterResult(filtered, asked.value) };
  },
  prioritize(value, { decider, nominations, notReadyReason }) {
    const asked = readNodesAsked(value);
    if (!asked.ok) return { outcome: 'malformed', status: 400, answer: { error: asked.error } };
    // The protocol has no field for an error here.
    const notReady = notReadyReason();
    if (notReady !== undefined) return { outcome: 'failed', status: 503, answer: { error: notReady } };
    const request = decider.read(asked.value.request, asked.value.aspects);
    if (!request.ok) return { outcome: 'failed', status: 503, answer: { error: request.error } };
    const { preempting, names } = asked.value;
    const answer = nominations.without(preempting, () => decider.prioritize(request.value, names));
    return { outcome: 'ok', answer };
  },
  preempt(value, { decider, planner, nominations, notReadyReason }) {
    const asked = readPreemptionAsked(value);
    if (!asked.ok) return { outcome: 'malformed', status: 400, answer: { error: asked.error } };
    const notReady = notReadyReason();
    if (notReady !== undefined) return { outcome: 'failed', status: 503, answer: { error: notReady } };
    const request = decider.read(asked.value.request);
    if (!request.ok) return { outcome: 'failed', status: 503, answer: { error: request.error } };
    const { pod, victims: chosen } = asked.value;
    const victims = nominations.without(pod, () => planner.complete(pod, request.value, chosen));
    const outcome = Object.keys(victims).length > 0 ? 'ok' : 'refused';
    return { outcome, answer: preemptionResult(victims, asked.value) };
  },
  async bind(value, { binder, notReadyReason }) {
    const asked = readBindingRequest(value);
    if (!asked.ok) return { outcome: 'malformed', status: 400, answer: { Error: asked.error } };
    const notReady = notReadyReason();
    if (notReady !== undefined) return { outcome: 'failed', answer: { Error: notReady } };
    const bound = await binder.bind(asked.value);
    if (bound.outcome === 'bound') return { outcome: 'ok', answer: {} };
    return { outcome: bound.outcome, answer: { Error: bound.because } };
  },
  fits(value, { decider, countFits, notReadyReason }) {
    const asked = readFitsAsked(value);
    if (!asked.ok) return { outcome: 'malformed', status: 400, answer: { error: asked.error } };
    const notReady = notReadyReason();
    if (notReady !== undefined) return { outcome: 'failed', status: 503, answer: { error: notReady } };
    const { request: annotation, aspects, replicas, nodes } = asked.value;
    const request = decider.read(annotation, aspects);
    if (!request.ok) return { outcome: 'refused', status: 422, answer: { error: request.error } };
    return { outcome: 'ok', answer: { ...countFits({ request: request.value, replicas, ...(nodes && { nodes }) }) } };
  },
};

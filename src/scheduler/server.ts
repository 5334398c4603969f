// The HTTP API that kube-scheduler calls: /filter, /prioritize and /bind of the scheduler extender protocol.
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import { BodyRefused, createBodyReader, type ReadBody } from '../serving/body-limit.ts';
import { sendJson } from '../serving/http-server.ts';
import type { Binder } from './bind.ts';
import { filterResult, readBindingRequest, readNodesAsked } from './extender-api.ts';
import type { Decider } from './filter-and-score.ts';
import type { Outcome, SchedulerMetrics, Verb } from './metrics.ts';

export type ExtenderParts = {
  readonly decider: Decider;
  readonly binder: Binder;
  readonly metrics: SchedulerMetrics;
  /** What is missing until nodes and pods were read; then undefined. */
  readonly notReadyReason: () => string | undefined;
  readonly log: (line: string) => void;
};

const MIB = 2 ** 20;
/** A list of 5,000 names is 150 kB; whole Nodes are ten times that and more, each. */
const BODY_LIMITS = { largestBytes: 8 * MIB, freeBytes: MIB, sharedBytes: 64 * MIB };
const VERBS: Readonly<Record<string, Verb>> = { '/filter': 'filter', '/prioritize': 'prioritize', '/bind': 'bind' };

export function createExtender(parts: ExtenderParts): RequestListener {
  const read = createBodyReader(BODY_LIMITS);
  return async (request, response) => {
    const url = request.url ?? '';
    const verb = Object.hasOwn(VERBS, url) ? VERBS[url] : undefined;
    if (!verb || request.method !== 'POST') {
      sendJson(response, verb ? 405 : 404, { error: 'POST to /filter, /prioritize or /bind' });
      return;
    }
    try {
      await answer(verb, parts, read, { request, response });
    } catch (error) {
      // The caller went away, or this is a fault: a broken answer must not be taken for a decision.
      if (!request.destroyed) parts.log(`${url}: ${error instanceof Error ? error.stack : String(error)}`);
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

type Answered = { readonly outcome: Outcome; readonly status?: number; readonly answer: object };

const answers: Readonly<Record<Verb, (value: unknown, parts: ExtenderParts) => Answered | Promise<Answered>>> = {
  filter(value, { decider, binder, notReadyReason }) {
    const asked = readNodesAsked(value);
    if ('wrong' in asked) return { outcome: 'malformed', status: 400, answer: { Error: asked.wrong } };
    const missing = notReadyReason();
    if (missing !== undefined) return { outcome: 'failed', answer: { Error: missing } };
    const shape = decider.read(asked.request);
    if ('wrong' in shape) return { outcome: 'refused', answer: { Error: shape.wrong } };
    if (asked.request !== undefined) binder.remember(asked.podUid, asked.request);
    const filtered = decider.filter(shape, asked.names);
    const outcome = filtered.feasible.length > 0 ? 'ok' : 'refused';
    return { outcome, answer: filterResult(filtered, asked) };
  },
  prioritize(value, { decider, notReadyReason }) {
    const asked = readNodesAsked(value);
    const wrong = 'wrong' in asked ? asked.wrong : undefined;
    if ('wrong' in asked) return { outcome: 'malformed', status: 400, answer: { error: wrong } };
    const shape = decider.read(asked.request);
    const missing = notReadyReason() ?? ('wrong' in shape ? shape.wrong : undefined);
    // The protocol has no place for an error here.
    if (missing !== undefined || 'wrong' in shape)
      return { outcome: 'failed', status: 503, answer: { error: missing } };
    return { outcome: 'ok', answer: decider.prioritize(shape, asked.names) };
  },
  async bind(value, { binder, notReadyReason }) {
    const asked = readBindingRequest(value);
    if ('wrong' in asked) return { outcome: 'malformed', status: 400, answer: { Error: asked.wrong } };
    const missing = notReadyReason();
    if (missing !== undefined) return { outcome: 'failed', answer: { Error: missing } };
    const bound = await binder.bind(asked);
    if (bound.outcome === 'bound') return { outcome: 'ok', answer: {} };
    return { outcome: bound.outcome, answer: { Error: bound.because } };
  },
};

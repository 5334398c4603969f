// Pods for the tests of requests: the smallest ones that hold what a case is about.

import * as v from 'valibot';
import type { PodRequest } from '../../../src/api/request.ts';
import type { Checked } from '../../../src/common/problem.ts';
import { formatProblem } from '../../../src/common/problem.ts';
import { ok } from '../../../src/common/result.ts';
import { check } from '../../../src/common/schema.ts';
import { readPodRequest } from '../../../src/request/read-pod.ts';
import { applyRules, DEFAULT_RULES, type Rules, rulesSettings } from '../../../src/request/rules/namespace-rules.ts';

/** The settings of a namespace, as the webhook reads them from its configuration. */
export function parseRules(value: unknown, path: string, base: Rules): Checked<Rules> {
  const read = check(v.nullish(rulesSettings), value, path);
  return read.ok ? ok(applyRules(read.value, base)) : read;
}

/** Rules with both foreign dialects on, and `changes` in the form of the operator's settings. */
export function rules(changes: object = {}): Rules {
  const read = parseRules({ dialects: ['ack', 'metagpu'], ...changes }, 'rules', DEFAULT_RULES);
  if (!read.ok) throw new Error(read.error.map(formatProblem).join('\n'));
  return read.value;
}

/** A pod of one container named main with these limits, and the requests that the API server would fill in. */
export function podWith(limits: object, more: { labels?: object; annotations?: object; env?: object[] } = {}): object {
  const { labels, annotations, env } = more;
  const container = { name: 'main', ...(env && { env }), resources: { limits, requests: { ...limits } } };
  return {
    metadata: { ...(labels && { labels }), ...(annotations && { annotations }) },
    spec: { containers: [container] },
  };
}

/** What main asks for, or every problem in words: short enough for a table. */
export function outcome(pod: object, under: Rules): unknown {
  const reading = readPodRequest(pod, under);
  if (reading.kind === 'none') return 'none';
  if (reading.kind === 'refused') return reading.problems.map(formatProblem);
  return reading.request.containers[0]?.gpus;
}

/** The request of a pod that has one; throws with what is wrong otherwise. */
export function requestOf(pod: object, under: Rules = rules()): PodRequest {
  const reading = readPodRequest(pod, under);
  if (reading.kind === 'request') return reading.request;
  throw new Error(reading.kind === 'none' ? 'asks for nothing' : reading.problems.map(formatProblem).join('\n'));
}

/** A container that asks for a GiB of one GPU. */
export const share = (name: string, more: object = {}): object => ({
  name,
  resources: { limits: { 'cotenant.io/gpu-memory': '1Gi' } },
  ...more,
});

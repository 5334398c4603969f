// Pods for the tests of requests: the smallest ones that hold what a case is about.

import type { PodRequest } from '../../../src/api/request.ts';
import { formatProblem } from '../../../src/common/problem.ts';
import { readPodRequest } from '../../../src/request/read-pod.ts';
import { DEFAULT_RULES, parseRules, type Rules } from '../../../src/request/rules/namespace-rules.ts';

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

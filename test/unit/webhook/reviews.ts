// Reviews and configurations for the tests of admission, and what came of a review in a form that is easy to compare.
import { Buffer } from 'node:buffer';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { apply_patch } from 'jsonpatch';
import { uuidsAnnotation } from '../../../src/api/names.ts';
import { type JsonObject, objectAt } from '../../../src/common/json.ts';
import { formatProblem } from '../../../src/common/problem.ts';
import { type Route, review } from '../../../webhook/admission-review.ts';
import type { Operation } from '../../../webhook/apply-patch.ts';
import { parseConfiguration, type WebhookConfiguration } from '../../../webhook/config.ts';

export const FIXTURES = join(import.meta.dirname, '../../fixtures/admission');

/** A configuration with both dialects on, and `settings` as an operator writes them. */
export function configured(settings: object = {}): WebhookConfiguration {
  const read = parseConfiguration({ rules: { dialects: ['ack', 'metagpu'] }, ...settings });
  if (!read.ok) throw new Error(read.error.map(formatProblem).join('\n'));
  return read.value;
}

export function fixture(name: string): JsonObject {
  return JSON.parse(readFileSync(join(FIXTURES, `${name}.json`), 'utf8'));
}

/** A review of the creation of `pod`, with other fields of the request over it. */
export function creation(pod: unknown, more: object = {}): JsonObject {
  const resource = { group: '', version: 'v1', resource: 'pods' };
  const request = { uid: 'u-1', resource, operation: 'CREATE', namespace: 'team-a', object: pod, ...more };
  return { apiVersion: 'admission.k8s.io/v1', kind: 'AdmissionReview', request };
}

export type Answered = {
  outcome: string;
  allowed: boolean;
  /** `code reason: message` of a denial. */
  denial: string | undefined;
  patch: Operation[];
  warnings: string[];
  /** The pod after the patch. */
  pod: JsonObject;
};

/** Sends one review through. Fails on an answer that is not an AdmissionReview of v1 with the uid that was sent. */
export function answerOf(body: JsonObject, configuration = configured(), route: Route = 'mutate'): Answered {
  const reviewed = review(route, body, configuration);
  if (reviewed.outcome === 'malformed') throw new Error(reviewed.message);
  const { apiVersion, kind, response } = reviewed.answer as { apiVersion: string; kind: string; response: Response };
  const request = body.request as { uid: string; object: JsonObject };
  if (apiVersion !== 'admission.k8s.io/v1' || kind !== 'AdmissionReview' || response.uid !== request.uid) {
    throw new Error(`no answer to this review: ${JSON.stringify(reviewed.answer)}`);
  }
  const { status } = response;
  const patch: Operation[] = response.patch ? JSON.parse(Buffer.from(response.patch, 'base64').toString()) : [];
  if (response.patch && response.patchType !== 'JSONPatch') throw new Error('a patch without its type');
  return {
    outcome: reviewed.outcome,
    allowed: response.allowed,
    denial: status && `${status.code} ${status.reason}: ${status.message}`,
    patch,
    warnings: response.warnings ?? [],
    pod: apply_patch(request.object, [...patch]),
  };
}

type Response = {
  uid: string;
  allowed: boolean;
  patchType?: string;
  patch?: string;
  warnings?: string[];
  status?: { code: number; reason: string; message: string };
};

/** A pod of one container named main that asks for one GiB, with parts laid over pod, spec and container. */
export function sharePod(container: object = {}, spec: object = {}, metadata: object = {}): JsonObject {
  const resources = { limits: { 'cotenant.io/gpu-memory': '1Gi' }, requests: { 'cotenant.io/gpu-memory': '1Gi' } };
  const main = { name: 'main', image: 'registry.example.com/app:1', resources, ...container };
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'p', ...metadata },
    spec: { containers: [main], schedulerName: 'default-scheduler', ...spec },
  };
}

type Variable = { name: string; value?: string; valueFrom?: object };
type Container = {
  name: string;
  env?: Variable[];
  volumeMounts?: { mountPath: string; name: string }[];
  resources?: { limits?: object; requests?: object };
};
export type Spec = { containers: Container[]; initContainers?: Container[]; volumes: object[]; schedulerName: string };

export const specOf = (pod: object) => objectAt(pod, 'spec') as unknown as Spec;
export const mainOf = (pod: object) => specOf(pod).containers.find(({ name }) => name === 'main') as Container;
/** What comes of the creation of a pod. */
export const patched = (pod: object, configuration = configured()) => answerOf(creation(pod), configuration);
export const granted = (container: string): Variable => ({
  name: 'NVIDIA_VISIBLE_DEVICES',
  valueFrom: { fieldRef: { apiVersion: 'v1', fieldPath: `metadata.annotations['${uuidsAnnotation(container)}']` } },
});
export const capabilities: Variable = { name: 'NVIDIA_DRIVER_CAPABILITIES', value: 'compute,utility' };

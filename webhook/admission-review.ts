// Answers an AdmissionReview: which checks and changes the request gets, and the response with its patch, warnings and
// status. Pure, and never throws: a fault of the webhook refuses the pod without a stack trace. HTTP is in server.ts.
import { Buffer } from 'node:buffer';
import { isGrantKey } from '../src/api/names.ts';
import { field, isObject, type JsonObject, objectAt, textAt } from '../src/common/json.ts';
import { formatProblem, type Problem } from '../src/common/problem.ts';
import type { Operation } from './apply-patch.ts';
import type { WebhookConfiguration } from './config.ts';
import { diff, verifyPatch } from './json-patch.ts';
import { fieldPath } from './json-pointer.ts';
import { mutatePod } from './mutate.ts';
import { checkUpdate, reviewEphemeral } from './validate-update.ts';

export type Route = 'mutate' | 'validate';
export type Outcome = 'allowed' | 'patched' | 'denied' | 'malformed' | 'internal';

/** `answer` is the whole AdmissionReview. A request without a uid cannot be answered: `malformed`, with a text for HTTP
 * 400. */
type Reviewed = Answered | { readonly outcome: 'malformed'; readonly message: string };

/** `fault` is for the operator's log: a fault of the webhook itself. The tenant never sees it. */
type Answered = {
  readonly outcome: Exclude<Outcome, 'malformed'>;
  readonly answer: JsonObject;
  /** Of a pod that was patched or refused: what the operator's log has of it. */
  readonly decision?: Decision;
  /** Of a denial: all that is wrong, also what the answer has no place for. */
  readonly problems?: readonly Problem[];
  readonly fault?: string;
};

export type Decision = {
  /** `namespace/name`; of a pod that has no name yet `namespace/generateName*`. Absent where live rules were refused. */
  readonly pod?: string;
  readonly message: string;
  readonly code: 'patched' | 'refused';
};

type Verdict =
  | { readonly kind: 'allowed'; readonly warnings: readonly string[] }
  | {
      readonly kind: 'patched';
      readonly before: JsonObject;
      readonly after: JsonObject;
      /** From `before` to `after`; never empty. */
      readonly operations: readonly Operation[];
      readonly record?: string;
      readonly warnings: readonly string[];
    }
  | { readonly kind: 'denied'; readonly problems: readonly Problem[] };

const API_VERSION = 'admission.k8s.io/v1';
// kubectl prints each warning on its own; the API server cuts longer ones and drops more of them.
const LONGEST_WARNING = 120;
const MOST_WARNINGS = 8;
const MOST_PROBLEMS = 10;
const ALLOWED: Verdict = { kind: 'allowed', warnings: [] };

/** Answers one review. `body` is parsed JSON of any shape. */
export function review(route: Route, body: unknown, configuration: WebhookConfiguration): Reviewed {
  const request = field(body, 'request');
  const uid = textAt(request, 'uid');
  if (!isObject(request) || uid === undefined || uid === '') {
    return { outcome: 'malformed', message: 'request.uid: is missing; send an AdmissionReview of admission.k8s.io/v1' };
  }
  try {
    const version = field(body, 'apiVersion');
    if (version !== API_VERSION || field(body, 'kind') !== 'AdmissionReview') {
      const message = `apiVersion: ${JSON.stringify(version ?? null)?.slice(0, 80)} is not served; send AdmissionReview of ${API_VERSION}`;
      return { outcome: 'denied', answer: denial(uid, 400, 'BadRequest', message) };
    }
    const verdict = decide(route, request, configuration);
    const answered = toAnswer(uid, verdict);
    const decision = decisionOf(request, verdict, answered);
    return decision ? { ...answered, decision } : answered;
  } catch (error) {
    const fault = error instanceof Error ? (error.stack ?? error.message) : String(error);
    const message = 'internal: the webhook failed on this pod; its log has the reason';
    return { outcome: 'internal', answer: denial(uid, 500, 'InternalError', message), fault };
  }
}

function decide(route: Route, request: JsonObject, configuration: WebhookConfiguration): Verdict {
  const resource = field(request, 'resource');
  if ((textAt(resource, 'group') ?? '') !== '') return ALLOWED;
  if (textAt(resource, 'resource') === 'configmaps') return decideRules(request, configuration);
  if (textAt(resource, 'resource') !== 'pods') return ALLOWED;
  const pod = field(request, 'object');
  const subresource = textAt(request, 'subResource') ?? '';
  switch (field(request, 'operation')) {
    case 'CREATE':
      if (subresource !== '') return ALLOWED;
      return isObject(pod) ? decideCreate(route, request, pod, configuration) : missingPod('request.object');
    case 'UPDATE': {
      const before = field(request, 'oldObject');
      if (!isObject(pod)) return missingPod('request.object');
      if (!isObject(before)) return missingPod('request.oldObject');
      const user = textAt(field(request, 'userInfo'), 'username');
      const problems = route === 'validate' ? checkUpdate(before, pod, user, configuration) : [];
      if (subresource !== 'ephemeralcontainers') return problems.length > 0 ? { kind: 'denied', problems } : ALLOWED;
      const ephemeral = reviewEphemeral(before, pod);
      const all = [...problems, ...ephemeral.problems];
      return all.length > 0 ? { kind: 'denied', problems: all } : change(route, pod, ephemeral.pod, { warnings: [] });
    }
    default:
      return ALLOWED;
  }
}

/** The API server sends only the ConfigMap of live rules; without one its condition is left of an earlier release. */
function decideRules(request: JsonObject, { checkLiveRules }: WebhookConfiguration): Verdict {
  const object = field(request, 'object');
  if (!checkLiveRules || !isObject(object)) return ALLOWED;
  const problems = checkLiveRules(object);
  return problems.length > 0 ? { kind: 'denied', problems } : ALLOWED;
}

function decideCreate(
  route: Route,
  request: JsonObject,
  pod: JsonObject,
  configuration: WebhookConfiguration,
): Verdict {
  const mutation = mutatePod(pod, textAt(request, 'namespace'), configuration);
  // A static pod with a grant is refused all the same: the scheduler would count the grant.
  const hasGrant = Object.keys(objectAt(field(pod, 'metadata'), 'annotations')).some(isGrantKey);
  if (isMirrorPod(request, pod) && mutation.kind !== 'untouched' && !hasGrant) {
    return { kind: 'allowed', warnings: ['static pods get no share of a GPU: the node refuses the volume'] };
  }
  switch (mutation.kind) {
    case 'refused':
      return { kind: 'denied', problems: mutation.problems };
    case 'untouched':
      return { kind: 'allowed', warnings: route === 'mutate' ? mutation.warnings : [] };
    case 'patched':
      return change(route, pod, mutation.pod, { record: mutation.record, warnings: mutation.warnings });
  }
}

/**
 * Patches the pod, or refuses it on the route that runs after all mutations: a pod that would still be patched there
 * did not pass through the mutating webhook, or was changed since.
 */
function change(
  route: Route,
  before: JsonObject,
  after: JsonObject,
  more: { readonly record?: string; readonly warnings: readonly string[] },
): Verdict {
  const operations = diff(before, after);
  const [first] = operations;
  if (first === undefined) return route === 'mutate' ? { kind: 'allowed', warnings: more.warnings } : ALLOWED;
  if (route === 'mutate') return { kind: 'patched', before, after, operations, ...more };
  const wrong = 'is not what the mutating webhook of Cotenant writes';
  const right = 'have that webhook called for this pod, after others that change it (reinvocationPolicy: IfNeeded)';
  return { kind: 'denied', problems: [{ kind: 'forbidden', path: fieldPath(first.path), wrong, right }] };
}

/**
 * A mirror pod: the API's image of a static pod, created by the kubelet. The user is checked because any tenant can
 * write the annotation. Refusing it would only hide a pod that runs anyway, without a share, because it never gets its
 * volume.
 */
function isMirrorPod(request: JsonObject, pod: JsonObject): boolean {
  const user = field(request, 'userInfo');
  const groups = field(user, 'groups');
  return (
    field(field(field(pod, 'metadata'), 'annotations'), 'kubernetes.io/config.mirror') !== undefined &&
    (textAt(user, 'username') ?? '').startsWith('system:node:') &&
    Array.isArray(groups) &&
    groups.includes('system:nodes')
  );
}

function missingPod(path: string): Verdict {
  return { kind: 'denied', problems: [{ kind: 'invalid', path, wrong: 'is missing', right: 'send the pod' }] };
}

function toAnswer(uid: string, verdict: Verdict): Answered {
  switch (verdict.kind) {
    case 'denied': {
      const [code, reason] = verdict.problems.every(({ kind }) => kind === 'invalid')
        ? ([422, 'Invalid'] as const)
        : ([403, 'Forbidden'] as const);
      const { problems } = verdict;
      return { outcome: 'denied', answer: denial(uid, code, reason, listProblems(problems)), problems };
    }
    case 'allowed':
      return { outcome: 'allowed', answer: answer({ uid, allowed: true, ...withWarnings(verdict.warnings) }) };
    case 'patched': {
      const { before, after, operations, record } = verdict;
      const verified = verifyPatch(before, operations, after);
      // It is never sent: the webhook is at fault.
      if (!verified.ok) {
        const fault = `internal: ${verified.error}`;
        return { outcome: 'internal', answer: denial(uid, 500, 'InternalError', fault), fault };
      }
      const response = {
        uid,
        allowed: true,
        patchType: 'JSONPatch',
        patch: encode(operations),
        ...withWarnings(verdict.warnings),
        ...(record !== undefined && { auditAnnotations: { request: record } }),
      };
      return { outcome: 'patched', answer: answer(response) };
    }
  }
}

function decisionOf(request: JsonObject, verdict: Verdict, { outcome }: Answered): Decision | undefined {
  const dry = field(request, 'dryRun') === true ? ', in a dry run' : '';
  const pod = nameOf(request);
  if (verdict.kind === 'denied')
    return { ...pod, code: 'refused', message: `refused${dry}: ${listProblems(verdict.problems)}` };
  if (outcome !== 'patched' || verdict.kind !== 'patched') return undefined;
  return { ...pod, code: 'patched', message: `patched${dry}: ${verdict.record ?? 'a debug container gets no GPU'}` };
}

function nameOf(request: JsonObject): Pick<Decision, 'pod'> {
  if (textAt(field(request, 'resource'), 'resource') !== 'pods') return {};
  const metadata = field(field(request, 'object'), 'metadata');
  const name = textAt(request, 'name') || textAt(metadata, 'name') || `${textAt(metadata, 'generateName') ?? ''}*`;
  return { pod: `${textAt(request, 'namespace') ?? ''}/${name}` };
}

function encode(operations: readonly Operation[]): string {
  return Buffer.from(JSON.stringify(operations)).toString('base64');
}

function answer(response: JsonObject): JsonObject {
  return { apiVersion: API_VERSION, kind: 'AdmissionReview', response };
}

function denial(uid: string, code: number, reason: string, message: string): JsonObject {
  return answer({ uid, allowed: false, status: { status: 'Failure', code, reason, message } });
}

function listProblems(problems: readonly Problem[]): string {
  const shown = problems.slice(0, MOST_PROBLEMS).map(formatProblem);
  const more = problems.length - shown.length;
  return more > 0 ? `${shown.join(' | ')} | and ${more} more` : shown.join(' | ');
}

function withWarnings(warnings: readonly string[]): JsonObject {
  if (warnings.length === 0) return {};
  const shown = warnings.length > MOST_WARNINGS ? warnings.slice(0, MOST_WARNINGS - 1) : warnings;
  const more = warnings.length - shown.length;
  const all = more > 0 ? [...shown, `and ${more} more warnings`] : shown;
  return {
    warnings: all.map((text) => (text.length <= LONGEST_WARNING ? text : `${text.slice(0, LONGEST_WARNING - 3)}...`)),
  };
}

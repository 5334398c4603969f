// AdmissionReview in, AdmissionReview out: which request it is, which check or change it gets, how the answer is written.
// Pure, and never throws: a fault of ours is a refusal that says so, without a trace. HTTP is server.ts's business.
import { Buffer } from 'node:buffer';
import { field, isObject, type JsonObject, objectAt, textAt } from '../src/common/json.ts';
import { formatProblem, invalid, type Problem } from '../src/common/problem.ts';
import type { WebhookConfiguration } from './config.ts';
import { diff, fieldPath, type Operation, prototypeKeyOnTheWay, prove } from './json-patch.ts';
import { injectPod } from './mutate.ts';
import { checkGrantKeys } from './validate-pod.ts';
import { checkUpdate, reviewEphemeral } from './validate-update.ts';

export type Route = 'mutate' | 'validate';
export type Outcome = 'allowed' | 'patched' | 'denied' | 'malformed' | 'internal';

/** `answer` is the whole AdmissionReview. Without a uid there is nobody to answer: `malformed`, with a text for a 400. */
export type Reviewed = Answered | { readonly outcome: 'malformed'; readonly message: string };

/** `fault` is what the operator's log gets about a fault of ours; the tenant never sees it. */
type Answered = {
  readonly outcome: Exclude<Outcome, 'malformed'>;
  readonly answer: JsonObject;
  readonly fault?: string;
};

type Verdict =
  | { readonly kind: 'allowed'; readonly warnings: readonly string[] }
  | {
      readonly kind: 'patched';
      readonly before: JsonObject;
      readonly after: JsonObject;
      readonly record?: string;
      readonly warnings: readonly string[];
    }
  | { readonly kind: 'denied'; readonly problems: readonly Problem[] };

const API_VERSION = 'admission.k8s.io/v1';
// kubectl prints each warning on its own; the API server cuts what is longer and drops what is more.
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
    return write(uid, judge(route, request, configuration));
  } catch (error) {
    const fault = error instanceof Error ? (error.stack ?? error.message) : String(error);
    const message = 'internal: the webhook could not judge this pod; the operator finds the reason in its log';
    return { outcome: 'internal', answer: denial(uid, 500, 'InternalError', message), fault };
  }
}

function judge(route: Route, request: JsonObject, configuration: WebhookConfiguration): Verdict {
  const resource = field(request, 'resource');
  const operation = field(request, 'operation');
  if ((textAt(resource, 'group') ?? '') !== '' || textAt(resource, 'resource') !== 'pods') return ALLOWED;
  const pod = field(request, 'object');
  const subresource = textAt(request, 'subResource') ?? '';
  if (operation === 'CREATE' && subresource === '') {
    return isObject(pod) ? judgeCreate(route, request, pod, configuration) : noPod('request.object');
  }
  if (operation !== 'UPDATE') return ALLOWED;
  const before = field(request, 'oldObject');
  if (!isObject(pod)) return noPod('request.object');
  if (!isObject(before)) return noPod('request.oldObject');
  const user = textAt(field(request, 'userInfo'), 'username');
  const problems = route === 'validate' ? checkUpdate(before, pod, user, configuration) : [];
  if (subresource !== 'ephemeralcontainers') return problems.length > 0 ? { kind: 'denied', problems } : ALLOWED;
  const ephemeral = reviewEphemeral(before, pod);
  if (problems.length + ephemeral.problems.length > 0) {
    return { kind: 'denied', problems: [...problems, ...ephemeral.problems] };
  }
  const verdict: Verdict = { kind: 'patched', before: pod, after: ephemeral.pod, warnings: [] };
  return route === 'mutate' ? verdict : unlessChanged(verdict);
}

function judgeCreate(route: Route, request: JsonObject, pod: JsonObject, configuration: WebhookConfiguration): Verdict {
  const injection = injectPod(pod, textAt(request, 'namespace'), configuration);
  // But never with a grant, which the scheduler would count.
  const forged = checkGrantKeys(objectAt(field(pod, 'metadata'), 'annotations'));
  if (isMirrorPod(request, pod) && injection.kind !== 'untouched' && forged.length === 0) {
    return { kind: 'allowed', warnings: ['static pods get no share of a GPU: the node refuses the volume'] };
  }
  if (injection.kind === 'refused') return { kind: 'denied', problems: injection.problems };
  if (injection.kind === 'untouched')
    return { kind: 'allowed', warnings: route === 'mutate' ? injection.warnings : [] };
  const { pod: after, record, warnings } = injection;
  const verdict: Verdict = { kind: 'patched', before: pod, after, record, warnings };
  return route === 'mutate' ? verdict : unlessChanged(verdict);
}

/** The last word, after every mutation: a pod that would still be patched now did not pass through us, or was changed since. */
function unlessChanged(verdict: Extract<Verdict, { kind: 'patched' }>): Verdict {
  const [first] = diff(verdict.before, verdict.after);
  if (first === undefined) return ALLOWED;
  const path = fieldPath(first.path);
  const wrong = 'is not what the mutating webhook of Cotenant leaves there';
  const right = 'have that webhook called for this pod, after others that change it (reinvocationPolicy: IfNeeded)';
  return { kind: 'denied', problems: [{ kind: 'forbidden', path, wrong, right }] };
}

/**
 * The API's image of a static pod, written by the kubelet. Told by who sends it: the annotation alone could be anybody's.
 * Refusing it would only hide a pod that runs anyway, without a share, since it never gets its volume.
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

function noPod(path: string): Verdict {
  return { kind: 'denied', problems: [{ kind: 'invalid', path, wrong: 'is missing', right: 'send the pod' }] };
}

function write(uid: string, verdict: Verdict): Answered {
  switch (verdict.kind) {
    case 'denied': {
      const [code, reason] = verdict.problems.every(({ kind }) => kind === 'invalid')
        ? ([422, 'Invalid'] as const)
        : ([403, 'Forbidden'] as const);
      return { outcome: 'denied', answer: denial(uid, code, reason, listProblems(verdict.problems)) };
    }
    case 'allowed':
      return { outcome: 'allowed', answer: answer({ uid, allowed: true, ...withWarnings(verdict.warnings) }) };
    case 'patched': {
      const operations = diff(verdict.before, verdict.after);
      const warnings = withWarnings(verdict.warnings);
      if (operations.length === 0) return { outcome: 'allowed', answer: answer({ uid, allowed: true, ...warnings }) };
      const proof = prove(verdict.before, operations, verdict.after);
      if (!proof.ok) return unproven(uid, verdict.before, operations, proof.why);
      const audit = verdict.record === undefined ? {} : { auditAnnotations: { request: verdict.record } };
      return {
        outcome: 'patched',
        answer: answer({
          uid,
          allowed: true,
          patchType: 'JSONPatch',
          patch: encode(operations),
          ...warnings,
          ...audit,
        }),
      };
    }
  }
}

/** A patch that its proof refutes is never sent. Either a key of the pod stood in the way of the proof, or we are at fault. */
function unproven(uid: string, pod: JsonObject, operations: readonly Operation[], why: string): Answered {
  const hostile = prototypeKeyOnTheWay(pod, operations);
  if (hostile === undefined) {
    const fault = `internal: ${why}`;
    return { outcome: 'internal', answer: denial(uid, 500, 'InternalError', fault), fault };
  }
  const problem = invalid(hostile, undefined, 'is no name that Kubernetes allows', 'leave it out');
  return { outcome: 'denied', answer: denial(uid, 422, 'Invalid', formatProblem(problem)) };
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
  const all = more > 0 ? [...shown, `and ${more} warnings more`] : shown;
  return {
    warnings: all.map((text) => (text.length <= LONGEST_WARNING ? text : `${text.slice(0, LONGEST_WARNING - 3)}...`)),
  };
}

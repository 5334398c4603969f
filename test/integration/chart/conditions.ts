// Decides like an API server whether a registration calls its webhook: rules, then every match condition, in CEL.
// Owns that decision for pods; CEL itself is @bufbuild/cel, which passes the language's conformance tests.
import { celEnv, parse, plan } from '@bufbuild/cel';
import { field, type JsonObject, textAt } from '../../../src/request/json.ts';
import { type Json, list } from './chart.ts';

type Condition = (bindings: Readonly<Record<string, unknown>>) => unknown;
export type Hook = {
  readonly name: string;
  readonly failurePolicy: string;
  readonly route: string;
  readonly calls: (review: JsonObject) => boolean;
};

const env = celEnv();

/** The webhooks of one registration. Compiles their conditions, so that one that is no CEL throws here. */
export function hooksOf(registration: Json): readonly Hook[] {
  return list(registration.webhooks).map((webhook) => {
    const rules = list(webhook.rules);
    const conditions = list(webhook.matchConditions).map(
      ({ expression }) => plan(env, parse(String(expression))) as unknown as Condition,
    );
    return {
      name: String(webhook.name),
      failurePolicy: String(webhook.failurePolicy),
      route: String(webhook.clientConfig?.service?.path),
      calls: (review) => matchesRules(rules, review) && conditions.every((condition) => holds(condition, review)),
    };
  });
}

function matchesRules(rules: readonly Json[], review: JsonObject): boolean {
  const request = field(review, 'request');
  const subresource = textAt(request, 'subResource') ?? '';
  const resource = textAt(field(request, 'resource'), 'resource') + (subresource === '' ? '' : `/${subresource}`);
  return rules.some(
    ({ operations, resources }) =>
      list(operations)
        .map(String)
        .includes(String(field(request, 'operation'))) && list(resources).map(String).includes(resource),
  );
}

/** An API server takes an error for a refusal where the policy is Fail; here it is a fault of the condition. */
function holds(condition: Condition, review: JsonObject): boolean {
  const request = field(review, 'request');
  const { object = null, oldObject = null } = JSON.parse(JSON.stringify(request ?? {}));
  const known = { operation: textAt(request, 'operation') ?? '', subResource: textAt(request, 'subResource') ?? '' };
  const result = condition({ object, oldObject, request: known });
  if (typeof result !== 'boolean') throw new Error(`a condition answers ${String(result)}`);
  return result;
}

// Decides like an API server whether a registration calls its webhook, and what a policy says: rules, then every
// expression, in CEL. Owns that decision for pods; CEL itself is @bufbuild/cel, which passes the language's conformance
// tests.
import { celEnv, isCelError, parse, plan } from '@bufbuild/cel';
import { strings } from '@bufbuild/cel/ext';
import { field, type JsonObject, textAt } from '../../../src/common/json.ts';
import { type Json, list } from './chart.ts';

type Condition = (bindings: Readonly<Record<string, unknown>>) => unknown;
export type Hook = {
  readonly name: string;
  readonly failurePolicy: string;
  readonly route: string;
  readonly calls: (review: JsonObject) => boolean;
};

const env = celEnv({ funcs: strings });

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
  // As a real API server has it: the field is not there where there is no subresource.
  const subResource = textAt(request, 'subResource') ?? '';
  const known = { operation: textAt(request, 'operation') ?? '', ...(subResource !== '' && { subResource }) };
  return decided(condition({ object, oldObject, request: known }));
}

/** What a policy's validations say against a review, in their order; nothing: it is allowed. Rules are not looked
 * at. */
export function denialsOf(policy: Json): (review: JsonObject) => readonly string[] {
  const compiled = (value: Json | undefined) => plan(env, parse(String(value))) as unknown as Condition;
  const conditions = list(policy.spec?.matchConditions).map(({ expression }) => compiled(expression));
  const variables = list(policy.spec?.variables).map(
    ({ name, expression }) => [String(name), compiled(expression)] as const,
  );
  const validations = list(policy.spec?.validations).map(({ expression, message, messageExpression }) => ({
    holds: compiled(expression),
    says: messageExpression === undefined ? () => String(message) : compiled(messageExpression),
  }));
  return (review) => {
    const request = field(review, 'request');
    const {
      object = null,
      oldObject = null,
      operation = '',
      namespace = 'default',
      userInfo = {},
    } = JSON.parse(JSON.stringify(request ?? {}));
    const user = { username: '', groups: [], ...userInfo };
    const bindings = {
      object,
      oldObject,
      request: { operation, namespace, userInfo: user },
      variables: {} as Record<string, unknown>,
    };
    if (!conditions.every((condition) => decided(condition(bindings)))) return [];
    for (const [name, compute] of variables) bindings.variables[name] = checked(compute(bindings));
    return validations.filter(({ holds: good }) => !decided(good(bindings))).map(({ says }) => String(says(bindings)));
  };
}

function decided(result: unknown): boolean {
  if (typeof result !== 'boolean') throw new Error(`an expression answers ${String(result)}`);
  return result;
}

function checked(result: unknown): unknown {
  if (isCelError(result)) throw new Error(result.message);
  return result;
}

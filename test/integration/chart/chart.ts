// Renders the chart with a real helm and gives its objects back as plain values, and finds one of them by kind and
// name. Owns the gate: where helm cannot be had, the tests are skipped by name; where it must be built, the first test
// waits.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { parseAllDocuments, stringify } from 'yaml';
import { testUnless } from '../../support/gate.ts';
import { BUILD_MS, lookForHelm, readyHelm, runHelm } from '../../support/services/helm.ts';

export type Values = { readonly [key: string]: unknown };
/** An object as YAML gives it. Read with care: the tests ask for paths, and a path that is not there is undefined. */
export type Json = { readonly [key: string]: Json } & { readonly [index: number]: Json };
export type Rendered = { readonly ok: boolean; readonly objects: readonly Json[]; readonly text: string };

export const root = join(import.meta.dirname, '../../..');
export const CHART = join(root, 'charts/cotenant');
export const NAMESPACE = 'cotenant-system';
/** Everything that can be switched on at once: what is there by default, and what is not. */
export const ALL: Values = {
  serviceMonitor: { enabled: true },
  prometheusRule: { enabled: true },
  alertmanagerConfig: { enabled: true },
  grafanaDashboard: { enabled: true },
};

const found = lookForHelm();
let path = '';

export const testWithHelm = testUnless(found.kind === 'missing' ? found.reason : undefined);

if (found.kind !== 'missing') {
  test.before(async (t) => {
    t.timeout(BUILD_MS);
    path = await readyHelm(found);
  });
}

export function helm(args: readonly string[], input = ''): { readonly ok: boolean; readonly text: string } {
  const { ok, stdout, stderr } = runHelm(path, args, input);
  return { ok, text: ok ? stdout : stderr };
}

/** `helm template` of a release named cotenant. Never throws: a refusal is a result. */
export function render(values: Values = {}, ...args: readonly string[]): Rendered {
  const all = ['template', 'cotenant', CHART, '--namespace', NAMESPACE, '--values', '-', ...args];
  // 1.1 is the version that helm and Kubernetes read, in which 0644 is octal and "on" is true.
  const { ok, text } = helm(all, stringify(values, { version: '1.1' }));
  const documents = ok ? parseAllDocuments(text, { version: '1.1' }) : [];
  const objects = 'empty' in documents ? [] : documents.map((document) => document.toJS() as Json | null);
  return { ok, objects: objects.filter((object) => object !== null), text };
}

/** Renders, and fails the test with helm's message where it refuses. */
export function objectsOf(t: ExecutionContext, values: Values = {}, ...args: readonly string[]): readonly Json[] {
  const { ok, objects, text } = render(values, ...args);
  t.true(ok, text);
  return objects;
}

export function find(objects: readonly Json[], kind: string, name: string): Json {
  const all = objects.filter((object) => String(object.kind) === kind && String(object.metadata?.name) === name);
  if (all[0] === undefined || all.length > 1) throw new Error(`${all.length} objects of kind ${kind} named ${name}`);
  return all[0];
}

/** A list in an object; nothing where there is none. */
export function list(value: Json | undefined): readonly Json[] {
  return Array.isArray(value) ? value : [];
}

/** Workloads of the chart: what has a pod template and stays. */
export function workloads(objects: readonly Json[]): readonly Json[] {
  return objects.filter(({ kind, spec }) => spec?.template !== undefined && String(kind) !== 'Job');
}

export type Schema = {
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly additionalProperties?: boolean | Schema;
  readonly $ref?: string;
  readonly definitions?: Readonly<Record<string, Schema>>;
};

export const SCHEMA: Schema = JSON.parse(readFileSync(join(CHART, 'values.schema.json'), 'utf8'));

/** A part of the schema, with references followed. */
export function resolved(part: Schema): Schema {
  const name = part.$ref?.replace('#/definitions/', '');
  return name === undefined ? part : resolved(SCHEMA.definitions?.[name] ?? {});
}

/** What the schema says of the setting at a path; empty where it says nothing. */
export function schemaAt(path: readonly string[]): Schema {
  return path.reduce((part: Schema, key) => resolved(part.properties?.[key] ?? {}), SCHEMA);
}

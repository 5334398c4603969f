// The webhook's configuration: the operator's rules per namespace, scheduler, runtime class, and which users may write
// our annotations. Declares the settings and their defaults; `src/cli/daemons/webhook.ts` reads the file.
import * as v from 'valibot';
import { isObject, type JsonObject } from '../src/common/json.ts';
import { type Checked, invalid, type Problem } from '../src/common/problem.ts';
import { err, ok } from '../src/common/result.ts';
import { check, listOf, mapOf, oneOf, settings } from '../src/common/schema.ts';
import {
  applyRules,
  DEFAULT_RULES,
  given,
  type Pool,
  poolSettings,
  type Rules,
  rulesSettings,
  withPools,
} from '../src/request/rules/namespace-rules.ts';
import { checkTemplates } from '../src/request/templates.ts';
import { type ForeignSystems, withoutLiving } from './foreign-systems.ts';

export const DEVICE_ROUTES = ['nri', 'environment'] as const;
export type DeviceRoute = (typeof DEVICE_ROUTES)[number];

const objectName = v.pipe(v.string(), v.regex(/^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/, 'a name of a-z, 0-9, "-" and "."'));
const name = v.nullish(objectName);
const objectNames = v.nullish(listOf(objectName));
/** Without quotes: the API server's policies have them in CEL. */
const names = v.nullish(listOf(v.pipe(v.string(), v.regex(/^[^'"\\]+$/, 'a name'))));
/** As Kubernetes writes one: with a value or an effect no pod with a share would be taken. */
const taintKeys = v.nullish(
  listOf(
    v.pipe(
      v.string(),
      v.regex(
        /^([a-z0-9]([-a-z0-9.]*[a-z0-9])?\/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$/,
        'the key of a taint alone, such as nvidia.com/gpu',
      ),
    ),
  ),
);

export const webhookSettings = settings({
  rules: v.nullish(rulesSettings),
  /** Namespaces whose rules differ: what they set over the cluster's rules. */
  namespaces: v.nullish(mapOf(v.string(), v.nullish(rulesSettings))),
  /** Nodes whose sizes differ, each under a name for people. */
  pools: v.nullish(mapOf(v.string(), poolSettings)),
  schedulerName: name,
  /** Other schedulers that a pod with a share may name, because they call our extender too. */
  allowedSchedulers: objectNames,
  /** Schedulers that manifests or other webhooks name and that grant no shares: ours is written in their place. */
  replacedSchedulers: names,
  /** Keys of taints of GPU nodes that pods with a share tolerate (NoSchedule). */
  toleratedTaints: taintKeys,
  /** Set on pods with a share; absent: the field is left alone. */
  runtimeClassName: name,
  allowedRuntimeClasses: objectNames,
  /** How a container gets its GPUs' device nodes: from the agent's NRI plugin, or by a variable that NVIDIA's toolkit
   * reads. */
  deviceRoute: v.nullish(oneOf(DEVICE_ROUTES)),
  /** Users that may change annotations in our domain on an existing pod. */
  annotationWriters: names,
});

export type WebhookConfiguration = {
  /** Not a setting: what is alive in the cluster now; absent: not known. */
  readonly systems?: ForeignSystems;
  /** Not a setting: what is wrong with a ConfigMap of live rules that is being written; absent: there is none. */
  readonly checkLiveRules?: (configMap: JsonObject) => readonly Problem[];
  readonly rules: Rules;
  /** Complete rules of the namespaces that have their own. */
  readonly namespaces: ReadonlyMap<string, Rules>;
  readonly pools: ReadonlyMap<string, Pool>;
  readonly schedulerName: string;
  readonly allowedSchedulers: readonly string[];
  readonly replacedSchedulers: readonly string[];
  readonly toleratedTaints: readonly string[];
  readonly runtimeClassName?: string;
  readonly allowedRuntimeClasses: readonly string[];
  readonly deviceRoute: DeviceRoute;
  readonly annotationWriters: readonly string[];
};

export const DEFAULT_CONFIGURATION: WebhookConfiguration = {
  rules: DEFAULT_RULES,
  namespaces: new Map(),
  pools: new Map(),
  schedulerName: 'cotenant-scheduler',
  allowedSchedulers: [],
  replacedSchedulers: [],
  toleratedTaints: [],
  allowedRuntimeClasses: [],
  deviceRoute: 'nri',
  annotationWriters: [],
};

/** The rules that a pod of the namespace is read by: with those of the pools whose nodes alone it can run on, and
 * without the dialects of living systems. */
export function rulesOf(
  configuration: WebhookConfiguration,
  namespace: string | undefined,
  nodeLabels: JsonObject = {},
): Rules {
  const rules = withoutLiving(settledRulesOf(configuration, namespace), configuration.systems);
  return withPools(rules, configuration.pools.values(), nodeLabels);
}

/** The namespace's rules as they are configured. */
export function settledRulesOf(configuration: WebhookConfiguration, namespace: string | undefined): Rules {
  return (namespace === undefined ? undefined : configuration.namespaces.get(namespace)) ?? configuration.rules;
}

/** Reads settings (parsed YAML or JSON). A namespace's rules start from the cluster's. Fails with every problem at
 * once. */
export function parseConfiguration(value: unknown): Checked<WebhookConfiguration> {
  if (value === undefined || value === null) return ok(DEFAULT_CONFIGURATION);
  if (!isObject(value)) return err([invalid('configuration', value, 'is not an object', 'write settings by name')]);
  const read = check(webhookSettings, value);
  if (!read.ok) return read;
  const rules = applyRules(read.value.rules, DEFAULT_RULES);
  const namespaces = new Map([...(read.value.namespaces ?? [])].map(([key, own]) => [key, applyRules(own, rules)]));
  const problems = [
    ...checkTemplates(rules, 'rules'),
    ...[...namespaces].flatMap(([key, own]) =>
      own.templates === rules.templates ? [] : checkTemplates(own, `namespaces.${key}`),
    ),
  ];
  if (problems.length > 0) return err(problems);
  return ok({ ...DEFAULT_CONFIGURATION, ...given(read.value), rules, namespaces });
}

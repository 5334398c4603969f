// What the operator configures for admission: rules per namespace, scheduler, runtime class, who may write our keys.
// Owns the value, its defaults and how it is read; where the text comes from (a file of the chart) is the caller's.
import { field, isObject } from '../src/common/json.ts';
import { type Checked, invalid, keyPath, type Problem } from '../src/common/problem.ts';
import { err } from '../src/common/result.ts';
import { DEFAULT_RULES, parseRules, type Rules, unknownKeys } from '../src/request/rules/namespace-rules.ts';

export const DEVICE_ROUTES = ['nri', 'environment'] as const;
export type DeviceRoute = (typeof DEVICE_ROUTES)[number];

export type WebhookConfiguration = {
  readonly rules: Rules;
  /** Namespaces whose rules differ; each entry is complete. */
  readonly namespaces: ReadonlyMap<string, Rules>;
  readonly schedulerName: string;
  /** Other schedulers that a pod with a share may name, because they call our extender too. */
  readonly allowedSchedulers: readonly string[];
  /** Set on pods with a share; absent: the field is left alone. */
  readonly runtimeClassName?: string;
  readonly allowedRuntimeClasses: readonly string[];
  /** How a container gets the nodes of its GPUs: by the agent's NRI plugin, or by a variable that NVIDIA's toolkit honors. */
  readonly deviceRoute: DeviceRoute;
  /** User names that may change annotations in our domain on a pod that exists. */
  readonly annotationWriters: readonly string[];
};

export const DEFAULT_CONFIGURATION: WebhookConfiguration = {
  rules: DEFAULT_RULES,
  namespaces: new Map(),
  schedulerName: 'cotenant-scheduler',
  allowedSchedulers: [],
  allowedRuntimeClasses: [],
  deviceRoute: 'nri',
  annotationWriters: [],
};

const KEYS: readonly string[] = [...Object.keys(DEFAULT_CONFIGURATION), 'runtimeClassName'];

export function rulesOf(configuration: WebhookConfiguration, namespace: string | undefined): Rules {
  return (namespace === undefined ? undefined : configuration.namespaces.get(namespace)) ?? configuration.rules;
}

/** Reads settings (parsed YAML or JSON). A namespace's rules start from the cluster's. Fails with every problem at once. */
export function parseConfiguration(value: unknown): Checked<WebhookConfiguration> {
  if (value === undefined || value === null) return { ok: true, value: DEFAULT_CONFIGURATION };
  if (!isObject(value)) return err([invalid('configuration', value, 'is not a map', `write ${KEYS.join(', ')}`)]);
  const problems: Problem[] = unknownKeys(value, KEYS, 'configuration');
  const text = (key: string, fallback: string): string => {
    const given = field(value, key);
    if (given === undefined) return fallback;
    if (typeof given === 'string' && /^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/.test(given)) return given;
    problems.push(invalid(key, given, 'is not a name', 'write a-z, 0-9, "-" and "."'));
    return fallback;
  };
  const texts = (key: string, fallback: readonly string[]): readonly string[] => {
    const given = field(value, key);
    if (given === undefined) return fallback;
    if (Array.isArray(given) && given.every((entry) => typeof entry === 'string' && entry !== '')) return given;
    problems.push(invalid(key, given, 'is not a list of names', 'write a list of texts'));
    return fallback;
  };
  const route = (): DeviceRoute => {
    const given = field(value, 'deviceRoute');
    const known = DEVICE_ROUTES.find((name) => name === given);
    if (known !== undefined) return known;
    if (given !== undefined) {
      problems.push(invalid('deviceRoute', given, 'is no route', `write ${DEVICE_ROUTES.join(' or ')}`));
    }
    return DEFAULT_CONFIGURATION.deviceRoute;
  };
  const rules = collect(parseRules(field(value, 'rules'), 'rules', DEFAULT_RULES), DEFAULT_RULES, problems);
  const namespaces = new Map<string, Rules>();
  const given = field(value, 'namespaces') ?? {};
  if (!isObject(given)) {
    problems.push(invalid('namespaces', given, 'is not a map', 'write namespace names with their rules'));
  } else {
    for (const [name, settings] of Object.entries(given)) {
      namespaces.set(name, collect(parseRules(settings, keyPath('namespaces', name), rules), rules, problems));
    }
  }
  const runtimeClassName = text('runtimeClassName', '');
  const configuration: WebhookConfiguration = {
    rules,
    namespaces,
    schedulerName: text('schedulerName', DEFAULT_CONFIGURATION.schedulerName),
    allowedSchedulers: texts('allowedSchedulers', []),
    ...(runtimeClassName !== '' && { runtimeClassName }),
    allowedRuntimeClasses: texts('allowedRuntimeClasses', []),
    deviceRoute: route(),
    annotationWriters: texts('annotationWriters', []),
  };
  return problems.length > 0 ? err(problems) : { ok: true, value: configuration };
}

function collect<T>(result: Checked<T>, fallback: T, problems: Problem[]): T {
  if (result.ok) return result.value;
  problems.push(...result.error);
  return fallback;
}

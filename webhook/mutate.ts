// Patches a pod that asks for a share of a GPU: normalized resources, our volume and its mounts, the environment,
// scheduler and request annotation. Pure. The result follows from the pod alone, so a second pass changes nothing.

import { isOwnKey, OWN_RESOURCES, REQUEST_ANNOTATION, TENANT_ANNOTATIONS } from '../src/api/names.ts';
import { type ContainerRequest, MEMORY_VARIABLES, type PodRequest } from '../src/api/request.ts';
import { formatPodRequest } from '../src/api/request-annotation.ts';
import { field, isObject, type JsonObject, listAt, objectAt, textAt } from '../src/common/json.ts';
import { forbidden, keyPath, type Problem } from '../src/common/problem.ts';
import { sameQuantity } from '../src/common/quantity.ts';
import { ownAmounts } from '../src/request/amounts.ts';
import type { PodContainer } from '../src/request/containers.ts';
import { type Dialect, ownsResource } from '../src/request/dialects/dialect.ts';
import { dialectsOf, FOREIGN_DIALECTS } from '../src/request/dialects/index.ts';
import { requiredNodeLabels } from '../src/request/node-labels.ts';
import { readPodRequest } from '../src/request/read-pod.ts';
import type { Rules } from '../src/request/rules/namespace-rules.ts';
import { type DeviceRoute, rulesOf, settledRulesOf, type WebhookConfiguration } from './config.ts';
import {
  findLastNamed,
  grantedMemory,
  shareEnvironment,
  VISIBLE_DEVICES,
  withMissing,
  withoutGpus,
} from './environment.ts';
import { leftToOthers } from './foreign-systems.ts';
import { requirePlugin } from './required-plugins.ts';
import {
  checkContainer,
  checkGrantKeys,
  checkOwnNames,
  checkPod,
  checkPodResources,
  checkUniqueNames,
  ownSchedulers,
} from './validate-pod.ts';
import { checkReadOnlyParents, checkVolumeMounts, checkVolumes, withMounts, withVolume } from './volume.ts';

type Mutation =
  /** The pod asks for no share and has none of our names. */
  | { readonly kind: 'untouched'; readonly warnings: readonly string[] }
  /** The pod as it must be; deeply equal to the given one where that was patched before. */
  | {
      readonly kind: 'patched';
      readonly pod: JsonObject;
      /** The text of the request annotation. */
      readonly record: string;
      readonly warnings: readonly string[];
    }
  | { readonly kind: 'refused'; readonly problems: readonly Problem[] };

const limitsOf = (container: JsonObject): JsonObject => objectAt(objectAt(container, 'resources'), 'limits');

const DEFAULT_SCHEDULER = 'default-scheduler';

/** Never throws and never changes `pod`, whatever it is. Unchanged parts of the result are the given objects
 * themselves. */
export function mutatePod(
  pod: JsonObject,
  namespace: string | undefined,
  configuration: WebhookConfiguration,
): Mutation {
  const rules = rulesOf(configuration, namespace, requiredNodeLabels(pod));
  const annotations = objectAt(field(pod, 'metadata'), 'annotations');
  const reading = readPodRequest(pod, rules);
  const forged = checkGrantKeys(annotations);
  const { containers } = reading;
  const misnamed = [...checkOwnNames(containers), ...checkPodResources(pod, rules)];
  if (reading.kind === 'none') {
    const problems = [...forged, ...misnamed, ...checkPodWithoutShare(pod, containers, annotations)];
    if (problems.length > 0) return { kind: 'refused', problems };
    const left = leftToOthers(pod, containers, settledRulesOf(configuration, namespace), configuration.systems);
    return { kind: 'untouched', warnings: left ? [left] : warningsWithoutShare(containers, annotations) };
  }

  const dialects = dialectsOf(rules);
  const shares = new Map(
    reading.kind === 'request' ? reading.request.containers.map((share) => [share.name, share]) : [],
  );
  const foreign = (name: string) => dialects.some((dialect) => ownsResource(dialect, name));
  // Where the request cannot be read, a container with its names is meant to have one.
  const hasShare = ({ name, spec }: PodContainer) =>
    reading.kind === 'request'
      ? shares.has(name)
      : Object.keys({ ...limitsOf(spec), ...objectAt(objectAt(spec, 'resources'), 'requests') }).some(foreign);
  const replaced = [
    DEFAULT_SCHEDULER,
    ...configuration.replacedSchedulers,
    ...dialects.flatMap((dialect) => dialect.schedulers),
  ];
  const plugins = requirePlugin(
    annotations,
    containers.filter(hasShare).map(({ name }) => name),
    configuration,
  );
  const volumes = new Map(listAt(field(pod, 'spec'), 'volumes').map((volume) => [textAt(volume, 'name'), volume]));
  const unread = reading.kind === 'refused' ? reading.problems : [];
  const named = new Set(unread.map(({ path }) => path));
  const others = [
    ...misnamed,
    ...plugins.problems,
    ...checkPod(pod, replaced, configuration),
    ...checkVolumes(pod, true),
    ...(unread.length > 0 ? [] : checkUniqueNames(containers)),
    ...containers.flatMap((container) => checkContainer(container, hasShare(container), rules)),
    ...containers.filter(hasShare).flatMap(({ spec, path }) => checkReadOnlyParents(spec, path, volumes)),
  ].filter(({ path }) => !named.has(path));
  const problems = [...forged, ...unread, ...others];
  if (reading.kind === 'refused' || problems.length > 0) return { kind: 'refused', problems };

  const used = dialects.filter(({ name }) => [...shares.values()].some(({ dialect }) => dialect === name));
  const warnings = [
    ...reading.warnings,
    ...unknownAnnotations(annotations),
    ...choicesInLabels(objectAt(field(pod, 'metadata'), 'labels')),
    ...containers.flatMap((container) => unreadResources(container, used, foreign)),
    // Which devices a claim gives the pod does not say; those of networks work beside a share.
    ...containers
      .filter(({ spec, name }) => shares.has(name) && listAt(objectAt(spec, 'resources'), 'claims').length > 0)
      .map(({ name }) => `${name}: a GPU of resources.claims is hidden from CUDA here`),
    ...containers
      .filter(({ spec, name }) => shares.has(name) && hasClassAmount(spec))
      .map(({ name }) => `${name}: a GPU of ${DEVICE_CLASS}* is hidden from CUDA here`),
  ];
  const context: Context = { rules, dialects, deviceRoute: configuration.deviceRoute, foreign, warnings };
  const patched = new Map<unknown, JsonObject>();
  for (const { spec, name } of containers) {
    const share = shares.get(name);
    patched.set(spec, share ? withShare(spec, share, context) : withoutShare(spec, foreign));
  }
  const record = recordOf(reading.request, annotations);
  const required = { ...plugins.annotations, [REQUEST_ANNOTATION]: record };
  return { kind: 'patched', pod: rebuild(pod, patched, required, configuration), record, warnings };
}

/** The request annotation's text. A webhook of an earlier version may have patched the pod: its form of this request
 * stays. */
function recordOf(request: PodRequest, annotations: JsonObject): string {
  const present = field(annotations, REQUEST_ANNOTATION);
  if (present === undefined) return formatPodRequest(request);
  const withoutOrder = { ...request, containers: request.containers.map(({ initIndex: _, ...rest }) => rest) };
  const earlierForm = formatPodRequest(withoutOrder);
  return present === earlierForm ? earlierForm : formatPodRequest(request);
}

/** An amount of a device class is a claim that the scheduler makes (Kubernetes, KEP-5004, "DRA extended resource"). */
const DEVICE_CLASS = 'deviceclass.resource.kubernetes.io/';

function hasClassAmount(container: JsonObject): boolean {
  return Object.entries(limitsOf(container)).some(
    ([name, amount]) => name.startsWith(DEVICE_CLASS) && !sameQuantity(amount, '0'),
  );
}

function unknownAnnotations(annotations: JsonObject): readonly string[] {
  return Object.keys(annotations)
    .filter((key) => isOwnKey(key) && key !== REQUEST_ANNOTATION && !TENANT_ANNOTATIONS.includes(key))
    .map((key) => `annotation ${key} is not known to Cotenant and has no effect`);
}

const choicesInLabels = (labels: JsonObject): readonly string[] =>
  TENANT_ANNOTATIONS.filter((key) => field(labels, key) !== undefined).map(
    (key) => `label ${key} has no effect: write it as an annotation`,
  );

/**
 * Amounts that stay beside a share and are of a dialect that is off, or look like the dialect's own, such as a name of
 * another version: nothing but its device plugin gives them, so the pod waits for a node that has one.
 */
function unreadResources(
  { spec, name }: PodContainer,
  used: readonly Dialect[],
  foreign: Context['foreign'],
): readonly string[] {
  const domains = used.flatMap(({ resources }) => resources.map((resource) => resource.split('/')[0]));
  return Object.entries(limitsOf(spec))
    .filter(([key]) => domains.includes(key.split('/')[0]) || FOREIGN_DIALECTS.some((one) => ownsResource(one, key)))
    .filter(([key, amount]) => !foreign(key) && !sameQuantity(amount, '0'))
    .filter(([key]) => !isOwnKey(key) && /gpu|core|mem/i.test(key))
    .map(([key]) => `${name}: ${key} is not read and stays: the pod waits for a node that has it`);
}

/** Refuses what only a patched pod has. */
function checkPodWithoutShare(
  pod: JsonObject,
  containers: readonly PodContainer[],
  annotations: JsonObject,
): readonly Problem[] {
  const problems = checkVolumes(pod, false);
  for (const { spec, path } of containers) problems.push(...checkVolumeMounts(spec, path, undefined));
  if (field(annotations, REQUEST_ANNOTATION) !== undefined) {
    const path = keyPath('metadata.annotations', REQUEST_ANNOTATION);
    const right = 'leave this annotation out, or ask for a share under resources.limits';
    problems.push(forbidden(path, undefined, 'records a request, but no container asks for a share', right));
  }
  return problems;
}

function warningsWithoutShare(containers: readonly PodContainer[], annotations: JsonObject): readonly string[] {
  const warnings: string[] = [];
  for (const { spec, name } of containers) {
    const entry = findLastNamed(listAt(spec, 'env'), VISIBLE_DEVICES);
    const value = textAt(entry, 'value');
    if (entry === undefined || value === 'void' || value === 'none') continue;
    warnings.push(`${name}: ${VISIBLE_DEVICES} without a share: GPU use is reported as foreign on shared nodes`);
  }
  const unused = TENANT_ANNOTATIONS.filter((key) => field(annotations, key) !== undefined);
  if (unused.length > 0)
    warnings.push(`${unused.join(', ')}: no effect, because no container asks for a share of a GPU`);
  return warnings;
}

type Context = {
  readonly rules: Rules;
  readonly dialects: readonly Dialect[];
  readonly deviceRoute: DeviceRoute;
  /** Resources of a dialect, which are replaced by ours. */
  readonly foreign: (resource: string) => boolean;
  readonly warnings: string[];
};

function withShare(
  container: JsonObject,
  share: ContainerRequest,
  { rules, dialects, deviceRoute, foreign, warnings }: Context,
): JsonObject {
  const environment = shareEnvironment(listAt(container, 'env'), share.name, deviceRoute, rules.driverCapabilities);
  warnings.push(...environment.warnings);
  const resources = objectAt(container, 'resources');
  // Only with the dialect's own amounts: a webhook of an earlier version may have patched the container without them.
  const isPatched = OWN_RESOURCES.some((name) => field(objectAt(resources, 'limits'), name) !== undefined);
  const dialect = isPatched ? undefined : dialects.find(({ name }) => name === share.dialect);
  const variables = dialect?.variables?.(share) ?? {};
  const sized = dialect && MEMORY_VARIABLES[dialect.name];
  const memory = sized === undefined ? [] : [grantedMemory(sized, share.name)];
  const amounts = ownAmounts(share.gpus);
  return {
    ...container,
    env: withMissing(environment.entries, variables, memory),
    resources: {
      ...resources,
      limits: withAmounts(objectAt(resources, 'limits'), amounts, foreign),
      requests: withAmounts(objectAt(resources, 'requests'), amounts, foreign),
    },
    volumeMounts: withMounts(listAt(container, 'volumeMounts'), share.name),
  };
}

/** A container that gets no GPU, in a pod with a share. Zero amounts of a dialect are removed, so that nothing counts
 * them. */
function withoutShare(container: JsonObject, foreign: Context['foreign']): JsonObject {
  const env = withoutGpus(listAt(container, 'env'));
  if (field(container, 'resources') === undefined) return { ...container, env };
  const resources = objectAt(container, 'resources');
  const cleaned = (key: string) => {
    const map = field(resources, key);
    return isObject(map) ? { [key]: withAmounts(map, new Map(), foreign) } : {};
  };
  return { ...container, env, resources: { ...resources, ...cleaned('limits'), ...cleaned('requests') } };
}

/** The map with our amounts and without the dialect's names. An amount of the right value keeps its text. */
function withAmounts(map: JsonObject, amounts: ReadonlyMap<string, string>, foreign: Context['foreign']): JsonObject {
  const entries = Object.entries(map).filter(([name]) => !foreign(name));
  for (const [name, amount] of amounts) {
    const present = field(map, name);
    entries.push([name, present !== undefined && sameQuantity(present, amount) ? present : amount]);
  }
  return Object.fromEntries(entries);
}

function rebuild(
  pod: JsonObject,
  containers: ReadonlyMap<unknown, JsonObject>,
  annotations: JsonObject,
  configuration: WebhookConfiguration,
): JsonObject {
  const { schedulerName, runtimeClassName, toleratedTaints } = configuration;
  const metadata = objectAt(pod, 'metadata');
  const spec = objectAt(pod, 'spec');
  const list = (key: string) => {
    const given = field(spec, key);
    return Array.isArray(given) ? { [key]: given.map((container) => containers.get(container) ?? container) } : {};
  };
  const scheduler = textAt(spec, 'schedulerName') ?? '';
  const given = listAt(spec, 'tolerations');
  const tolerations = toleratedTaints
    .filter((key) => !given.some((toleration) => tolerates(toleration, key)))
    .map((key) => ({ key, operator: 'Exists', effect: 'NoSchedule' }));
  const runtime = runtimeClassName !== undefined && field(spec, 'runtimeClassName') === undefined;
  return {
    ...pod,
    metadata: { ...metadata, annotations: { ...objectAt(metadata, 'annotations'), ...annotations } },
    spec: {
      ...spec,
      ...list('initContainers'),
      ...list('containers'),
      volumes: withVolume(listAt(spec, 'volumes')),
      schedulerName: ownSchedulers(configuration).includes(scheduler) ? scheduler : schedulerName,
      ...(tolerations.length > 0 && { tolerations: [...given, ...tolerations] }),
      ...(runtime && { runtimeClassName }),
    },
  };
}

/** Whether a toleration covers every taint of the key with the effect NoSchedule. */
function tolerates(toleration: unknown, key: string): boolean {
  const own = textAt(toleration, 'key') ?? '';
  const effect = textAt(toleration, 'effect') ?? '';
  return textAt(toleration, 'operator') === 'Exists' && ['', key].includes(own) && ['', 'NoSchedule'].includes(effect);
}

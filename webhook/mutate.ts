// Pod in, patched pod out: normalized resources, the volume and its mounts, the device environment, scheduler, annotation.
// Pure. "Patched" is judged by this structure alone, so a second pass changes nothing and a forged mark means nothing.

import { CARDS_KEY } from '../src/api/earlier-names.ts';
import { isOwnKey, OWN_RESOURCES, REQUEST_ANNOTATION, TENANT_ANNOTATIONS } from '../src/api/names.ts';
import type { ContainerRequest } from '../src/api/request.ts';
import { formatPodRequest } from '../src/api/request-annotation.ts';
import { field, isObject, type JsonObject, listAt, objectAt, textAt } from '../src/common/json.ts';
import { forbidden, keyPath, type Problem } from '../src/common/problem.ts';
import { sameQuantity } from '../src/common/quantity.ts';
import { ownAmounts } from '../src/request/amounts.ts';
import { type ContainerPlace, containersOf } from '../src/request/containers.ts';
import { dialectsOf } from '../src/request/dialects/index.ts';
import { readPodRequest } from '../src/request/read-pod.ts';
import type { Rules } from '../src/request/rules/namespace-rules.ts';
import { type DeviceRoute, rulesOf, type WebhookConfiguration } from './config.ts';
import { last, VISIBLE_DEVICES, withoutDevices, withShare } from './environment.ts';
import { requirePlugin } from './required-plugins.ts';
import { checkContainer, checkGrantKeys, checkNames, checkPod, ownSchedulers } from './validate-pod.ts';
import { checkVolumeMounts, checkVolumes, withMounts, withVolume } from './volume.ts';

export type Injection =
  /** The pod asks for no share and carries none of our names. */
  | { readonly kind: 'untouched'; readonly warnings: readonly string[] }
  /** The pod as it must be; deeply equal to the one that was given where it had been patched before. */
  | {
      readonly kind: 'patched';
      readonly pod: JsonObject;
      readonly record: string;
      readonly warnings: readonly string[];
    }
  | { readonly kind: 'refused'; readonly problems: readonly Problem[] };

const DEFAULT_SCHEDULER = 'default-scheduler';

/** Never throws and never changes `pod`, whatever it is. Unchanged parts of the result are the given objects themselves. */
export function injectPod(
  pod: JsonObject,
  namespace: string | undefined,
  configuration: WebhookConfiguration,
): Injection {
  const rules = rulesOf(configuration, namespace);
  const annotations = objectAt(field(pod, 'metadata'), 'annotations');
  const reading = readPodRequest(pod, rules);
  const grants = checkGrantKeys(annotations);
  if (reading.kind === 'refused') return { kind: 'refused', problems: [...grants, ...reading.problems] };
  const places = containersOf(pod);
  if (!places.ok) return { kind: 'refused', problems: places.error };
  if (reading.kind === 'none') return leaveAlone(pod, places.value, annotations, grants);

  const shares = new Map(reading.request.containers.map((container) => [container.name, container]));
  const dialects = dialectsOf(rules);
  const replaced = [DEFAULT_SCHEDULER, ...dialects.flatMap((dialect) => dialect.schedulers)];
  const shareOf = (place: ContainerPlace) => shares.get(textAt(place.container, 'name') ?? '');
  const plugins = requirePlugin(annotations, [...shares.keys()], configuration);
  const problems = [
    ...grants,
    ...plugins.problems,
    ...checkPod(pod, replaced, configuration),
    ...checkVolumes(pod, true),
    ...checkNames(places.value),
    ...places.value.flatMap((place) => checkContainer(place, shareOf(place) !== undefined)),
  ];
  if (problems.length > 0) return { kind: 'refused', problems };

  const warnings = [...reading.warnings];
  for (const key of Object.keys(annotations)) {
    const known = key === REQUEST_ANNOTATION || TENANT_ANNOTATIONS.includes(key);
    if (isOwnKey(key) && !known) warnings.push(`annotation ${key} is not known to Cotenant and has no effect`);
  }
  const foreign = dialects.flatMap((dialect) => dialect.resources).filter((name) => !OWN_RESOURCES.includes(name));
  const containers = new Map<unknown, JsonObject>();
  for (const place of places.value) {
    const share = shareOf(place);
    const patched = share
      ? withShareOf(place.container, share, foreign, configuration.deviceRoute, rules, warnings)
      : closed(place, foreign);
    containers.set(place.container, patched);
  }
  const earlier = formatPodRequest(reading.request, CARDS_KEY);
  const record = field(annotations, REQUEST_ANNOTATION) === earlier ? earlier : formatPodRequest(reading.request);
  const required = { ...plugins.annotations, [REQUEST_ANNOTATION]: record };
  return { kind: 'patched', pod: rebuild(pod, containers, required, configuration), record, warnings };
}

/** A pod that asks for nothing: refused where it carries what only a patched pod has, else allowed as it is. */
function leaveAlone(
  pod: JsonObject,
  places: readonly ContainerPlace[],
  annotations: JsonObject,
  grants: readonly Problem[],
): Injection {
  const problems = [...grants, ...checkVolumes(pod, false)];
  for (const { container, path } of places) problems.push(...checkVolumeMounts(container, path, undefined));
  if (field(annotations, REQUEST_ANNOTATION) !== undefined) {
    const path = keyPath('metadata.annotations', REQUEST_ANNOTATION);
    const right = 'leave this annotation out, or ask for a share under resources.limits';
    problems.push(forbidden(path, undefined, 'records a request, but no container asks for a share', right));
  }
  if (problems.length > 0) return { kind: 'refused', problems };
  const warnings: string[] = [];
  for (const { container } of places) {
    const entry = last(listAt(container, 'env'), VISIBLE_DEVICES);
    const value = textAt(entry, 'value');
    if (entry === undefined || value === 'void' || value === 'none') continue;
    const name = textAt(container, 'name') ?? '';
    warnings.push(`${name}: ${VISIBLE_DEVICES} without a share: GPU use is reported as foreign on shared nodes`);
  }
  const idle = TENANT_ANNOTATIONS.filter((key) => field(annotations, key) !== undefined);
  if (idle.length > 0) warnings.push(`${idle.join(', ')}: without effect, for no container asks for a share of a GPU`);
  return { kind: 'untouched', warnings };
}

function withShareOf(
  container: JsonObject,
  share: ContainerRequest,
  foreign: readonly string[],
  deviceRoute: DeviceRoute,
  rules: Rules,
  warnings: string[],
): JsonObject {
  const environment = withShare(listAt(container, 'env'), share.name, deviceRoute, rules.driverCapabilities);
  warnings.push(...environment.warnings);
  const resources = objectAt(container, 'resources');
  const amounts = ownAmounts(share.gpus);
  return {
    ...container,
    env: environment.entries,
    resources: {
      ...resources,
      limits: withAmounts(objectAt(resources, 'limits'), amounts, foreign),
      requests: withAmounts(objectAt(resources, 'requests'), amounts, foreign),
    },
    volumeMounts: withMounts(listAt(container, 'volumeMounts'), share.name),
  };
}

/** A container without a share sees no device, and amounts of nothing in a dialect's names are not left for others to count. */
function closed({ container }: ContainerPlace, foreign: readonly string[]): JsonObject {
  const resources = objectAt(container, 'resources');
  const without = (key: string) => {
    const map = field(resources, key);
    return isObject(map) ? { [key]: withAmounts(map, new Map(), foreign) } : {};
  };
  const cleaned = { ...resources, ...without('limits'), ...without('requests') };
  const env = withoutDevices(listAt(container, 'env'));
  return field(container, 'resources') === undefined
    ? { ...container, env }
    : { ...container, env, resources: cleaned };
}

/** The map with our amounts and without the dialect's names. An amount that is there keeps its text if the value is right. */
function withAmounts(map: JsonObject, amounts: ReadonlyMap<string, string>, foreign: readonly string[]): JsonObject {
  const entries = Object.entries(map).filter(([name]) => !foreign.includes(name) && !OWN_RESOURCES.includes(name));
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
  const { schedulerName, runtimeClassName } = configuration;
  const metadata = objectAt(pod, 'metadata');
  const spec = objectAt(pod, 'spec');
  const list = (key: string) => {
    const given = field(spec, key);
    return Array.isArray(given) ? { [key]: given.map((container) => containers.get(container) ?? container) } : {};
  };
  const scheduler = textAt(spec, 'schedulerName') ?? '';
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
      ...(runtime && { runtimeClassName }),
    },
  };
}

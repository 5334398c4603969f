// Checks updates of existing pods: our annotations and amounts do not change, and debug containers get no device.

import { parseMemorySizes } from '../src/api/memory-annotation.ts';
import {
  ENFORCEMENT_ANNOTATION,
  ENFORCEMENT_OVERRIDE_ANNOTATION,
  isOwnKey,
  MEMORY_ANNOTATION,
  OWN_RESOURCES,
  REQUEST_ANNOTATION,
} from '../src/api/names.ts';
import type { Mode } from '../src/api/request.ts';
import { parsePodRequest } from '../src/api/request-annotation.ts';
import { isDeepEqual } from '../src/common/deep-equal.ts';
import { field, isObject, type JsonObject, listAt, objectAt, textAt } from '../src/common/json.ts';
import { forbidden, invalid, keyPath, type Problem } from '../src/common/problem.ts';
import { sameQuantity } from '../src/common/quantity.ts';
import { notWeakerThan, parseMode, resolveRequestedMode } from '../src/policy/mode.ts';
import type { WebhookConfiguration } from './config.ts';
import { findLastNamed, NO_DEVICES, VISIBLE_DEVICES, withoutGpus } from './environment.ts';
import { isRequiredPluginsKey } from './required-plugins.ts';
import { checkEphemeral } from './validate-pod.ts';
import { hasVolume } from './volume.ts';

/** Problems of an update of the pod or of any of its subresources. */
export function checkUpdate(
  before: JsonObject,
  after: JsonObject,
  user: string | undefined,
  { annotationWriters }: WebhookConfiguration,
): Problem[] {
  const problems = checkAmounts(before, after);
  const [old, now] = [before, after].map((pod) => objectAt(field(pod, 'metadata'), 'annotations')) as [
    JsonObject,
    JsonObject,
  ];
  const values = [...checkOverride(old, now), ...checkMemory(old, now)];
  if (user !== undefined && annotationWriters.includes(user)) return [...problems, ...values];
  for (const key of new Set([...Object.keys(old), ...Object.keys(now)])) {
    const guarded = isOwnKey(key) || (isRequiredPluginsKey(key) && hasVolume(before));
    if (!guarded || isDeepEqual(field(old, key), field(now, key))) continue;
    if (key === ENFORCEMENT_ANNOTATION && parsePodRequest(field(old, REQUEST_ANNOTATION)).ok) {
      problems.push(...checkStricter(old, now));
      continue;
    }
    const wrong = `may not be ${field(old, key) === undefined ? 'added' : 'changed'} by ${JSON.stringify(user ?? '')}`;
    const right = 'leave it as it is; to ask for something else, recreate the pod';
    problems.push(forbidden(keyPath('metadata.annotations', key), field(now, key), wrong, right));
  }
  return problems;
}

/** A tenant may make the enforcement of its running pod stricter, and never weaker than it is now. */
function checkStricter(old: JsonObject, now: JsonObject): Problem[] {
  const record = parsePodRequest(field(old, REQUEST_ANNOTATION));
  const namespace: Mode = (record.ok ? record.value.enforcement : undefined) ?? 'enforce';
  const pod = parseMode(field(old, ENFORCEMENT_ANNOTATION));
  const present = resolveRequestedMode({ namespace, pod, administrator: undefined })?.mode ?? 'enforce';
  const given = field(now, ENFORCEMENT_ANNOTATION);
  const allowed = notWeakerThan(present);
  if (allowed.some((mode) => mode === given)) return [];
  const path = keyPath('metadata.annotations', ENFORCEMENT_ANNOTATION);
  const right = `write one of ${allowed.join(', ')}; only administrators make it weaker`;
  if (given === undefined) return [forbidden(path, given, `may not be removed while it is ${present}`, right)];
  if (parseMode(given) === undefined) return [invalid(path, given, 'is not known', right)];
  return [forbidden(path, given, `is weaker than the pod's mode, ${present}`, right)];
}

/** Also for the configured writers: a value that is not a mode would change nothing. */
function checkOverride(old: JsonObject, now: JsonObject): Problem[] {
  const given = field(now, ENFORCEMENT_OVERRIDE_ANNOTATION);
  if (given === undefined || isDeepEqual(field(old, ENFORCEMENT_OVERRIDE_ANNOTATION), given) || parseMode(given))
    return [];
  const path = keyPath('metadata.annotations', ENFORCEMENT_OVERRIDE_ANNOTATION);
  return [invalid(path, given, 'is not known', `write one of ${notWeakerThan('off').join(', ')}`)];
}

/** Also for the configured writers: the scheduler could not apply another text. */
function checkMemory(old: JsonObject, now: JsonObject): Problem[] {
  const given = field(now, MEMORY_ANNOTATION);
  if (given === undefined || isDeepEqual(field(old, MEMORY_ANNOTATION), given)) return [];
  const path = keyPath('metadata.annotations', MEMORY_ANNOTATION);
  const record = parsePodRequest(field(now, REQUEST_ANNOTATION));
  if (!record.ok) return [forbidden(path, given, 'is on a pod without a share of a GPU', 'leave it out')];
  const names = record.value.containers.map(({ name }) => name);
  const right = `write amounts in whole MiB for containers of ${names.join(', ')}, such as {"${names[0]}":"6Gi"}`;
  const sizes = parseMemorySizes(String(given));
  if (!sizes.ok) return [invalid(path, given, `is not valid: ${sizes.error}`, right)];
  const unknown = [...sizes.value.keys()].find((name) => !names.includes(name));
  return unknown === undefined ? [] : [invalid(path, given, `names ${unknown}, which has no share`, right)];
}

/** Kubernetes does not resize extended resources today; for ours this check keeps it so. */
function checkAmounts(before: JsonObject, after: JsonObject): Problem[] {
  const problems: Problem[] = [];
  for (const list of ['initContainers', 'containers']) {
    const old = listAt(field(before, 'spec'), list);
    for (const [index, container] of listAt(field(after, 'spec'), list).entries()) {
      for (const resource of OWN_RESOURCES) {
        const [was, is] = [old[index], container].map((each) =>
          field(field(field(each, 'resources'), 'limits'), resource),
        );
        if (was === is || sameQuantity(was, is)) continue;
        const path = keyPath(`spec.${list}[${index}].resources.limits`, resource);
        problems.push(forbidden(path, is, 'is not the amount that the pod was granted', 'leave it as it is'));
      }
    }
  }
  return problems;
}

type EphemeralReview = { readonly problems: readonly Problem[]; readonly pod: JsonObject };

/**
 * New debug containers of a pod with a share: refused where they use our volume, devices or mounts of other containers,
 * and given `NVIDIA_VISIBLE_DEVICES: void`, because their image may ask for all devices. Other pods are left as they
 * are.
 */
export function reviewEphemeral(before: JsonObject, after: JsonObject): EphemeralReview {
  if (!hasVolume(after)) return { problems: [], pod: after };
  const known = new Set(listAt(field(before, 'spec'), 'ephemeralContainers').map((each) => textAt(each, 'name')));
  const problems: Problem[] = [];
  const containers = listAt(field(after, 'spec'), 'ephemeralContainers').map((container, index) => {
    if (known.has(textAt(container, 'name'))) return container;
    const path = `spec.ephemeralContainers[${index}]`;
    problems.push(...checkEphemeral(container, path));
    const env = listAt(container, 'env');
    const visible = findLastNamed(env, VISIBLE_DEVICES);
    if (visible !== undefined && !isDeepEqual(NO_DEVICES, visible)) {
      const wrong = `sets ${VISIBLE_DEVICES} in a pod with a share of a GPU, to which debug containers have no limit`;
      problems.push(forbidden(`${path}.env`, textAt(visible, 'value'), wrong, 'leave it out, or write void'));
    }
    return isObject(container) ? { ...container, env: withoutGpus(env) } : container;
  });
  return { problems, pod: { ...after, spec: { ...objectAt(after, 'spec'), ephemeralContainers: containers } } };
}

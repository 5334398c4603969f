// What a pod with a share of a GPU may not have, because it would lead around the limits or past the scheduler.
// Owns these refusals and their words; volumes and mounts are in volume.ts, variables (stripped, not refused) elsewhere.

import { isContainerName, isGrantKey } from '../src/api/names.ts';
import { field, isObject, type JsonObject, listAt, textAt } from '../src/common/json.ts';
import { forbidden, invalid, keyPath, type Problem } from '../src/common/problem.ts';
import type { ContainerPlace } from '../src/request/containers.ts';
import type { WebhookConfiguration } from './config.ts';
import { checkCovers, checkDeviceLists, checkList, checkLists, checkVolumeMounts } from './volume.ts';

/**
 * Each lets a container unmount, mount or load its way out, or make nodes of devices that it was not given (CVE-2021-1056). ALL
 * contains them. Some runtimes give MKNOD to everybody, and the device group is what holds then; here nobody asks for it.
 */
const REFUSED_CAPABILITIES: readonly string[] = ['ALL', 'SYS_ADMIN', 'SYS_MODULE', 'SYS_RAWIO', 'BPF', 'MKNOD'];

/** Keys that say what a pod got: only the scheduler's Binding writes them, so nobody may create a pod with them. */
export function checkGrantKeys(annotations: JsonObject): Problem[] {
  return Object.keys(annotations)
    .filter(isGrantKey)
    .map((key) => {
      const path = keyPath('metadata.annotations', key);
      return forbidden(
        path,
        field(annotations, key),
        'says what the scheduler granted, or an operator changed',
        'leave this annotation out',
      );
    });
}

/** Schedulers that ask our extender; a pod that names one of them keeps it. */
export function ownSchedulers({ schedulerName, allowedSchedulers }: WebhookConfiguration): readonly string[] {
  return [schedulerName, ...allowedSchedulers];
}

/** The pod as a whole. `schedulers` are names that our own replaces. */
export function checkPod(pod: unknown, schedulers: readonly string[], configuration: WebhookConfiguration): Problem[] {
  const spec = field(pod, 'spec');
  const problems: Problem[] = [];
  if (field(spec, 'hostPID') === true) {
    const wrong = 'lets the container reach the processes of other tenants';
    problems.push(forbidden('spec.hostPID', true, wrong, 'leave it out in a pod with a share of a GPU'));
  }
  const nodeName = field(spec, 'nodeName');
  if (nodeName !== undefined && nodeName !== '') {
    const right = 'leave it out; to choose a node use spec.nodeSelector or spec.affinity';
    problems.push(forbidden('spec.nodeName', nodeName, 'goes past the scheduler, which alone grants GPUs', right));
  }
  const scheduler = field(spec, 'schedulerName') ?? '';
  const own = ownSchedulers(configuration);
  if (scheduler !== '' && ![...own, ...schedulers].some((name) => name === scheduler)) {
    const right = `leave it out or write ${own.join(' or ')}`;
    problems.push(forbidden('spec.schedulerName', scheduler, 'does not grant shares of GPUs', right));
  }
  const runtime = field(spec, 'runtimeClassName');
  const { runtimeClassName, allowedRuntimeClasses } = configuration;
  if (runtimeClassName !== undefined && runtime !== undefined && runtime !== runtimeClassName) {
    if (!allowedRuntimeClasses.some((name) => name === runtime)) {
      const right = `leave it out or write ${[runtimeClassName, ...allowedRuntimeClasses].join(' or ')}`;
      problems.push(forbidden('spec.runtimeClassName', runtime, 'is not one that gives containers their GPU', right));
    }
  }
  for (const list of ['volumes', 'initContainers', 'containers']) {
    problems.push(...checkList(field(spec, list), `spec.${list}`));
  }
  return problems;
}

/** Two containers of one name would be one container to limits and grants. */
export function checkNames(places: readonly ContainerPlace[]): Problem[] {
  const seen = new Set<unknown>();
  return places.flatMap(({ container, path }) => {
    const name = field(container, 'name');
    if (!seen.has(name)) {
      seen.add(name);
      return [];
    }
    return [invalid(`${path}.name`, name ?? 'nothing', 'names a second container', 'give each container its own name')];
  });
}

/** One container of a pod with a share; `hasShare` says whether it is this one that has it. */
export function checkContainer(place: ContainerPlace, hasShare: boolean): Problem[] {
  const { container, path } = place;
  const name = field(container, 'name');
  const problems = checkLists(place);
  if (!isContainerName(name)) {
    const right = 'write at most 63 of a-z, 0-9 and "-"';
    problems.push(invalid(`${path}.name`, name ?? 'nothing', 'is no name of a container', right));
  }
  problems.push(...checkVolumeMounts(container, path, hasShare ? textAt(container, 'name') : undefined));
  problems.push(...checkDeviceLists(container, path));
  if (hasShare) problems.push(...checkCovers(container, path));
  if (hasShare) problems.push(...checkPrivileges(container, path, [...REFUSED_CAPABILITIES, 'SYS_PTRACE']));
  return problems;
}

/**
 * A debug container in a pod with a share. It gets no device, so it may trace (which a process may do to its own kind
 * anyway), but not enter another container's mounts.
 */
export function checkEphemeral(container: unknown, path: string): Problem[] {
  if (!isObject(container)) return [invalid(path, container, 'is not a container', 'write an object with a name')];
  return [
    ...checkVolumeMounts(container, path, undefined),
    ...checkDeviceLists(container, path),
    ...checkPrivileges(container, path, REFUSED_CAPABILITIES),
  ];
}

function checkPrivileges(container: JsonObject, path: string, refused: readonly string[]): Problem[] {
  const context = field(container, 'securityContext');
  const problems: Problem[] = [];
  const wrong = 'would let the container out of its limits';
  if (field(context, 'privileged') === true) {
    const at = `${path}.securityContext.privileged`;
    problems.push(forbidden(at, true, wrong, 'leave it out in a pod with a share of a GPU'));
  }
  for (const [index, added] of listAt(field(context, 'capabilities'), 'add').entries()) {
    const name = String(typeof added === 'string' ? added : '')
      .toUpperCase()
      .replace(/^CAP_/, '');
    if (!refused.includes(name)) continue;
    const at = `${path}.securityContext.capabilities.add[${index}]`;
    problems.push(forbidden(at, added, wrong, `leave out ${refused.join(', ')} in a pod with a share of a GPU`));
  }
  return problems;
}

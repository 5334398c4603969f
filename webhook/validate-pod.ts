// Refuses what a pod with a share of a GPU may not have, because it would escape the limits or bypass the scheduler.
// Volumes and mounts are in volume.ts; environment variables are removed, not refused (environment.ts).

import { GPU, GPU_CORES, GPU_MEMORY, isContainerName, isGrantKey, isOwnKey, OWN_RESOURCES } from '../src/api/names.ts';
import { field, isObject, type JsonObject, listAt, objectAt } from '../src/common/json.ts';
import { forbidden, invalid, keyPath, type Problem } from '../src/common/problem.ts';
import { sameQuantity } from '../src/common/quantity.ts';
import type { PodContainer } from '../src/request/containers.ts';
import { ownsResource } from '../src/request/dialects/dialect.ts';
import { dialectsOf } from '../src/request/dialects/index.ts';
import { requiredNodeLabels } from '../src/request/node-labels.ts';
import type { Rules } from '../src/request/rules/namespace-rules.ts';
import type { WebhookConfiguration } from './config.ts';
import { checkDeviceLists, checkList, checkLists, checkReservedPaths, checkVolumeMounts } from './volume.ts';

/**
 * With each of them a container can unmount, mount or load its way out, or create device nodes that it was not granted
 * (CVE-2021-1056); ALL contains them. Some runtimes give MKNOD to every container: there the device cgroup holds the
 * limit.
 */
const REFUSED_CAPABILITIES: readonly string[] = ['ALL', 'SYS_ADMIN', 'SYS_MODULE', 'SYS_RAWIO', 'BPF', 'MKNOD'];

/** Names of NVIDIA's device plugin: whole GPUs, its time-sliced replicas, and MIG instances. */
const DEVICE_PLUGIN_RESOURCE = /^nvidia\.com\/(gpu(\.shared)?|mig-[a-z0-9.-]+)$/;
/** The second one is older, and still on nodes. */
const OS_LABELS = ['kubernetes.io/os', 'beta.kubernetes.io/os'] as const;

/** Annotations that only the scheduler's Binding and operators write: no pod is created with them. */
export function checkGrantKeys(annotations: JsonObject): Problem[] {
  return Object.keys(annotations)
    .filter(isGrantKey)
    .map((key) => {
      const wrong = 'is written only by the scheduler or an operator';
      return forbidden(
        keyPath('metadata.annotations', key),
        field(annotations, key),
        wrong,
        'leave this annotation out',
      );
    });
}

/** Schedulers that call our extender; a pod that names one of them keeps it. */
export function ownSchedulers({ schedulerName, allowedSchedulers }: WebhookConfiguration): readonly string[] {
  return [schedulerName, ...allowedSchedulers];
}

/** The pod as a whole. `schedulers`: names that our own replaces. */
export function checkPod(pod: unknown, schedulers: readonly string[], configuration: WebhookConfiguration): Problem[] {
  const spec = field(pod, 'spec');
  const problems: Problem[] = [];
  if (field(spec, 'hostPID') === true) {
    const wrong = 'lets the container reach the processes of other tenants';
    problems.push(forbidden('spec.hostPID', true, wrong, 'leave it out in a pod with a share of a GPU'));
  }
  const affinity = requiredNodeLabels({ spec: { affinity: field(spec, 'affinity') } });
  for (const [path, os] of [
    ['spec.os.name', field(field(spec, 'os'), 'name')],
    ...OS_LABELS.flatMap((label) => [
      [keyPath('spec.nodeSelector', label), field(field(spec, 'nodeSelector'), label)] as const,
      ['spec.affinity.nodeAffinity', field(affinity, label)] as const,
    ]),
  ] as const) {
    if (os === 'windows')
      problems.push(invalid(path, os, 'has no shares of GPUs', 'ask for a share in a pod of a Linux node'));
  }
  // Containers may have the options, too (kubernetes.io, "Configure RunAsUserName for Windows pods and containers").
  const contexts = ['initContainers', 'containers'].flatMap((list) =>
    listAt(spec, list).map((container, index) => [`spec.${list}[${index}]`, container] as const),
  );
  for (const [at, one] of [['spec', spec] as const, ...contexts]) {
    if (Object.keys(objectAt(field(one, 'securityContext'), 'windowsOptions')).length === 0) continue;
    const path = `${at}.securityContext.windowsOptions`;
    problems.push(invalid(path, undefined, 'has no shares of GPUs', 'leave it out: Linux alone has them'));
  }
  const nodeName = field(spec, 'nodeName');
  if (nodeName !== undefined && nodeName !== '') {
    const right = 'leave it out; to choose a node use spec.nodeSelector or spec.affinity';
    problems.push(forbidden('spec.nodeName', nodeName, 'bypasses the scheduler, which grants GPUs', right));
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

/** Names of ours that do not exist: no node has them, so the pod would wait forever. */
export function checkOwnNames(containers: readonly PodContainer[]): Problem[] {
  return containers.flatMap(({ spec, path }) =>
    ['limits', 'requests'].flatMap((list) =>
      Object.entries(objectAt(objectAt(spec, 'resources'), list))
        .filter(([name]) => isOwnKey(name) && !OWN_RESOURCES.includes(name))
        .map(([name, amount]) => {
          const right = `write ${nearestOf(name)} (there are ${OWN_RESOURCES.join(', ')})`;
          return invalid(keyPath(`${path}.resources.${list}`, name), amount, 'is not known to Cotenant', right);
        }),
    ),
  );
}

/** What was meant: `gpumem` and `memory` are memory, `gpu-percent` and `core` compute, `gpus` a number. */
function nearestOf(name: string): string {
  if (/mem/i.test(name)) return GPU_MEMORY;
  if (/core|percent|compute/i.test(name)) return GPU_CORES;
  return name.startsWith(GPU) ? GPU : GPU_MEMORY;
}

/** Kubernetes takes no resource of devices for a pod as a whole. */
export function checkPodResources(pod: unknown, rules: Rules): Problem[] {
  const resources = field(field(pod, 'spec'), 'resources');
  const isRead = (name: string) => isOwnKey(name) || dialectsOf(rules).some((dialect) => ownsResource(dialect, name));
  return ['limits', 'requests'].flatMap((list) =>
    Object.entries(objectAt(resources, list))
      .filter(([name]) => isRead(name))
      .map(([name, amount]) => {
        const path = keyPath(`spec.resources.${list}`, name);
        return invalid(path, amount, 'is asked for by the pod as a whole', 'write it under the container that uses it');
      }),
  );
}

/** Limits and grants are kept by container name. */
export function checkUniqueNames(containers: readonly PodContainer[]): Problem[] {
  const seen = new Set<unknown>();
  return containers.flatMap(({ spec, path }) => {
    const name = field(spec, 'name');
    if (!seen.has(name)) {
      seen.add(name);
      return [];
    }
    return [invalid(`${path}.name`, name ?? 'nothing', 'names a second container', 'give each container its own name')];
  });
}

/** One container of a pod with a share, which this container has or not. */
export function checkContainer(container: PodContainer, hasShare: boolean, rules: Rules): Problem[] {
  const { spec, path } = container;
  const name = field(spec, 'name');
  const problems = checkLists(container);
  if (!isContainerName(name)) {
    const right = 'write at most 63 of a-z, 0-9 and "-"';
    problems.push(invalid(`${path}.name`, name ?? 'nothing', 'is not a container name', right));
  }
  problems.push(...checkVolumeMounts(spec, path, hasShare ? container.name : undefined));
  problems.push(...checkDeviceLists(spec, path));
  if (hasShare) problems.push(...checkReservedPaths(spec, path));
  const tracing = rules.allowPtrace ? [] : ['SYS_PTRACE'];
  if (hasShare) problems.push(...checkPrivileges(spec, path, [...REFUSED_CAPABILITIES, ...tracing]));
  problems.push(...checkWholeGpus(spec, path, rules));
  return problems;
}

/** NVIDIA's device plugin and the agent cannot both give out a node's GPUs, so a pod that needs both would wait
 * forever. */
function checkWholeGpus(container: JsonObject, path: string, rules: Rules): Problem[] {
  const resources = field(container, 'resources');
  const isRead = (name: string) => dialectsOf(rules).some((dialect) => ownsResource(dialect, name));
  return ['limits', 'requests'].flatMap((list) =>
    Object.entries(objectAt(resources, list))
      .filter(([name, amount]) => DEVICE_PLUGIN_RESOURCE.test(name) && !isRead(name) && !sameQuantity(amount, '0'))
      .map(([name, amount]) => {
        const wrong = "is given by NVIDIA's device plugin, which does not run on nodes with shares";
        const right = `leave it out, or write ${GPU}: 1 without ${GPU_MEMORY} for a whole GPU`;
        return invalid(keyPath(`${path}.resources.${list}`, name), amount, wrong, right);
      }),
  );
}

/**
 * A debug container in a pod with a share. It gets no device, so it may trace (a process may trace those of its own
 * user anyway), but not enter another container's mounts.
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
  const wrong = 'would let the container escape its limits';
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

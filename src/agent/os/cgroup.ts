// Parses /proc/PID/cgroup and finds the container that it names: cgroup v1 and v2, both cgroup drivers of the kubelet,
// all common container runtimes, nested paths; also the cgroups of process grants. Does not find the pod of a container
// id.
import { readFileSync } from 'node:fs';

type CgroupOwner = {
  /** 64 hexadecimal digits. */
  readonly containerId?: string;
  /** With dashes; of a static pod 32 hexadecimal digits. */
  readonly podUid?: string;
  /** The path that it was found in. */
  readonly path: string;
};

/** Name of a process grant's cgroup, below the cgroup of the grant's owner. */
export const tenantGroup = (id: string): string => `cotenant-${id}`;

/** Path in the unified hierarchy; undefined on hosts without it. */
export const unifiedPath = (text: string): string | undefined =>
  text
    .split('\n')
    .find((line) => line.startsWith('0::'))
    ?.slice('0::'.length);

/** Is a process in that cgroup of the unified hierarchy, or below it? Compares the whole path, because a name alone can
 * be forged. */
export function isInGroup(text: string, group: string): boolean {
  const path = unifiedPath(text);
  return path !== undefined && (path === group || path.startsWith(`${group}/`));
}

/**
 * A container's own group in the unified hierarchy, whichever of those below it a process is in. Undefined on hosts
 * that keep containers elsewhere, and for a reader in a cgroup namespace of its own, where paths are not those of the
 * mount.
 */
export function containerGroup(text: string, containerId: string): string | undefined {
  const path = unifiedPath(text);
  const at = path?.indexOf(containerId) ?? -1;
  if (path === undefined || at < 0 || path.split('/').includes('..')) return undefined;
  const end = path.indexOf('/', at);
  const group = (end < 0 ? path : path.slice(0, end)).replace(/ \(deleted\)$/, '');
  return ownerOf(`0::${group}`).containerId === containerId ? group : undefined;
}

// In hybrid hosts the unified line may point at the runtime's own service, so named controllers come first.
const CONTROLLERS = ['memory', 'pids', 'devices', 'cpu', 'name=systemd'];
const POD =
  /(?:^|-)pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$/;
const CONTAINER = /^(?:(?<prefix>[a-z][a-z-]*)-)?(?<id>[0-9a-f]{64})(?:\.scope)?$/;
const MONITOR = 'crio-conmon';

/**
 * The outermost container of a known pod, else what `ownerOf` says: a container that may create cgroups can name one
 * after another pod's container, below its own.
 */
export function knownOwnerOf(text: string, podOf: (containerId: string) => string | undefined): CgroupOwner {
  const found = ownerOf(text);
  if (found.podUid === undefined || found.containerId === undefined) return found;
  const outer = pathsOf(text)
    .flatMap(pairsOf)
    .find(({ containerId, podUid }) => podUid !== undefined && podOf(containerId) === podUid);
  return outer ?? found;
}

/** The best result of all lines: one with a pod, else one with a container id, else none. */
export function ownerOf(text: string): CgroupOwner {
  const owners = pathsOf(text).map(ownerOfPath);
  const best =
    owners.find((owner) => owner.podUid !== undefined && owner.containerId !== undefined) ??
    owners.find((owner) => owner.containerId !== undefined) ??
    owners[0];
  return best ?? { path: '' };
}

/** Lines of the most reliable controllers first. */
function pathsOf(text: string): readonly string[] {
  const lines = text.split('\n').flatMap((line) => {
    // Only a line feed ends a line: names of groups may hold every other character, also those that a dot leaves out.
    const [, controllers, path] = /^\d+:([^:]*):(.*)$/s.exec(line) ?? [];
    return controllers === undefined || path === undefined ? [] : [{ controllers: controllers.split(','), path }];
  });
  const rank = (controllers: readonly string[]): number => {
    const index = CONTROLLERS.findIndex((name) => controllers.includes(name));
    return index === -1 ? CONTROLLERS.length : index;
  };
  return lines.toSorted((a, b) => rank(a.controllers) - rank(b.controllers)).map(({ path }) => path);
}

/** Parses one path: its last pod segment (outer ones belong to a nested node), and the first container id after it. */
function ownerOfPath(path: string): CgroupOwner {
  let podUid: string | undefined;
  let containerId: string | undefined;
  for (const { pod, container } of partsOf(path)) {
    if (pod !== undefined) [podUid, containerId] = [pod, undefined];
    else containerId ??= container;
  }
  return { path, ...(containerId !== undefined && { containerId }), ...(podUid !== undefined && { podUid }) };
}

/** All pods of one path, outermost first, each with the first container id after it. */
function pairsOf(path: string): readonly Required<CgroupOwner>[] {
  const pairs: Required<CgroupOwner>[] = [];
  let podUid: string | undefined;
  for (const { pod, container } of partsOf(path)) {
    if (pod !== undefined) podUid = pod;
    else if (container !== undefined && podUid !== undefined) {
      pairs.push({ containerId: container, podUid, path });
      podUid = undefined;
    }
  }
  return pairs;
}

/** The pods and ids that its segments name. */
type Part = { readonly pod?: string; readonly container?: string };
function partsOf(path: string): readonly Part[] {
  return path
    .replace(/ \(deleted\)$/, '')
    .split('/')
    .flatMap((segment) => segment.split(':')) // a mismatch of cgroup drivers fuses "slice:runtime:id"
    .flatMap((segment): readonly Part[] => {
      const pod = POD.exec(segment)?.[1]?.replaceAll('_', '-');
      if (pod !== undefined) return [{ pod }];
      const found = CONTAINER.exec(segment)?.groups;
      return found?.id && found.prefix !== MONITOR ? [{ container: found.id }] : [];
    });
}

/** Where the unified hierarchy is mounted, or undefined. */
export function unifiedMount(): string | undefined {
  const line = readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .find((entry) => / - cgroup2 /.test(entry));
  return line?.split(' ')[4];
}

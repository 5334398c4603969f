// From the text of /proc/PID/cgroup to the container it names: v1 and v2, both drivers of the kubelet, the runtimes that
// are in use, nested paths; and the groups that hold plain processes. Pure text; finding the pod of a container id is not here.

export type CgroupOwner = {
  /** 64 hexadecimal digits. */
  readonly containerId?: string;
  /** With dashes; of a static pod 32 hexadecimal digits. */
  readonly podUid?: string;
  /** The path that it was found in. */
  readonly path: string;
};

/** Name of the group that holds one grant's plain processes, below the group of the process that the grant was given to. */
export const tenantGroup = (id: string): string => `cotenant-${id}`;

/** Path in the unified hierarchy; undefined where there is none. */
export const unifiedPath = (text: string): string | undefined =>
  text
    .split('\n')
    .find((line) => line.startsWith('0::'))
    ?.slice('0::'.length);

/** Is a process in that group of the unified hierarchy, or below it? The whole path counts: a name alone can be imitated. */
export function isInGroup(text: string, group: string): boolean {
  const path = unifiedPath(text);
  return path !== undefined && (path === group || path.startsWith(`${group}/`));
}

/**
 * A container's own group in the unified hierarchy, whichever of those below it a process is in. Undefined on hosts that keep
 * containers elsewhere, and for a reader in a cgroup namespace of its own, whose paths are not those of the mount.
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

/** What each line says, the most telling one wins: a pod anywhere beats a bare id, that beats nothing. */
export function ownerOf(text: string): CgroupOwner {
  const lines = text.split('\n').flatMap((line) => {
    // Only a line feed ends a line: names of groups may hold every other character, also those that a dot leaves out.
    const [, controllers, path] = /^\d+:([^:]*):(.*)$/s.exec(line) ?? [];
    return controllers === undefined || path === undefined ? [] : [{ controllers: controllers.split(','), path }];
  });
  const rank = (controllers: readonly string[]): number => {
    const index = CONTROLLERS.findIndex((name) => controllers.includes(name));
    return index === -1 ? CONTROLLERS.length : index;
  };
  const owners = lines
    .toSorted((a, b) => rank(a.controllers) - rank(b.controllers))
    .map(({ path }) => ownerOfPath(path));
  const best =
    owners.find((owner) => owner.podUid !== undefined && owner.containerId !== undefined) ??
    owners.find((owner) => owner.containerId !== undefined) ??
    owners[0];
  return best ?? { path: '' };
}

/** One path: the last pod segment counts (outer ones are the node's own nesting), and the first id behind it. */
function ownerOfPath(path: string): CgroupOwner {
  const segments = path
    .replace(/ \(deleted\)$/, '')
    .split('/')
    .flatMap((segment) => segment.split(':')) // a mismatch of cgroup drivers fuses "slice:runtime:id"
    .filter((segment) => segment !== '' && segment !== '.' && segment !== '..');
  let podUid: string | undefined;
  let after = 0;
  segments.forEach((segment, index) => {
    const uid = POD.exec(segment)?.[1];
    if (!uid) return;
    podUid = uid.replaceAll('_', '-');
    after = index + 1;
  });
  for (const segment of segments.slice(after)) {
    const found = CONTAINER.exec(segment)?.groups;
    if (!found?.id || found.prefix === MONITOR) continue;
    return { containerId: found.id, path, ...(podUid === undefined ? {} : { podUid }) };
  }
  return { path, ...(podUid === undefined ? {} : { podUid }) };
}

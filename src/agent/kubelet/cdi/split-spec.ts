// Splits NVIDIA's CDI specification into parts by driver capability, so that a container gets only the parts that its
// namespace allows. driver-files.ts assigns files to capabilities.
import { DRIVER_CAPABILITIES, type DriverCapability } from '../../../request/rules/namespace-rules.ts';
import {
  ALL_CONTAINERS,
  capabilitiesOfFile,
  capabilitiesOfHook,
  capabilitiesOfNode,
  finderOf32BitLibraries,
  LIMITS_VARIABLES,
  type NeededBy,
} from './driver-files.ts';
import type { CdiDevice, CdiSpec, Edits, Source } from './spec.ts';

/**
 * The CDI kind of our devices: each GPU by its UUID, with the edits for every container, and each nonempty part by its
 * capabilities. One kind, so that all devices are in one file, which belongs to one driver version at any moment.
 */
export const OWN_KIND = 'cotenant.io/gpu';

/** The capabilities that a part requires: one of `anyOf`, and compat32 for 32-bit files. */
type Needs = { readonly anyOf: NeededBy; readonly compat32: boolean };

/** `graphics`, `graphics-display`, `video.compat32`, `compat32`; empty: the part for every container. */
const nameOf = ({ anyOf, compat32 }: Needs): string =>
  [anyOf.join('-'), compat32 ? 'compat32' : ''].filter((text) => text !== '').join('.');

type Piece = { readonly needs: Needs; readonly edits: Edits };

/** First the part for every container, which also has unknown lists. Each entry is in one part, except hooks that never
 * run. */
function piecesOf(edits: Edits, isNarrow: (path: string) => boolean): readonly [forAll: Edits, ...Piece[]] {
  const { mounts, deviceNodes, hooks, ...rest } = edits;
  const pieces = new Map<string, Piece>();
  pieces.set('', { needs: { anyOf: ALL_CONTAINERS, compat32: false }, edits: rest });
  const put = (list: 'mounts' | 'deviceNodes' | 'hooks', entry: object, anyOf: NeededBy, compat32 = false) => {
    const needs = { anyOf, compat32 };
    const before = pieces.get(nameOf(needs))?.edits ?? {};
    pieces.set(nameOf(needs), { needs, edits: { ...before, [list]: [...(before[list] ?? []), entry] } });
  };
  for (const node of deviceNodes ?? []) put('deviceNodes', node, capabilitiesOfNode(node.path));
  for (const mount of mounts ?? [])
    put('mounts', mount, capabilitiesOfFile(mount.containerPath), isNarrow(mount.containerPath));
  for (const hook of hooks ?? []) {
    const anyOf = capabilitiesOfHook(hook.args ?? []);
    if (anyOf) put('hooks', hook, anyOf);
  }
  const [forAll, ...others] = pieces.values();
  return [forAll?.edits ?? {}, ...others];
}

type Part = {
  /** Name of its CDI device. */
  readonly name: string;
  readonly needs: Needs;
  /** The GPU that it belongs to; absent: all GPUs. */
  readonly gpu?: string;
};

export type SplitSpec = {
  /** The specification to write. */
  readonly spec: CdiSpec;
  readonly gpus: ReadonlySet<string>;
  readonly parts: readonly Part[];
};

/** Splits a specification into devices for its GPUs and for parts of the driver. */
export function splitSpec({ found: { spec }, gpus }: Source): SplitSpec {
  const given = spec.devices.filter(({ name }) => gpus.includes(name));
  const all = [spec, ...given].flatMap(({ containerEdits: { mounts } }) => mounts ?? []);
  const isNarrow = finderOf32BitLibraries(all.map(({ containerPath }) => containerPath));
  const present = new Set<string>();
  const parts: Part[] = [];
  const devices: CdiDevice[] = [];
  const [forAll, ...common] = piecesOf(spec.containerEdits, isNarrow);
  for (const { needs, edits } of common) {
    parts.push({ name: nameOf(needs), needs });
    devices.push({ name: nameOf(needs), containerEdits: edits });
  }
  for (const device of given) {
    const [own, ...ofGpu] = piecesOf(device.containerEdits, isNarrow);
    // CDI readers refuse a file with an empty device; containers get such a GPU from NVIDIA's own specification.
    if (isNothing(own)) continue;
    present.add(device.name);
    devices.push({ ...device, containerEdits: own });
    for (const { needs, edits } of ofGpu) {
      const name = `${device.name}.${nameOf(needs)}`;
      parts.push({ name, needs, gpu: device.name });
      devices.push({ name, containerEdits: edits });
    }
  }
  return { spec: { ...spec, kind: OWN_KIND, devices, containerEdits: forAll }, gpus: present, parts };
}

const isNothing = (edits: Edits): boolean =>
  Object.values(edits).every((value) => value === undefined || value === null || Object.keys(value).length === 0);

/** Our CDI devices for a container with these GPUs; undefined: one of the GPUs is missing. */
export function devicesFor(
  { gpus, parts }: SplitSpec,
  granted: readonly string[],
  allowed: ReadonlySet<DriverCapability>,
): readonly string[] | undefined {
  if (!granted.every((gpu) => gpus.has(gpu))) return undefined;
  const isGiven = ({ gpu, needs: { anyOf, compat32 } }: Part) =>
    (gpu === undefined || granted.includes(gpu)) &&
    (!compat32 || allowed.has('compat32')) &&
    (anyOf.length === 0 || anyOf.some((one) => allowed.has(one)));
  const names = [...granted, ...parts.filter(isGiven).map(({ name }) => name)];
  return names.map((name) => `${OWN_KIND}=${name}`);
}

/**
 * Capabilities that the variable allows in an environment (`NAME=value`, the last one counts). Empty without the
 * variable: NVIDIA's default has only files that every container gets.
 */
export function allowedBy(env: readonly string[], variable: string): ReadonlySet<DriverCapability> {
  const value = env.findLast((entry) => entry.startsWith(`${variable}=`))?.slice(variable.length + 1) ?? '';
  const allowed = value.split(',');
  return new Set(DRIVER_CAPABILITIES.filter((name) => allowed.includes('all') || allowed.includes(name)));
}

/**
 * Why a container with this environment must not be created with these devices, as a clause; undefined: it may be.
 * NVIDIA's own devices may run the hook that ours leave out, and it would set the driver's limits from the container's
 * environment.
 */
export function refusalOf(devices: readonly string[], env: readonly string[]): string | undefined {
  if (devices.every((name) => name.startsWith(`${OWN_KIND}=`))) return undefined;
  const named = LIMITS_VARIABLES.filter((name) => env.some((entry) => entry.startsWith(`${name}=`)));
  if (named.length === 0) return undefined;
  return `${named.join(' and ')} in its environment (of its image, or by envFrom) would set the driver's limits here: take that out`;
}

// Splits NVIDIA's CDI specification into parts by driver capability, so that a container gets only the parts that its namespace
// allows. driver-files.ts assigns files to capabilities.
import { DRIVER_CAPABILITIES, type DriverCapability } from '../../../request/rules/namespace-rules.ts';
import { EVERYBODY, type For, fileIsFor, hookIsFor, LIMITS_VARIABLES, narrowAmong, nodeIsFor } from './driver-files.ts';
import type { CdiDevice, CdiSpec, Edits, Source } from './spec.ts';

/**
 * Of our devices: each GPU by its UUID, with what everybody has, and each part that there is something of by its needs. All of
 * one kind, for a kind's devices can be in one file, and one file is of one driver at any moment.
 */
export const OWN_KIND = 'cotenant.io/gpu';

/** What a container must be allowed for a part, and compat32 beside it where its files are 32-bit ones. */
export type Needs = { readonly anyOf: For; readonly compat32: boolean };

/** `graphics`, `graphics-display`, `video.compat32`, `compat32`; empty: it is everybody's. */
const nameOf = ({ anyOf, compat32 }: Needs): string =>
  [anyOf.join('-'), compat32 ? 'compat32' : ''].filter((word) => word !== '').join('.');

type Piece = { readonly needs: Needs; readonly edits: Edits };

/** The part that every container gets comes first; each entry is in one part, except hooks that are never given. Unknown lists are in the first part. */
function piecesOf(edits: Edits, isNarrow: (path: string) => boolean): readonly [everybodys: Edits, ...Piece[]] {
  const { mounts, deviceNodes, hooks, ...rest } = edits;
  const pieces = new Map<string, Piece>();
  pieces.set('', { needs: { anyOf: EVERYBODY, compat32: false }, edits: rest });
  const put = (list: 'mounts' | 'deviceNodes' | 'hooks', entry: object, anyOf: For, compat32 = false) => {
    const needs = { anyOf, compat32 };
    const before = pieces.get(nameOf(needs))?.edits ?? {};
    pieces.set(nameOf(needs), { needs, edits: { ...before, [list]: [...(before[list] ?? []), entry] } });
  };
  for (const node of deviceNodes ?? []) put('deviceNodes', node, nodeIsFor(node.path));
  for (const mount of mounts ?? []) put('mounts', mount, fileIsFor(mount.containerPath), isNarrow(mount.containerPath));
  for (const hook of hooks ?? []) {
    const anyOf = hookIsFor(hook.args ?? []);
    if (anyOf) put('hooks', hook, anyOf);
  }
  const [everybodys, ...others] = pieces.values();
  return [everybodys?.edits ?? {}, ...others];
}

export type Part = {
  /** Of its device. */
  readonly name: string;
  readonly needs: Needs;
  /** It is of this GPU alone. */
  readonly gpu?: string;
};

export type Divided = {
  /** What is to be written. */
  readonly spec: CdiSpec;
  readonly gpus: ReadonlySet<string>;
  readonly parts: readonly Part[];
};

/** The source's GPUs, and the parts of the driver beside them. */
export function divide({ found: { spec }, gpus }: Source): Divided {
  const given = spec.devices.filter(({ name }) => gpus.includes(name));
  const all = [spec, ...given].flatMap(({ containerEdits: { mounts } }) => mounts ?? []);
  const isNarrow = narrowAmong(all.map(({ containerPath }) => containerPath));
  const present = new Set<string>();
  const parts: Part[] = [];
  const devices: CdiDevice[] = [];
  const [everybodys, ...common] = piecesOf(spec.containerEdits, isNarrow);
  for (const { needs, edits } of common) {
    parts.push({ name: nameOf(needs), needs });
    devices.push({ name: nameOf(needs), containerEdits: edits });
  }
  for (const device of given) {
    const [own, ...ofGpu] = piecesOf(device.containerEdits, isNarrow);
    // Readers refuse a file with a device that changes nothing; such a GPU is left to its own specification.
    if (isNothing(own)) continue;
    present.add(device.name);
    devices.push({ ...device, containerEdits: own });
    for (const { needs, edits } of ofGpu) {
      const name = `${device.name}.${nameOf(needs)}`;
      parts.push({ name, needs, gpu: device.name });
      devices.push({ name, containerEdits: edits });
    }
  }
  return { spec: { ...spec, kind: OWN_KIND, devices, containerEdits: everybodys }, gpus: present, parts };
}

const isNothing = (edits: Edits): boolean =>
  Object.values(edits).every((value) => value === undefined || value === null || Object.keys(value).length === 0);

/** Devices of ours for a container with these GPUs; undefined: not all of them are here. */
export function devicesFor(
  { gpus, parts }: Divided,
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

/** What the variable allows in an environment (`NAME=value`, the last one counts). Without it NVIDIA's default, of which everybody has all. */
export function allowedBy(env: readonly string[], variable: string): ReadonlySet<DriverCapability> {
  const value = env.findLast((entry) => entry.startsWith(`${variable}=`))?.slice(variable.length + 1) ?? '';
  const words = value.split(',');
  return new Set(DRIVER_CAPABILITIES.filter((name) => words.includes('all') || words.includes(name)));
}

/**
 * Why no container of this environment may be made with these devices: NVIDIA's own may have the hook that is left out of ours, and
 * it would take from the container's environment what is ours to set. A clause; undefined: it may.
 */
export function refusalOf(devices: readonly string[], env: readonly string[]): string | undefined {
  if (devices.every((name) => name.startsWith(`${OWN_KIND}=`))) return undefined;
  const named = LIMITS_VARIABLES.filter((name) => env.some((entry) => entry.startsWith(`${name}=`)));
  if (named.length === 0) return undefined;
  return `${named.join(' and ')} in its environment (of its image, or by envFrom) would set the driver's limits here: take that out`;
}

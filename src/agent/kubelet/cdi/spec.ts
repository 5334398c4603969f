// Parses CDI specifications: checks the fields that split-spec.ts uses and keeps all others unchanged. Also decides
// which of several files counts for a GPU, by the rules of CDI.
import { field, isObject, type JsonObject, listAt, textAt } from '../../../common/json.ts';
import { err, ok, type Result } from '../../../common/result.ts';

/** Changes to a container; lists that are not named here are kept. */
export type Edits = JsonObject & {
  readonly mounts?: readonly (JsonObject & { readonly hostPath: string; readonly containerPath: string })[];
  readonly deviceNodes?: readonly (JsonObject & { readonly path: string })[];
  readonly hooks?: readonly (JsonObject & { readonly args?: readonly string[] })[];
};
export type CdiDevice = JsonObject & { readonly name: string; readonly containerEdits: Edits };
export type CdiSpec = JsonObject & {
  readonly cdiVersion: string;
  readonly kind: string;
  /** Edits for every device of the specification. */
  readonly containerEdits: Edits;
  readonly devices: readonly CdiDevice[];
};

/** The specification in what a file holds; an error is a clause about it. */
export function readSpec(value: unknown): Result<CdiSpec> {
  if (!isObject(value)) return err('it is no map');
  for (const key of ['cdiVersion', 'kind']) if ((textAt(value, key) ?? '') === '') return err(`${key} is no text`);
  const devices = field(value, 'devices');
  if (!Array.isArray(devices) || devices.length === 0) return err('devices is no list of some');
  for (const [index, device] of devices.entries()) {
    if ((textAt(device, 'name') ?? '') === '') return err(`devices[${index}].name is no text`);
    const fault = faultOf(field(device, 'containerEdits'), `devices[${index}].containerEdits`);
    if (fault !== undefined) return err(fault);
  }
  const common = field(value, 'containerEdits') ?? {};
  const fault = faultOf(common, 'containerEdits');
  return fault === undefined ? ok({ ...value, containerEdits: common } as CdiSpec) : err(fault);
}

function faultOf(edits: unknown, path: string): string | undefined {
  if (!isObject(edits)) return `${path} is no map`;
  for (const key of ['mounts', 'deviceNodes', 'hooks'])
    if (field(edits, key) !== undefined && !Array.isArray(edits[key])) return `${path}.${key} is no list`;
  const texts = (list: string, ...keys: readonly string[]) =>
    listAt(edits, list).flatMap((entry, index) =>
      keys.filter((key) => !textAt(entry, key)).map((key) => `${path}.${list}[${index}].${key} is no text`),
    )[0];
  const args = listAt(edits, 'hooks').findIndex((hook) => !isTexts(field(hook, 'args') ?? []));
  return (
    texts('mounts', 'hostPath', 'containerPath') ??
    texts('deviceNodes', 'path') ??
    (args < 0 ? undefined : `${path}.hooks[${args}].args is no list of texts`)
  );
}

const isTexts = (value: unknown): boolean => Array.isArray(value) && value.every((entry) => typeof entry === 'string');

export type Found = {
  readonly path: string;
  /** Its folder's place in the list: devices of a later folder hide those of the same name in an earlier one. */
  readonly folder: number;
  readonly spec: CdiSpec;
};

export type Source = {
  readonly found: Found;
  /** UUIDs of the GPUs that count from this file. */
  readonly gpus: readonly string[];
};

/** As the driver and NVIDIA's toolkit begin a GPU's name; numbers and `all` are other names of the same. */
const GPU = /^GPU-/;

/**
 * The file of the kind that has the GPUs; of several the one with the most. A name that two files of one folder have
 * counts from neither: runtimes refuse it.
 */
export function sourceOf(all: readonly Found[], kind: string): Source | undefined {
  const ofKind = all.filter(({ spec }) => spec.kind === kind);
  const names = new Set(ofKind.flatMap(({ spec }) => spec.devices.map(({ name }) => name)).filter((n) => GPU.test(n)));
  const gpusOf = new Map<Found, string[]>();
  for (const name of names) {
    const having = ofKind.filter(({ spec }) => spec.devices.some((device) => device.name === name));
    const last = Math.max(...having.map(({ folder }) => folder));
    const [one, another] = having.filter(({ folder }) => folder === last);
    if (one && !another) gpusOf.set(one, [...(gpusOf.get(one) ?? []), name]);
  }
  const [best] = [...gpusOf].sort(
    ([a, ours], [b, theirs]) => theirs.length - ours.length || b.folder - a.folder || (a.path < b.path ? -1 : 1),
  );
  return best && { found: best[0], gpus: best[1] };
}

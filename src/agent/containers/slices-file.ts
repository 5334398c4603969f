// The slices file: grants that this machine keeps for containers without a pod, each as one or several CDI devices.
// Reads it and names every error with its place. Pure but for the parser of YAML.
import { createRequire } from 'node:module';
import * as v from 'valibot';
import {
  COMPUTE_POLICIES,
  type ComputeChoice,
  type GpuShare,
  MOST_MEMORY_BYTES,
  MOST_WEIGHT,
  PRIORITIES,
  parseComputePolicy,
} from '../../api/request.ts';
import { MIB, parseWhole } from '../../common/quantity.ts';
import { err, ok, type Result } from '../../common/result.ts';
import { listOf, oneOf, parse, settings, whole } from '../../common/schema.ts';

const require = createRequire(import.meta.url);

/** One device: a grant of these shares, on GPUs among these. */
export type WantedSlice = {
  readonly device: string;
  readonly shares: readonly GpuShare[];
  /** UUIDs or indexes; empty: any. */
  readonly gpus: readonly string[];
  readonly models: readonly string[];
  readonly isolateMemory: boolean;
  readonly compute: ComputeChoice;
};

const MOST_COUNT = 100;
const NAME = /^[a-z]([-a-z0-9.]{0,40}[a-z0-9])?$/;
const MEMORY_WANTED = 'a whole number of MiB such as 4Gi or 512Mi, or "whole"';

const oneOrMore = <const S extends v.GenericSchema<unknown, string>>(item: S) =>
  v.pipe(
    v.unknown(),
    v.transform((given) => (Array.isArray(given) ? given : [given])),
    listOf(item, 1),
  );
const gpuName = v.pipe(
  v.unknown(),
  v.transform((given) => (typeof given === 'number' ? String(given) : given)),
  v.pipe(v.string(), v.regex(/^(\d{1,3}|GPU-[-0-9a-fA-F]+)$/, 'the index or the UUID of a GPU')),
);
const memory = v.pipe(
  v.string(MEMORY_WANTED),
  v.check((text) => text === 'whole' || bytesOf(text) !== undefined, MEMORY_WANTED),
);
const slice = settings({
  name: v.pipe(v.string(), v.regex(NAME, 'a name of small letters, digits, dots and dashes')),
  /** On each of its GPUs. */
  memory,
  cores: v.exactOptional(whole(1, 100)),
  coresLimit: v.exactOptional(whole(1, 100)),
  /** How many GPUs each slice has. */
  gpus: v.exactOptional(whole(1, 16), 1),
  /** Only these GPUs, or these models. */
  gpu: v.exactOptional(oneOrMore(gpuName)),
  model: v.exactOptional(oneOrMore(v.pipe(v.string(), v.trim(), v.nonEmpty('the name of a model')))),
  policy: v.exactOptional(
    v.pipe(
      v.unknown(),
      v.transform((given) => parseComputePolicy(String(given)) ?? given),
      oneOf(COMPUTE_POLICIES),
    ),
  ),
  priority: v.exactOptional(oneOf(PRIORITIES)),
  weight: v.exactOptional(whole(1, MOST_WEIGHT)),
  memoryIsolation: v.exactOptional(v.boolean(), true),
  /** How many slices of this kind there are. */
  count: v.exactOptional(whole(1, MOST_COUNT), 1),
});
const file = settings({ slices: listOf(slice) });

function bytesOf(text: string): number | undefined {
  const bytes = parseWhole(text, MIB, MOST_MEMORY_BYTES);
  return bytes.ok && bytes.value % MIB === 0 ? bytes.value : undefined;
}

function shareOf({ memory, cores, coresLimit }: v.InferOutput<typeof slice>): GpuShare {
  const bytes = bytesOf(memory);
  return {
    memory: bytes === undefined ? { kind: 'whole' } : { kind: 'bytes', bytes },
    ...(cores !== undefined && { coresPercent: cores }),
    ...(coresLimit !== undefined && { coresLimitPercent: coresLimit }),
  };
}

/** The devices that the file wants, or what is wrong with it. */
export function parseSlices(text: string): Result<readonly WantedSlice[]> {
  let value: unknown;
  try {
    const { parse: parseYaml } = require('yaml') as typeof import('yaml');
    value = parseYaml(text);
  } catch (error) {
    return err((error as Error).message.split('\n')[0] ?? '');
  }
  const parsed = parse(file, value ?? { slices: [] });
  if (!parsed.ok) return parsed;
  const wanted: WantedSlice[] = [];
  for (const [index, one] of parsed.value.slices.entries()) {
    const { name, count, gpus, gpu = [], model = [], policy, priority, weight, memoryIsolation: isolateMemory } = one;
    if (one.coresLimit !== undefined && one.coresLimit < (one.cores ?? Infinity))
      return err(`slices[${index}].coresLimit: ${one.coresLimit} needs cores of at most as much`);
    const compute = { ...(policy && { policy }), ...(priority && { priority }), ...(weight && { weight }) };
    const shares = Array.from({ length: gpus }, () => shareOf(one));
    for (let number = 1; number <= count; number++) {
      const device = count === 1 ? name : `${name}-${number}`;
      if (wanted.some((other) => other.device === device))
        return err(`slices[${index}].name: ${device} is the name of another slice, too`);
      wanted.push({ device, shares, gpus: gpu, models: model, isolateMemory, compute });
    }
  }
  return ok(wanted);
}

// A change of a container's memory while it runs: the format of the annotation `cotenant.io/memory`, which operators
// write, and the grant that the scheduler writes for it. Example: `{"main":"6Gi"}`; the amount is of each of its GPUs.
import * as v from 'valibot';
import { formatBytes, MIB, parseWhole } from '../common/quantity.ts';
import { err, ok, type Result } from '../common/result.ts';
import { mapOf, parseJson } from '../common/schema.ts';
import type { PodGrant } from './grant-annotation.ts';
import { containerName, MOST_MEMORY_BYTES } from './request.ts';

const size = v.pipe(
  v.unknown(),
  v.transform((given) => {
    const bytes = parseWhole(given, MIB, MOST_MEMORY_BYTES);
    if (bytes.ok && bytes.value % MIB === 0) return bytes.value;
    return typeof given === 'number' ? String(given) : given;
  }),
  v.number('an amount in whole MiB, such as "6Gi"'),
);
const sizesByContainer = mapOf(containerName, size);

/** Bytes on each GPU, by name of the container. */
type MemorySizes = ReadonlyMap<string, number>;

export function parseMemorySizes(text: string): Result<MemorySizes> {
  return parseJson(sizesByContainer, text);
}

/** The annotation after one more change of these containers. A text that cannot be read is replaced. */
export function addMemorySize(text: string | undefined, containers: readonly string[], bytes: number): string {
  const before = parseMemorySizes(text ?? '{}');
  const sizes = new Map(before.ok ? before.value : []);
  for (const name of containers) sizes.set(name, bytes);
  const byName = [...sizes].toSorted(([a], [b]) => (a < b ? -1 : 1));
  return JSON.stringify(Object.fromEntries(byName.map(([name, amount]) => [name, formatBytes(amount)])));
}

/** The grant with these amounts, also as limits; the same object where it has them. */
export function grantWithSizes(grant: PodGrant, sizes: MemorySizes): Result<PodGrant> {
  const names = grant.containers.map(({ name }) => name);
  const unknown = [...sizes.keys()].find((name) => !names.includes(name));
  if (unknown !== undefined)
    return err(`${unknown}: no container with a grant has this name; the pod has ${names.join(', ')}`);
  const isSame = grant.containers.every(({ name, gpus }) =>
    gpus.every(({ memoryBytes }) => memoryBytes === (sizes.get(name) ?? memoryBytes)),
  );
  if (isSame) return ok(grant);
  const containers = grant.containers.map((container) => {
    const bytes = sizes.get(container.name);
    if (bytes === undefined) return container;
    return { ...container, gpus: container.gpus.map((gpu) => ({ ...gpu, memoryBytes: bytes, limitBytes: bytes })) };
  });
  return ok({ ...grant, containers });
}

// The GPU amounts of one container's limits, by dialect, and the reverse: a request's amounts as `cotenant.io/*`
// resources. The meaning of an amount is in dialects/.

import { GPU, GPU_CORES, GPU_MEMORY } from '../api/names.ts';
import { type GpuShare, nominalBytes } from '../api/request.ts';
import { field, isObject, type JsonObject } from '../common/json.ts';
import { invalid, keyPath, type Problem } from '../common/problem.ts';
import { formatBytes, formatCount, sameQuantity } from '../common/quantity.ts';
import type { PodContainer } from './containers.ts';
import { type Dialect, isNamed, isPattern } from './dialects/dialect.ts';

/** Resource name -> text of its limit. */
export type Amounts = ReadonlyMap<string, string>;
/** Only dialects of which the container has at least one resource. */
export type AmountsByDialect = ReadonlyMap<Dialect, Amounts>;

export function amountPath(container: string, resource: string): string {
  return keyPath(`${container}.resources.limits`, resource);
}

/** Reads the limits; adds a problem wherever `requests` differ from them: a share has one size. */
export function collectAmounts(
  { spec, path: containerPath }: PodContainer,
  dialects: readonly Dialect[],
  problems: Problem[],
): AmountsByDialect {
  const found = new Map<Dialect, Map<string, string>>();
  const resources = field(spec, 'resources');
  if (resources === undefined) return found;
  const limits = mapAt(resources, 'limits', containerPath, problems);
  const requests = mapAt(resources, 'requests', containerPath, problems);
  if (limits === undefined && requests === undefined) return found;
  const taken = new Set<string>();
  const names = Object.keys({ ...limits, ...requests });
  for (const dialect of dialects) {
    if (names.some((name) => dialect.notBeside?.test(name))) continue;
    for (const resource of namesOf(dialect, [limits, requests])) {
      if (taken.has(resource)) continue;
      taken.add(resource);
      const limit = amountAt(limits, resource);
      const request = amountAt(requests, resource);
      if (limit === undefined && request === undefined) continue;
      const path = keyPath(`${containerPath}.resources.requests`, resource);
      if (limit === undefined) {
        problems.push(
          invalid(path, request, 'has no limit for the same resource', 'write the same amount under resources.limits'),
        );
      } else if (typeof limit !== 'string' && typeof limit !== 'number') {
        problems.push(
          invalid(amountPath(containerPath, resource), limit, 'is not a quantity', 'write a number or a text'),
        );
      } else if (request !== undefined && request !== limit && !sameQuantity(request, limit)) {
        problems.push(invalid(path, request, `is not the limit "${limit}"`, 'write the same amount in both'));
      } else {
        const amounts = found.get(dialect) ?? new Map<string, string>();
        found.set(dialect, amounts.set(resource, String(limit)));
      }
    }
  }
  return found;
}

/** Without the dialects of which all amounts are 0 and ask for nothing, also beside those of another dialect. */
export function askedFor(amounts: AmountsByDialect): AmountsByDialect {
  const asking = [...amounts].filter(
    ([dialect, own]) => !dialect.zeroIsNothing || [...own.values()].some((amount) => !sameQuantity(amount, '0')),
  );
  return asking.length === amounts.size ? amounts : new Map(asking);
}

/** Null is 0, as the API server reads it (apimachinery, Quantity.UnmarshalJSON); it sends none on. */
function amountAt(map: JsonObject | undefined, resource: string): unknown {
  return map !== undefined && Object.hasOwn(map, resource) ? (map[resource] ?? '0') : undefined;
}

/** The dialect's resources, with those in the maps in the place of a pattern. */
function namesOf({ resources }: Dialect, maps: readonly (JsonObject | undefined)[]): readonly string[] {
  return resources.flatMap((name) =>
    isPattern(name) ? maps.flatMap((map) => Object.keys(map ?? {}).filter((key) => isNamed(name, key))) : name,
  );
}

function mapAt(resources: unknown, key: string, path: string, problems: Problem[]): JsonObject | undefined {
  const found = field(resources, key);
  if (found === undefined || isObject(found)) return found;
  problems.push(invalid(`${path}.resources.${key}`, found, 'is not a map', 'write resource names with their amounts'));
  return undefined;
}

/**
 * The `cotenant.io/*` resources to count for these GPUs. Shares in percent and whole GPUs have a size only once the GPU
 * is known: the scheduler and quotas count only GPUs for them, and the exact share is in the request annotation.
 */
export function ownAmounts(gpus: readonly GpuShare[]): Amounts {
  const amounts = new Map([[GPU, formatCount(gpus.length)]]);
  let bytes: number | undefined = 0;
  let cores: number | undefined = 0;
  for (const { memory, coresPercent } of gpus) {
    const nominal = nominalBytes(memory);
    bytes = bytes === undefined || nominal === undefined ? undefined : bytes + nominal;
    cores = cores === undefined || coresPercent === undefined ? undefined : cores + coresPercent;
  }
  if (bytes !== undefined) amounts.set(GPU_MEMORY, formatBytes(bytes));
  if (cores !== undefined) amounts.set(GPU_CORES, formatCount(cores));
  return amounts;
}

/** True when both name the same resources with the same values, however they are written. */
export function sameAmounts(one: Amounts, other: Amounts): boolean {
  if (one.size !== other.size) return false;
  for (const [resource, amount] of one) {
    if (!sameQuantity(amount, other.get(resource))) return false;
  }
  return true;
}

/** `cotenant.io/gpu: 1, cotenant.io/gpu-memory: 3Gi`, for messages. */
export function showAmounts(amounts: Amounts): string {
  return [...amounts].map(([resource, amount]) => `${resource}: ${amount}`).join(', ');
}

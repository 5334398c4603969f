// The annotation `cotenant.io/request`: a pod's request as canonical JSON, so that nobody reads dialects twice.
// Owns the text form. One value has one text, and only that text is read: anything else was not written by us.

import { field, isObject, isWithin } from '../common/json.ts';
import { type Checked, invalid, keyPath } from '../common/problem.ts';
import { MIB } from '../common/quantity.ts';
import { err } from '../common/result.ts';
import { modeNamed } from '../policy/mode.ts';
import { isDialectName } from '../request/dialects/index.ts';
import { COMPUTE_POLICIES, PLACEMENTS, PRIORITIES } from '../request/rules/namespace-rules.ts';
import { isContainerName, REQUEST_ANNOTATION } from './names.ts';
import {
  type ContainerRequest,
  type GpuShare,
  type MemoryAmount,
  MOST_GPUS,
  MOST_MEMORY_BYTES,
  MOST_WEIGHT,
  type PodRequest,
} from './request.ts';

const VERSION = 1;

/** The canonical text: fixed order of keys, absent values left out, containers by name. */
export function formatRecord(request: PodRequest): string {
  return JSON.stringify({
    version: VERSION,
    priority: request.priority,
    placement: request.placement,
    computePolicy: request.computePolicy,
    computeWeight: request.computeWeight,
    enforcement: request.enforcement,
    gpuModels: request.gpuModels.length > 0 ? request.gpuModels : undefined,
    gpuUuids: request.gpuUuids.length > 0 ? request.gpuUuids : undefined,
    containers: request.containers.map(({ name, kind, dialect, asked, memoryIsolation, gpus }) => ({
      name,
      kind,
      dialect,
      asked: Object.fromEntries(Object.entries(asked).sort(([a], [b]) => (a < b ? -1 : 1))),
      memoryIsolation,
      gpus: gpus.map(({ memory, memoryLimit, coresPercent, coresLimitPercent }) => ({
        memory: formatAmount(memory),
        memoryLimit: memoryLimit && formatAmount(memoryLimit),
        coresPercent,
        coresLimitPercent,
      })),
    })),
  });
}

/** Reads the annotation's text back. Fails with one problem on everything that `formatRecord` does not write. */
export function parseRecord(text: unknown): Checked<PodRequest> {
  const request = typeof text === 'string' ? decode(text) : undefined;
  if (request !== undefined && formatRecord(request) === text) return { ok: true, value: request };
  const wrong = 'is not what the webhook writes';
  return err([invalid(keyPath('metadata.annotations', REQUEST_ANNOTATION), text, wrong, 'leave this annotation out')]);
}

function formatAmount(amount: MemoryAmount): MemoryAmount {
  switch (amount.kind) {
    case 'bytes':
      return { kind: 'bytes', bytes: amount.bytes };
    case 'units':
      return { kind: 'units', units: amount.units, unitBytes: amount.unitBytes, rounding: 'cgpu' };
    case 'percent':
      return { kind: 'percent', percent: amount.percent };
    case 'whole':
      return { kind: 'whole' };
  }
}

/** Types and ranges only: order of keys and strange extra keys show when the result is formatted again. */
function decode(text: string): PodRequest | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (field(value, 'version') !== VERSION) return undefined;
  const priority = PRIORITIES.find((name) => name === field(value, 'priority'));
  const placement = PLACEMENTS.find((name) => name === field(value, 'placement'));
  const computePolicy = COMPUTE_POLICIES.find((name) => name === field(value, 'computePolicy'));
  const computeWeight = field(value, 'computeWeight');
  if (computeWeight !== undefined && !isWithin(computeWeight, 1, MOST_WEIGHT)) return undefined;
  const enforcement = modeNamed(field(value, 'enforcement'));
  if (enforcement === 'enforce') return undefined; // it is not written
  const containers = every(field(value, 'containers'), decodeContainer);
  const gpuModels = every(field(value, 'gpuModels') ?? [], decodeText);
  const gpuUuids = every(field(value, 'gpuUuids') ?? [], decodeText);
  if (!priority || !containers || !gpuModels || !gpuUuids) return undefined;
  const names = containers.map((container) => container.name);
  if (names.length === 0 || names.some((name, index) => index > 0 && name <= (names[index - 1] ?? '')))
    return undefined;
  return {
    priority,
    ...(placement && { placement }),
    ...(computePolicy && { computePolicy }),
    ...(computeWeight !== undefined && { computeWeight }),
    ...(enforcement && { enforcement }),
    gpuModels,
    gpuUuids,
    containers,
  };
}

function decodeContainer(value: unknown): ContainerRequest | undefined {
  const [name, kind, dialect] = [field(value, 'name'), field(value, 'kind'), field(value, 'dialect')];
  const [asked, memoryIsolation] = [field(value, 'asked'), field(value, 'memoryIsolation')];
  const gpus = every(field(value, 'gpus'), decodeGpu);
  if (!isContainerName(name) || !isDialectName(dialect)) return undefined;
  if (kind !== 'init' && kind !== 'sidecar' && kind !== 'app') return undefined;
  if (memoryIsolation !== 'on' && memoryIsolation !== 'off') return undefined;
  if (!isObject(asked) || !gpus || gpus.length === 0 || gpus.length > MOST_GPUS) return undefined;
  const texts: [string, string][] = [];
  for (const [key, text] of Object.entries(asked)) {
    if (typeof text !== 'string') return undefined;
    texts.push([key, text]);
  }
  return { name, kind, dialect, asked: Object.fromEntries(texts), memoryIsolation, gpus };
}

function decodeGpu(value: unknown): GpuShare | undefined {
  const memory = decodeAmount(field(value, 'memory'));
  const [limit, coresPercent] = [field(value, 'memoryLimit'), field(value, 'coresPercent')];
  const coresLimitPercent = field(value, 'coresLimitPercent');
  const memoryLimit = limit === undefined ? undefined : decodeAmount(limit);
  if (!memory || (limit !== undefined && !memoryLimit)) return undefined;
  const share: GpuShare = memoryLimit ? { memory, memoryLimit } : { memory };
  if (coresPercent === undefined) return coresLimitPercent === undefined ? share : undefined;
  if (!isWithin(coresPercent, 1, 100)) return undefined;
  if (coresLimitPercent === undefined) return { ...share, coresPercent };
  return isWithin(coresLimitPercent, coresPercent, 100) ? { ...share, coresPercent, coresLimitPercent } : undefined;
}

function decodeAmount(value: unknown): MemoryAmount | undefined {
  const [bytes, units, unitBytes] = [field(value, 'bytes'), field(value, 'units'), field(value, 'unitBytes')];
  const percent = field(value, 'percent');
  switch (field(value, 'kind')) {
    case 'whole':
      return { kind: 'whole' };
    case 'percent':
      return isWithin(percent, 1, 99) ? { kind: 'percent', percent } : undefined;
    case 'bytes':
      return isWithin(bytes, MIB, MOST_MEMORY_BYTES) && bytes % MIB === 0 ? { kind: 'bytes', bytes } : undefined;
    case 'units': {
      if (!isWithin(unitBytes, MIB, MOST_MEMORY_BYTES) || unitBytes % MIB !== 0) return undefined;
      return isWithin(units, 1, MOST_MEMORY_BYTES / unitBytes)
        ? { kind: 'units', units, unitBytes, rounding: 'cgpu' }
        : undefined;
    }
    default:
      return undefined;
  }
}

function decodeText(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined;
}

/** The list with every entry read, or undefined as soon as one cannot be. */
function every<T>(value: unknown, read: (entry: unknown) => T | undefined): T[] | undefined {
  if (!Array.isArray(value)) return undefined;
  const entries: T[] = [];
  for (const entry of value) {
    const decoded = read(entry);
    if (decoded === undefined) return undefined;
    entries.push(decoded);
  }
  return entries;
}

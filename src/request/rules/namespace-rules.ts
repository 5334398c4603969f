// What a cluster's operator allows, per cluster and per namespace: dialects, their units, templates, choices.
// Owns the values and how a configuration file is read into them; applying them is left to the readers of pods.

import {
  COMPUTE_POLICIES,
  type ComputePolicy,
  MODES,
  MOST_WEIGHT,
  type Mode,
  PLACEMENTS,
  type Placement,
  PRIORITIES,
  type Priority,
} from '../../api/request.ts';
import { EMPTY, field, isObject, isWithin, type JsonObject } from '../../common/json.ts';
import { type Checked, invalid, keyPath, type Problem } from '../../common/problem.ts';
import { GIB, MIB } from '../../common/quantity.ts';
import { err } from '../../common/result.ts';

/** Dialects that are off until switched on: their names mean different things in different clusters. */
export type ForeignDialectName = 'ack' | 'metagpu';

/** As NVIDIA_DRIVER_CAPABILITIES names them. */
export type DriverCapability = 'compute' | 'utility' | 'graphics' | 'video' | 'display' | 'ngx' | 'compat32';

/** A named size: our own three amounts as text. */
export type Template = { readonly gpu?: string; readonly gpuMemory?: string; readonly gpuCores?: string };

export type Rules = {
  readonly dialects: readonly ForeignDialectName[];
  /** What one unit of `aliyun.com/gpu-mem` is in this cluster, and whether n units are n/units of a GPU or n times the unit. */
  readonly ack: { readonly unitBytes: number; readonly rounding: 'cgpu' | 'literal' };
  readonly templates: ReadonlyMap<string, Template>;
  readonly placements: readonly Placement[];
  readonly computePolicies: readonly ComputePolicy[];
  readonly priorities: readonly Priority[];
  /** The largest weight that a pod may choose; 0: none, its weight is what it asks for of compute. */
  readonly mostComputeWeight: number;
  /** How far the agent goes with a container over its grant; a pod may choose a stricter mode, and no weaker one. */
  readonly enforcement: Mode;
  /** Parts of the driver that a container may have. What graphics takes of memory no interposer sees: the agent holds it. */
  readonly driverCapabilities: readonly DriverCapability[];
  /** Choices by which a tenant could take from its neighbors, or pin a GPU. */
  readonly allowMemoryIsolationOff: boolean;
  readonly allowMemoryOvercommit: boolean;
  /** Shares whose bytes are known with the GPU alone (whole GPUs, and percent): no quota on memory counts them. */
  readonly allowUncountedMemory: boolean;
  readonly allowGpuModel: boolean;
  readonly allowGpuUuid: boolean;
};

const FOREIGN_DIALECTS: readonly ForeignDialectName[] = ['ack', 'metagpu'];

/** The escapes (isolation off, native policy, high priority, a fixed GPU, overcommit) are off until an operator says so. */
export const DEFAULT_RULES: Rules = {
  dialects: [],
  ack: { unitBytes: GIB, rounding: 'cgpu' },
  templates: new Map(),
  placements: PLACEMENTS,
  computePolicies: ['average', 'preemptive', 'weighted', 'fixed', 'soft'],
  priorities: ['normal'],
  mostComputeWeight: 0,
  enforcement: 'enforce',
  driverCapabilities: ['compute', 'utility'],
  allowMemoryIsolationOff: false,
  allowMemoryOvercommit: false,
  allowUncountedMemory: true,
  allowGpuModel: true,
  allowGpuUuid: false,
};

export const DRIVER_CAPABILITIES: readonly DriverCapability[] = [
  'compute',
  'utility',
  'graphics',
  'video',
  'display',
  'ngx',
  'compat32',
];
const ACK_UNITS: ReadonlyMap<string, number> = new Map([
  ['GiB', GIB],
  ['MiB', MIB],
  ['128MiB', 128 * MIB],
  ['256MiB', 256 * MIB],
  ['512MiB', 512 * MIB],
]);
const KEYS: readonly string[] = Object.keys(DEFAULT_RULES);

/** Reads the operator's settings over `base`; keys that are not given keep the base's value. */
export function parseRules(value: unknown, path: string, base: Rules): Checked<Rules> {
  if (value === undefined || value === null) return { ok: true, value: base };
  if (!isObject(value)) return err([invalid(path, value, 'is not a map of settings', `write ${KEYS.join(', ')}`)]);
  const problems: Problem[] = unknownKeys(value, KEYS, path);
  const choose = <T extends string>(key: string, known: readonly T[], present: readonly T[]): readonly T[] => {
    const given = field(value, key);
    if (given === undefined) return present;
    if (Array.isArray(given) && given.every((entry) => known.some((name) => name === entry))) return given as T[];
    problems.push(
      invalid(`${path}.${key}`, given, 'is not a list of known names', `write some of ${known.join(', ')}`),
    );
    return present;
  };
  const one = <T extends string>(key: string, known: readonly T[], present: T): T => {
    const given = field(value, key);
    const found = known.find((name) => name === given);
    if (given === undefined || found !== undefined) return found ?? present;
    // YAML 1.1 reads the bare words off and on as switches.
    const hint = given === false ? '; in YAML with quotes, "off"' : '';
    problems.push(invalid(`${path}.${key}`, given, 'is not a known name', `write one of ${known.join(', ')}${hint}`));
    return present;
  };
  const flag = (key: string, present: boolean): boolean => {
    const given = field(value, key);
    if (given === undefined || typeof given === 'boolean') return given ?? present;
    problems.push(invalid(`${path}.${key}`, given, 'is not a switch', 'write true or false'));
    return present;
  };
  const whole = (key: string, most: number, present: number): number => {
    const given = field(value, key);
    if (given === undefined || isWithin(given, 0, most)) return given ?? present;
    problems.push(invalid(`${path}.${key}`, given, 'is no such number', `write a whole number from 0 to ${most}`));
    return present;
  };
  const rules: Rules = {
    dialects: choose('dialects', FOREIGN_DIALECTS, base.dialects),
    ack: parseAck(field(value, 'ack'), `${path}.ack`, base.ack, problems),
    templates: parseTemplates(field(value, 'templates'), `${path}.templates`, base.templates, problems),
    placements: choose('placements', PLACEMENTS, base.placements),
    computePolicies: choose('computePolicies', COMPUTE_POLICIES, base.computePolicies),
    priorities: choose('priorities', PRIORITIES, base.priorities),
    driverCapabilities: choose('driverCapabilities', DRIVER_CAPABILITIES, base.driverCapabilities),
    enforcement: one('enforcement', MODES, base.enforcement),
    mostComputeWeight: whole('mostComputeWeight', MOST_WEIGHT, base.mostComputeWeight),
    allowMemoryIsolationOff: flag('allowMemoryIsolationOff', base.allowMemoryIsolationOff),
    allowMemoryOvercommit: flag('allowMemoryOvercommit', base.allowMemoryOvercommit),
    allowUncountedMemory: flag('allowUncountedMemory', base.allowUncountedMemory),
    allowGpuModel: flag('allowGpuModel', base.allowGpuModel),
    allowGpuUuid: flag('allowGpuUuid', base.allowGpuUuid),
  };
  // NVIDIA's toolkit takes an empty list for its own default, which is no fewer.
  if (rules.driverCapabilities.length === 0)
    problems.push(invalid(`${path}.driverCapabilities`, [], 'names none', 'write at least utility'));
  return problems.length > 0 ? err(problems) : { ok: true, value: rules };
}

/** One problem for each key that a map of settings must not have: a misspelt setting would silently not apply. */
export function unknownKeys(value: JsonObject, known: readonly string[], path: string): Problem[] {
  return Object.keys(value)
    .filter((key) => !known.includes(key))
    .map((key) => invalid(keyPath(path, key), field(value, key), 'is no setting', `known are ${known.join(', ')}`));
}

function parseAck(value: unknown, path: string, base: Rules['ack'], problems: Problem[]): Rules['ack'] {
  if (value === undefined) return base;
  const given = isObject(value) ? value : EMPTY;
  if (!isObject(value)) problems.push(invalid(path, value, 'is not a map of settings', 'write unit, rounding'));
  problems.push(...unknownKeys(given, ['unit', 'rounding'], path));
  const unit = field(given, 'unit');
  const unitBytes = unit === undefined ? base.unitBytes : ACK_UNITS.get(String(unit));
  if (unitBytes === undefined) {
    const right = `write one of ${[...ACK_UNITS.keys()].join(', ')}`;
    problems.push(invalid(`${path}.unit`, unit, 'is no unit that ACK knows', right));
  }
  const rounding = field(given, 'rounding') ?? base.rounding;
  if (rounding !== 'cgpu' && rounding !== 'literal') {
    problems.push(invalid(`${path}.rounding`, rounding, 'is no way to round', 'write cgpu or literal'));
    return base;
  }
  return { unitBytes: unitBytes ?? base.unitBytes, rounding };
}

function parseTemplates(
  value: unknown,
  path: string,
  base: Rules['templates'],
  problems: Problem[],
): Rules['templates'] {
  if (value === undefined) return base;
  if (!isObject(value)) {
    problems.push(invalid(path, value, 'is not a map from name to amounts', 'write small: {gpuMemory: 4Gi}'));
    return base;
  }
  const templates = new Map<string, Template>();
  for (const [name, amounts] of Object.entries(value)) {
    const at = keyPath(path, name);
    if (!/^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$/.test(name) || name.length > 63) {
      problems.push(invalid(at, name, 'is not a usable name', 'use letters, digits, "-", "_" and "."'));
    } else if (!isObject(amounts) || Object.keys(amounts).length === 0) {
      problems.push(invalid(at, amounts, 'names no amounts', 'write some of gpu, gpuMemory, gpuCores'));
    } else {
      problems.push(...unknownKeys(amounts, ['gpu', 'gpuMemory', 'gpuCores'], at));
      const text = (key: string) => (field(amounts, key) === undefined ? {} : { [key]: String(field(amounts, key)) });
      templates.set(name, { ...text('gpu'), ...text('gpuMemory'), ...text('gpuCores') });
    }
  }
  return templates;
}

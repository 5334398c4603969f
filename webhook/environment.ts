// Environment variables of a container: the GPUs and driver parts that it gets, and names that are removed. The
// interposer reads no variable; these are read by NVIDIA's toolkit and driver, and by other sharing systems.

import { DRIVER_CAPABILITIES_VARIABLE, memoryAnnotation, uuidsAnnotation } from '../src/api/names.ts';
import { isDeepEqual } from '../src/common/deep-equal.ts';
import { type JsonObject, textAt } from '../src/common/json.ts';
import { DRIVER_CAPABILITIES, type DriverCapability } from '../src/request/rules/namespace-rules.ts';
import type { DeviceRoute } from './config.ts';

export const VISIBLE_DEVICES = 'NVIDIA_VISIBLE_DEVICES';
/** NVIDIA's runtime then adds nothing to the container, whatever its image sets: no device, no driver library. */
export const NO_DEVICES = { name: VISIBLE_DEVICES, value: 'void' };

/**
 * Removed from containers with a share. LD_PRELOAD and LD_LIBRARY_PATH stay: images need them, and our route is
 * /etc/ld.so.preload. CUDA_VISIBLE_DEVICES stays: it can only narrow what was granted.
 */
const REMOVED: readonly { readonly names: RegExp; readonly because: string }[] = [
  { names: /^CUDA_MPS_/, because: 'all clients of one MPS server fail together' },
  { names: /^NVIDIA_GPU_MEMORY_/, because: 'the driver would take its memory limit from it' },
  { names: /^NVIDIA_MIG_(CONFIG|MONITOR)_DEVICES$/, because: 'it gives control over how GPUs are partitioned' },
  { names: /^LD_AUDIT$/, because: 'an audit library can make the loader bypass the interposer' },
  { names: /^(CUDA_DISABLE_CONTROL|CUDA_REDIRECT|CUDA_DEVICE_MEMORY_SHARED_CACHE)$/, because: 'it switches HAMi off' },
  { names: /^(ENABLE_CUDA_HOOKS|DISABLE_GPU_LIMITER)$/, because: 'it switches another sharing system off' },
  { names: /^CGPU_DISABLE$/, because: 'the webhook has read it, and cGPU does not enforce the limit here' },
  { names: /^COTENANT_/, because: 'these names are reserved for Cotenant' },
];

type Environment = { readonly entries: readonly unknown[]; readonly warnings: readonly string[] };

/** The variables of a container with a share. Warnings name removed and replaced variables; a second pass has none. */
export function shareEnvironment(
  entries: readonly unknown[],
  container: string,
  deviceRoute: DeviceRoute,
  allowed: readonly DriverCapability[],
): Environment {
  const warnings: string[] = [];
  const kept = entries.filter((entry) => {
    const name = textAt(entry, 'name') ?? '';
    const rule = REMOVED.find(({ names }) => names.test(name));
    // Not for a variable that a dialect reads: it had its effect.
    if (rule && name !== 'CGPU_DISABLE') warnings.push(`${container}: ${name} is removed: ${rule.because}`);
    return rule === undefined;
  });
  const visible = deviceRoute === 'nri' ? NO_DEVICES : grantedDevices(container);
  const present = findLastNamed(kept, VISIBLE_DEVICES);
  if (present !== undefined && !isDeepEqual(visible, present))
    warnings.push(`${container}: ${VISIBLE_DEVICES} is replaced`);
  const { value, warning } = capabilitiesOf(findLastNamed(kept, DRIVER_CAPABILITIES_VARIABLE), allowed);
  if (warning !== undefined) warnings.push(`${container}: ${DRIVER_CAPABILITIES_VARIABLE} ${warning}`);
  return { entries: withEntry(withEntry(kept, visible), { name: DRIVER_CAPABILITIES_VARIABLE, value }), warnings };
}

const USUAL: readonly string[] = ['compute', 'utility'];

/**
 * The requested driver parts that are allowed, all allowed ones for `all`, and the usual two where none is left. An
 * image's own value is always replaced: it is not known here.
 */
function capabilitiesOf(
  entry: unknown,
  allowed: readonly DriverCapability[],
): { readonly value: string; readonly warning?: string } {
  const isAllowed = (name: string) => allowed.some((one) => one === name);
  const known = USUAL.filter(isAllowed);
  const usual = (known.length === 0 ? allowed : known).join(',');
  const allowedAre = `allowed are ${allowed.join(', ')}`;
  if (entry === undefined) {
    const more = usual === allowed.join(',') ? [] : allowed.filter((name) => !USUAL.includes(name));
    if (more.length === 0) return { value: usual };
    return {
      value: usual,
      warning: `is set to ${usual}; the pod may set more: ${more.join(', ')}`,
    };
  }
  const asked = (textAt(entry, 'value') ?? '').split(',').flatMap((name) => name.trim() || []);
  if (asked.includes('all')) return { value: allowed.join(','), warning: `is replaced; ${allowedAre}` };
  const [given, lost] = [asked.filter(isAllowed), asked.filter((name) => !isAllowed(name))];
  if (given.length === 0) return { value: usual, warning: `is replaced; ${allowedAre}` };
  const value = [...new Set(given)].join(',');
  if (lost.length === 0) return { value };
  const names = DRIVER_CAPABILITIES.filter((name) => lost.includes(name));
  const others = lost.every((one) => names.some((name) => name === one)) ? [] : ['unknown names'];
  return { value, warning: `loses ${[...names, ...others].join(', ')}; ${allowedAre}` };
}

/** Its GPUs as the scheduler's Binding names them, resolved by the kubelet when it creates the container. */
function grantedDevices(container: string) {
  return fromAnnotation(VISIBLE_DEVICES, uuidsAnnotation(container));
}

/** The MiB that it was granted, likewise. */
export const grantedMemory = (name: string, container: string) => fromAnnotation(name, memoryAnnotation(container));

const fromAnnotation = (name: string, annotation: string) => {
  const fieldPath = `metadata.annotations['${annotation}']`;
  return { name, valueFrom: { fieldRef: { apiVersion: 'v1', fieldPath } } };
};

/** The variables of a container without a share, in a pod where another container has one. */
export function withoutGpus(entries: readonly unknown[]): readonly unknown[] {
  return withEntry(entries, NO_DEVICES);
}

/** The variables with those of `more` and `others` that are not among them. */
export function withMissing(
  entries: readonly unknown[],
  more: Readonly<Record<string, string>>,
  others: readonly { readonly name: string }[],
): readonly unknown[] {
  const all = [...Object.entries(more).map(([name, value]) => ({ name, value })), ...others];
  return [...entries, ...all.filter(({ name }) => findLastNamed(entries, name) === undefined)];
}

/** The entry that counts: of several with one name, Kubernetes takes the last. */
export function findLastNamed(entries: readonly unknown[], name: string): unknown {
  return entries.findLast((entry) => textAt(entry, 'name') === name);
}

/** The entries with `own` in the place of the first of its name, and no others of that name. */
function withEntry(entries: readonly unknown[], own: JsonObject): readonly unknown[] {
  const name = textAt(own, 'name');
  const first = entries.findIndex((entry) => textAt(entry, 'name') === name);
  if (first < 0) return [...entries, own];
  return entries
    .map((entry, index) => (index === first ? own : entry))
    .filter((entry, index) => index <= first || textAt(entry, 'name') !== name);
}

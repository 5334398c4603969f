// What the operator allows pods to request, per cluster, namespace and node pool: dialects and their units, templates,
// sizes, choices. Declares these settings of the webhook's configuration; the readers of pods apply them.
import * as v from 'valibot';
import {
  COMPUTE_POLICIES,
  FOREIGN_DIALECT_NAMES,
  MEMORY_ISOLATIONS,
  MODES,
  MOST_GPUS,
  MOST_MEMORY_BYTES,
  MOST_WEIGHT,
  PLACEMENTS,
  PRIORITIES,
} from '../../api/request.ts';
import { field, type JsonObject } from '../../common/json.ts';
import { GIB, MIB, parseQuantity, wholeUnits } from '../../common/quantity.ts';
import { listOf, mapOf, oneOf, settings, whole } from '../../common/schema.ts';

/** As NVIDIA_DRIVER_CAPABILITIES names them. */
export const DRIVER_CAPABILITIES = ['compute', 'utility', 'graphics', 'video', 'display', 'ngx', 'compat32'] as const;
export type DriverCapability = (typeof DRIVER_CAPABILITIES)[number];

const ACK_UNITS = { GiB: GIB, MiB: MIB, '128MiB': 128 * MIB, '256MiB': 256 * MIB, '512MiB': 512 * MIB };

const someOf = <const T extends readonly string[]>(names: T, least = 0) => v.nullish(listOf(oneOf(names), least));
const aSwitch = v.nullish(v.boolean());
const amount = v.nullish(v.pipe(v.union([v.string(), v.number()]), v.transform(String)));

const templateName = v.pipe(
  v.string(),
  v.regex(
    /^(?=.{1,63}$)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$/,
    'a name of at most 63 letters, digits, "-", "_", "."',
  ),
);
/** A named size: the three amounts of our own names. */
const template = v.pipe(
  settings({ gpu: amount, gpuMemory: amount, gpuCores: amount }),
  v.transform(given),
  v.check((amounts) => Object.keys(amounts).length > 0, 'some of gpu, gpuMemory, gpuCores'),
);
export type Template = v.InferOutput<typeof template>;

/** Whole MiB, in bytes once it is read. */
const memory = v.pipe(
  v.union([v.string(), v.number()]),
  v.check((text) => bytesOf(text) !== undefined, 'an amount of whole MiB such as "4Gi"'),
  v.transform((text) => bytesOf(text) ?? 0),
);

function bytesOf(text: string | number): number | undefined {
  const parsed = parseQuantity(text);
  const mebibytes = parsed.ok ? wholeUnits(parsed.value, BigInt(MIB)) : undefined;
  if (mebibytes === undefined || mebibytes < 1n || mebibytes > BigInt(MOST_MEMORY_BYTES / MIB)) return undefined;
  return Number(mebibytes) * MIB;
}

/** YAML 1.1 reads the bare words off and on as false and true. */
const withOff = <const T extends readonly string[]>(names: T) =>
  v.picklist(names, ({ input }) => {
    const hint = typeof input === 'boolean' ? `; in YAML with quotes, "${input ? 'on' : 'off'}"` : '';
    return `one of ${names.join(', ')}${hint}`;
  });

/** What a pool of nodes can set, too. */
const sizes = {
  /** Of each GPU, where a container asks for a part of one without saying how much; absent: all its memory, and no
   * share of its compute. */
  defaults: v.nullish(
    v.pipe(settings({ gpuMemory: v.nullish(memory), gpuCores: v.nullish(whole(1, 100)) }), v.transform(given)),
  ),
  /** The largest amounts that one container may ask for, over all its GPUs; absent: any. */
  most: v.nullish(
    v.pipe(
      settings({
        gpu: v.nullish(whole(1, MOST_GPUS)),
        gpuMemory: v.nullish(memory),
        gpuCores: v.nullish(whole(1, 100 * MOST_GPUS)),
      }),
      v.transform(given),
    ),
  ),
  /** Whether shares of pods that do not choose are held to their memory; off: they see the whole GPU and are refused
   * nothing, and count as granted. */
  memoryIsolation: v.nullish(withOff(MEMORY_ISOLATIONS)),
  /** What the agent does with a container over its grant; a pod may choose a stricter mode, not a weaker one. */
  enforcement: v.nullish(withOff(MODES)),
};

export const rulesSettings = settings({
  dialects: someOf(FOREIGN_DIALECT_NAMES),
  /** Whether a dialect is read while its own system is alive in the cluster: `respect` leaves its pods to that. */
  foreignSystems: v.nullish(oneOf(['respect', 'ignore'])),
  /** What one unit of `aliyun.com/gpu-mem` is, and whether n of them are n/units of a GPU (cgpu) or n times the
   * unit. */
  ack: v.nullish(
    v.pipe(
      settings({
        unit: v.nullish(oneOf(Object.keys(ACK_UNITS) as (keyof typeof ACK_UNITS)[])),
        rounding: v.nullish(oneOf(['cgpu', 'literal'])),
      }),
      v.transform(({ unit, rounding }) => given({ unitBytes: unit && ACK_UNITS[unit], rounding })),
    ),
  ),
  /** How many replicas of a GPU NVIDIA's plugin had: a `nvidia.com/gpu.shared` is that part of it; 0: not known. */
  nvidiaReplicas: v.nullish(whole(0, 100)),
  templates: v.nullish(mapOf(templateName, template)),
  ...sizes,
  placements: someOf(PLACEMENTS),
  computePolicies: someOf(COMPUTE_POLICIES),
  priorities: someOf(PRIORITIES),
  /** The largest weight that a pod may choose; 0: none, its weight is its percent of compute. */
  mostComputeWeight: v.nullish(whole(0, MOST_WEIGHT)),
  /**
   * Driver parts that a container may have; NVIDIA's toolkit takes an empty list for its own default. The interposer
   * does not see memory of graphics: the agent enforces it.
   */
  driverCapabilities: someOf(DRIVER_CAPABILITIES, 1),
  // Choices by which a tenant could take from its neighbors, or pin a GPU.
  allowMemoryIsolationOff: aSwitch,
  allowMemoryOvercommit: aSwitch,
  /** Shares whose bytes follow from the GPU (whole GPUs, percent): no quota on memory counts them. */
  allowUncountedMemory: aSwitch,
  allowGpuModel: aSwitch,
  allowGpuUuid: aSwitch,
  /** SYS_PTRACE, which PyTorch needs to hand expandable segments to another process; not over the pod's own processes
   * only. */
  allowPtrace: aSwitch,
});
type RulesSettings = v.InferOutput<typeof rulesSettings>;

/** Sizes of the nodes that have these labels, for pods that require all of them of a node. */
export const poolSettings = settings({
  nodeSelector: v.pipe(
    mapOf(v.string(), v.string()),
    v.check((labels) => labels.size > 0, 'labels of the nodes'),
  ),
  ...sizes,
});
export type Pool = v.InferOutput<typeof poolSettings>;

type Complete<T> = { readonly [K in keyof T]-?: NonNullable<T[K]> };
export type Rules = Complete<Omit<RulesSettings, 'ack'>> & {
  readonly ack: Complete<NonNullable<RulesSettings['ack']>>;
};

/** Isolation off, the native policy, high priority, a chosen GPU and overcommit are off until an operator allows
 * them. */
export const DEFAULT_RULES: Rules = {
  dialects: [],
  foreignSystems: 'respect',
  ack: { unitBytes: GIB, rounding: 'cgpu' },
  nvidiaReplicas: 0,
  templates: new Map(),
  defaults: {},
  most: {},
  memoryIsolation: 'on',
  enforcement: 'enforce',
  placements: PLACEMENTS,
  computePolicies: ['average', 'preemptive', 'weighted', 'fixed', 'soft'],
  priorities: ['normal'],
  mostComputeWeight: 0,
  driverCapabilities: ['compute', 'utility'],
  allowMemoryIsolationOff: false,
  allowMemoryOvercommit: false,
  allowUncountedMemory: true,
  allowGpuModel: true,
  allowGpuUuid: false,
  allowPtrace: false,
};

/** Whether a pod may have its memory isolation off. */
export const mayBeUnlimited = ({ allowMemoryIsolationOff, memoryIsolation }: Rules): boolean =>
  allowMemoryIsolationOff || memoryIsolation === 'off';

/** The rules after settings over `base`; settings that are not given keep the base's value. */
export function applyRules(rules: RulesSettings | null | undefined, base: Rules): Rules {
  return {
    ...base,
    ...given(rules ?? {}),
    ack: { ...base.ack, ...rules?.ack },
    defaults: { ...base.defaults, ...rules?.defaults },
    most: { ...base.most, ...rules?.most },
  };
}

/** The rules of a pod that requires these labels of a node: those of each pool that it asks for are laid over the others, and of
 * two largest amounts the smaller one holds. */
export function withPools(rules: Rules, pools: Iterable<Pool>, nodeLabels: JsonObject): Rules {
  let result = rules;
  for (const { nodeSelector: labels, ...own } of pools) {
    if (![...labels].every(([key, value]) => field(nodeLabels, key) === value)) continue;
    const smaller = (key: keyof Rules['most']) => {
      const amounts = [own.most?.[key], result.most[key]].filter((amount) => typeof amount === 'number');
      return amounts.length > 0 ? Math.min(...amounts) : undefined;
    };
    const most = given({ gpu: smaller('gpu'), gpuMemory: smaller('gpuMemory'), gpuCores: smaller('gpuCores') });
    result = { ...applyRules(own, result), most };
  }
  return result;
}

/** The entries that have a value. */
export function given<T extends object>(entries: T): { readonly [K in keyof T]?: NonNullable<T[K]> } {
  return Object.fromEntries(Object.entries(entries).filter(([, value]) => value !== undefined && value !== null)) as {
    readonly [K in keyof T]?: NonNullable<T[K]>;
  };
}

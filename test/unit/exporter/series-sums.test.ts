// `sum()` over a family never counts anything twice: on a node with shared GPUs, a container that has a share of two, a
// whole GPU, and one that is divided by MIG, with containers of each kind and processes without any, every family of
// every set that may be summed comes to what there is.
import test from 'ava';
import type { ContainerTotals } from '../../../src/agent/counters/totals.ts';
import type { Snapshot, SnapshotDevice } from '../../../src/agent/snapshot/snapshot.ts';
import { COMPAT_NAMES } from '../../../src/api/compat-exporters.ts';
import { processes } from '../../../src/exporter/collectors/process.ts';
import { compatCollectors } from '../../../src/exporter/compat/index.ts';
import { COLLECTORS, createRenderer } from '../../../src/exporter/render.ts';
import { exampleContainer, exampleSnapshot } from '../../support/product/snapshots.ts';

const GIB = 2 ** 30;
const MIB = 2 ** 20;

type Gpu = SnapshotDevice['gpu'];
const example = exampleSnapshot.devices[0] as SnapshotDevice;
const device = (index: number, uuid: string, gpu: Partial<Gpu>, rest: Partial<SnapshotDevice>): SnapshotDevice => ({
  ...example,
  gpu: { ...example.gpu, index, uuid, ...gpu },
  ...rest,
});
/** For a GPU divided by MIG, memory and processes are readings of its instances, energy and links of the GPU. */
const OF_INSTANCES: readonly (keyof Gpu)[] = ['totalBytes', 'usedBytes', 'freeBytes', 'reservedBytes'];
const OF_GPUS: readonly (keyof Gpu)[] = [
  'energyMillijoules',
  'eccCorrectedVolatile',
  'eccUncorrectedVolatile',
  'eccCorrectedAggregate',
  'eccUncorrectedAggregate',
  'powerMilliwatts',
  'pcieReceivedBytes',
  'pcieSentBytes',
  'nvlinkReceivedBytes',
  'nvlinkSentBytes',
];
const without = (device: SnapshotDevice, keys: readonly (keyof Gpu)[]): SnapshotDevice => {
  const gpu = Object.fromEntries(Object.entries(device.gpu).filter(([key]) => !keys.includes(key as keyof Gpu)));
  return { ...device, gpu: gpu as Gpu };
};
const NO_PROCESSES = { compute: 0, graphics: 0, both: 0, mps: 0 };
const one = (pid: number, usedBytes: number) => ({
  pid,
  command: 'python3',
  types: 1,
  usedBytes,
  smPercent: 1,
  inLedger: true,
});

/** Of those that have used nothing but what the arbiter says. */
const [TOTALS] = exampleSnapshot.containerTotals as [ContainerTotals];
const UNUSED = { smSeconds: 0, memoryBusySeconds: 0, denied: 0, unknownEntryPoints: 0, peakBytes: 0 };

const SNAPSHOT: Snapshot = {
  ...exampleSnapshot,
  containerTotals: [
    ...exampleSnapshot.containerTotals,
    { ...TOTALS, ...UNUSED, grantId: 'g2', pod: 'serve' },
    { ...TOTALS, ...UNUSED, grantId: 'g3', pod: 'pair' },
    { ...TOTALS, ...UNUSED, grantId: 'g3', pod: 'pair', gpuUuid: 'GPU-5', gpuIndex: 5 },
  ],
  devices: [
    device(0, 'GPU-0', { totalBytes: 24 * GIB, usedBytes: 7 * GIB, freeBytes: 16 * GIB, reservedBytes: GIB }, {}),
    device(
      1,
      'GPU-1',
      { totalBytes: 24 * GIB, usedBytes: 11 * GIB, freeBytes: 12 * GIB, reservedBytes: GIB },
      { mode: 'exclusive', grantedBytes: 0, grantedCoresPercent: 0 },
    ),
    without(
      device(
        2,
        'GPU-2',
        { migEnabled: true },
        { mode: 'mig', processes: NO_PROCESSES, containers: 0, unattributedBytes: undefined, grantedBytes: 0 },
      ),
      OF_INSTANCES,
    ),
    device(5, 'GPU-5', { totalBytes: 24 * GIB, usedBytes: GIB, freeBytes: 22 * GIB, reservedBytes: GIB }, {}),
    ...[3, 4].map((index) => {
      const memory = { totalBytes: 6 * GIB, usedBytes: index * GIB, freeBytes: (5 - index) * GIB, reservedBytes: GIB };
      const instance = { ...memory, parent: 2, gpuInstance: index, computeInstance: 0 };
      const rest = { mode: 'mig', grantedBytes: 0, unattributedBytes: 0 } as const;
      return without(
        device(index, `MIG-${index}`, instance, { ...rest, processes: { ...NO_PROCESSES, compute: 1 } }),
        OF_GPUS,
      );
    }),
  ],
  containers: [
    { ...exampleContainer, usedBytes: 3 * GIB, processes: [one(100, 2 * GIB), one(101, GIB)] },
    { ...exampleContainer, grantId: 'g2', pod: 'serve', usedBytes: 2 * GIB, processes: [one(102, 2 * GIB)] },
    // One process on two GPUs, of a container that has a share of each.
    ...(['GPU-0', 'GPU-5'] as const).map((gpuUuid, index) => ({
      ...exampleContainer,
      grantId: 'g3',
      pod: 'pair',
      gpuUuid,
      gpuIndex: index * 5,
      usedBytes: GIB,
      processes: [one(103, GIB)],
    })),
  ],
  assigned: (
    [
      ['whole', 'GPU-1', 1, 'exclusive', 10 * GIB, 200],
      ['slice', 'MIG-3', 3, 'mig', 3 * GIB, 300],
      ['other', 'MIG-4', 4, 'mig', 4 * GIB, 400],
    ] as const
  ).map(([pod, gpuUuid, gpuIndex, mode, usedBytes, pid]) => ({
    ...(exampleSnapshot.assigned[0] as Snapshot['assigned'][number]),
    pod,
    gpuUuid,
    gpuIndex,
    mode,
    usedBytes,
    processes: [one(pid, usedBytes)],
  })),
};

const GPUS_TOTAL = 24 + 24 + 24 + 6 + 6;
const GPUS_USED = 7 + 11 + 1 + 3 + 4;
const GPUS_FREE = 16 + 12 + 22 + 2 + 1;
const HELD = 3 + 2 + 1 + 1 + 10 + 3 + 4;
const GRANTED = 4 + 4 + 4 + 4;
const LEDGER = 4 * (300 * MIB + 32 * MIB + 2 * GIB);
const GPUS = 4;
/** The container on two GPUs: its own metrics count once, those per GPU twice. */
const OF_PAIR = 1;
/** What there is of what may be summed, in the family's own unit. */
const SUMS: Readonly<Record<string, number>> = {
  cotenant_device_memory_total_bytes: GPUS_TOTAL * GIB,
  cotenant_device_memory_used_bytes: GPUS_USED * GIB,
  cotenant_device_memory_free_bytes: GPUS_FREE * GIB,
  cotenant_device_memory_reserved_bytes: 5 * GIB,
  cotenant_device_memory_allocated_bytes: 8 * GIB,
  cotenant_device_memory_unattributed_bytes: 3 * 128 * MIB,
  cotenant_device_containers: 5,
  cotenant_volume_publishes_total: 6,
  cotenant_device_processes: 8,
  cotenant_device_power_watts: GPUS * 30.5,
  cotenant_device_energy_joules_total: GPUS * 1234.567,
  cotenant_device_pcie_receive_bytes_total: GPUS * 4 * GIB,
  cotenant_device_pcie_transmit_bytes_total: GPUS * GIB,
  cotenant_device_nvlink_receive_bytes_total: GPUS * 16 * GIB,
  cotenant_device_nvlink_transmit_bytes_total: GPUS * 8 * GIB,
  cotenant_device_xid_errors_total: 2,
  cotenant_device_ecc_errors_total: GPUS * 2,
  cotenant_device_ecc_lifetime_errors_total: GPUS * (17 + 1),
  cotenant_container_memory_used_bytes: HELD * GIB,
  cotenant_container_memory_limit_bytes: GRANTED * GIB,
  cotenant_container_memory_ledger_bytes: LEDGER,
  cotenant_container_memory_bypass_bytes: 0,
  cotenant_container_processes: 6 + 2 * OF_PAIR,
  cotenant_container_mps_processes: 2 + 2 * OF_PAIR,
  cotenant_container_sm_seconds_total: 12.5 + 1 + 42,
  cotenant_container_memory_busy_seconds_total: 3.25 + 21,
  cotenant_container_encoder_seconds_total: 0,
  cotenant_container_decoder_seconds_total: 0,
  cotenant_container_sm_charged_seconds_total: 4 * 36.5,
  cotenant_container_sm_contended_seconds_total: 4 * 0.25,
  cotenant_container_sm_throttled_seconds_total: 4 * 80,
  cotenant_container_sm_relieved_launches_total: 4 * 5,
  cotenant_container_sm_overruns_total: 4 * 2,
  cotenant_container_lease_page_corruptions_total: 0,
  cotenant_container_allocations_denied_total: 7,
  cotenant_container_unknown_entry_points_total: 3,
  cotenant_container_engine_processes: 2 * 2 + 2 * OF_PAIR,
  cotenant_container_engine_refused_processes: 2 + OF_PAIR,
  cotenant_container_observed_processes: 2 + OF_PAIR,
  cotenant_container_memory_over_limit_seconds_total: 1.5,
  cotenant_container_kills_total: 1,
  cotenant_container_info: 5 + 2 * OF_PAIR,
  cotenant_container_enforcement: 2 + OF_PAIR,
  cotenant_container_compute_policy: 2 + 2 * OF_PAIR,
  cotenant_enforcement_decisions_total: 1,
  cotenant_enforcement_refusals_total: 2,
  cotenant_enforcement_mode: 1,
  cotenant_foreign_memory_used_bytes: 5 * GIB,
  cotenant_foreign_sm_seconds_total: 2,
  cotenant_process_memory_used_bytes: HELD * GIB,
  cotenant_mig_info: 2,
  DCGM_FI_DEV_FB_USED: GPUS_USED * 1024,
  DCGM_FI_DEV_FB_FREE: GPUS_FREE * 1024,
  DCGM_FI_DEV_FB_RESERVED: 5 * 1024,
  DCGM_FI_DEV_FB_TOTAL: GPUS_TOTAL * 1024,
  DCGM_FI_DEV_POWER_USAGE: GPUS * 30.5,
  DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION: GPUS * 1_234_567,
  hami_host_gpu_memory_used_bytes: GPUS_USED * GIB,
  hami_vgpu_memory_used_bytes: HELD * GIB,
  hami_vgpu_memory_limit_bytes: GRANTED * GIB,
  hami_container_device_memory_bytes: HELD * GIB,
  hami_vgpu_memory_context_bytes: 4 * 300 * MIB,
  hami_vgpu_memory_buffer_bytes: 4 * 2 * GIB,
  hami_gpu_memory_limit_bytes: GPUS_TOTAL * GIB,
  hami_gpu_memory_allocated_bytes: 8 * GIB,
  hami_gpu_shared_count: 5 + 2 * OF_PAIR,
  HostGPUMemoryUsage: GPUS_USED * GIB,
  vGPU_device_memory_usage_in_bytes: HELD * GIB,
  vGPU_device_memory_limit_in_bytes: GRANTED * GIB,
  Device_memory_desc_of_container: HELD * GIB,
  metagpu_device_memory_total: GPUS_TOTAL * 1024,
  metagpu_device_memory_free: GPUS_FREE * 1024,
  metagpu_device_memory_used: GPUS_USED * 1024,
  metagpu_process_memory_usage: HELD * 1024,
  DCGM_CUSTOM_DEV_FB_TOTAL: GPUS_TOTAL * 1024,
  DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED: GRANTED * 1024,
  DCGM_CUSTOM_PROCESS_MEM_USED: HELD * 1024,
  DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_USED: 5 * 1024,
};
/** Of which a sum says nothing: parts and percentages, states, times, clocks and temperatures, most ever, counts of
 * errors by kind. */
const NO_SUMS = [
  /_(ratio|info|celsius|hertz|timestamp_seconds|limit_watts|policy|peak_bytes|mode|reason|pending|failure|rows|pages)$/,
  /^cotenant_(up|driver_attached|agent_connected|exporter_.*|device_(healthy|fence_holds|.*_fault.*))$/,
  /^cotenant_container_(memory_over_limit|compute_over_limit|engine_outdated|gpu_missing)$/,
  /^(DCGM_FI_PROF_.*|DCGM_FI_DEV_(.*_UTIL|.*_CLOCK|.*_TEMP|XID_ERRORS|PCIE_.*))$/,
  /^MigInfo$|^(Host|Device_|hami_).*([Uu]tilization|[Ee]lapsed|kernel|Info|info|module).*$/,
  /^(metagpu_.*_(shares|share_size|utilization|requests|max_allowed.*)|metagpu_process_max_allowed_.*)$/,
  /^DCGM_CUSTOM_(ALLOCATE_MODE|DEV_FB_ALLOCATED|.*_CP_ALLOCATED|.*_UTIL)$/,
];

function sumsOf(text: string): ReadonlyMap<string, number> {
  const sums = new Map<string, number>();
  for (const [, name = '', value] of text.matchAll(/^([A-Za-z_:][\w:]*)(?:\{.*\})? (\S+)$/gm))
    sums.set(name, (sums.get(name) ?? 0) + Number(value));
  return sums;
}

test('sums over each metric that can be summed are right', async (t) => {
  const sets = compatCollectors(COMPAT_NAMES.join(','), { nodeName: 'node-a' });
  const sums = sumsOf((await createRenderer([...COLLECTORS, processes, ...sets])(SNAPSHOT)).text);
  for (const [name, sum] of sums) {
    const expected = SUMS[name];
    if (expected === undefined)
      t.true(
        NO_SUMS.some((pattern) => pattern.test(name)),
        `${name}: may it be summed?`,
      );
    else t.true(Math.abs(sum - expected) <= expected * 1e-9, `${name}: ${sum}, want ${expected}`);
  }
  t.deepEqual(
    Object.keys(SUMS).filter((name) => !sums.has(name)),
    [],
    'all of them are served',
  );
});

// A snapshot of a full node, built rather than sampled, so that a page of any size can be served without thousands of
// processes: eight GPUs, and as many containers on them as asked for, each with two processes.

import type { SampledGpu } from '../../../src/agent/sampling/sample.ts';
import type { Snapshot, SnapshotContainer, SnapshotDevice } from '../../../src/agent/snapshot/snapshot.ts';
import { idleSelf } from '../../support/product/snapshots.ts';

const GPUS = 8;
const GIB = 2 ** 30;

const uuidOf = (index: number): string => `GPU-0000000${index}-5ca1-4b1e-9d00-000000000000`;

function device(index: number, containers: number): SnapshotDevice {
  const gpu: SampledGpu = {
    index,
    uuid: uuidOf(index),
    name: 'NVIDIA H100 80GB HBM3',
    pciBusId: `00000000:0${index}:00.0`,
    minor: index,
    totalBytes: 80 * GIB,
    usedBytes: 41 * GIB,
    freeBytes: 38 * GIB,
    reservedBytes: GIB,
    utilizationPercent: 73,
    memoryBusyPercent: 31,
    encoderPercent: 0,
    decoderPercent: 0,
    temperatureC: 61,
    powerMilliwatts: 412_345,
    powerLimitMilliwatts: 700_000,
    energyMillijoules: 123_456_789,
    smMhz: 1755,
    memoryMhz: 2619,
    maxSmMhz: 1980,
    maxMemoryMhz: 2619,
    processLists: ['compute', 'graphics', 'mps'],
    utilizationGaps: 0,
    healthy: true,
  };
  return {
    gpu,
    grantedBytes: 70 * GIB,
    grantedCoresPercent: 90,
    containers,
    processes: { compute: 2 * containers, graphics: 0, both: 0, mps: 0 },
    unattributedBytes: 0,
    mode: 'shared',
    compute: { policy: 'fixed', source: 'configuration' },
    fences: { interposer: { result: 'holds', why: '' } },
  };
}

/** `turn` changes the figures, as a node's figures change from sample to sample. */
function container(number: number, turn: number): SnapshotContainer {
  const gpuIndex = number % GPUS;
  return {
    grantId: `g${String(number).padStart(8, '0')}`,
    namespace: `team-${number % 23}`,
    pod: `trainer-${number}-7c9d8b5f4-x${number % 97}k2p`,
    container: 'main',
    podUid: '',
    containerId: '',
    withoutGpus: false,
    gpuUuid: uuidOf(gpuIndex),
    gpuIndex,
    fence: 'interposer',
    enforcement: { mode: 'enforce', by: 'node' },
    isolateMemory: true,
    tampered: false,
    limitBytes: 4 * GIB,
    coresPercent: 25,
    coresLimitPercent: undefined,
    computePolicy: 'fixed',
    priority: 'normal',
    computeWeight: 25,
    usedBytes: 3 * GIB + ((number * 7919 + turn * 104_729) % 997) * 2 ** 20,
    bypassBytes: 0,
    ledger: { contextBytes: 500 * 2 ** 20, managedBytes: 0, poolBytes: 2 ** 30, bufferBytes: 2 * GIB },
    smPercent: (number * 31 + turn * 7) % 100,
    lastActiveMs: 1_700_000_000_000 + turn * 1000,
    over: false,
    overShare: false,
    engines: { processes: [{ engine: '1', count: 2 }], refused: 0, outdated: false },
    observed: { debugger: 0, profiler: 0 },
    processesKnown: true,
    memoryKnown: true,
    processes: [0, 1].map((child) => ({
      pid: 10_000 + 2 * number + child,
      command: 'python3',
      usedBytes: 1.5 * GIB,
      smPercent: number % 50,
      types: 1,
      inLedger: true,
    })),
  };
}

export function snapshotOfSize(containers: number, turn: number): Snapshot {
  const list = Array.from({ length: containers }, (_, number) => container(number, turn));
  return {
    atMs: Date.now(),
    driverVersion: '580.95.05',
    cudaVersion: 13_000,
    xids: [],
    devices: Array.from({ length: GPUS }, (_, index) => device(index, Math.ceil(containers / GPUS))),
    containers: list,
    assigned: [],
    unknownDevices: 0,
    foreign: [],
    containerTotals: list.map(({ namespace, pod, container: name, grantId, gpuUuid, gpuIndex = 0 }, number) => ({
      namespace,
      pod,
      container: name,
      grantId,
      gpuUuid,
      gpuIndex,
      smSeconds: turn * 0.25 + number,
      memoryBusySeconds: turn * 0.125,
      encoderSeconds: 0,
      decoderSeconds: 0,
      overLimitSeconds: 0,
      denied: number % 5,
      unknownEntryPoints: 0,
      peakBytes: 4 * GIB,
      smPeakRatio: 0.25,
      utilizationKnown: true,
      seenMs: undefined,
    })),
    assignedTotals: [],
    foreignTotals: [],
    kills: [],
    errors: [],
    recent: [],
    self: {
      ...idleSelf,
      version: '0.0.0',
      nodeVersion: process.version,
      failures: { gone: 0, no_cgroup: 0, container_not_known: 0, host: 0, memory_not_available: 0 },
    },
  };
}

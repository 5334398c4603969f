// A fleet of any size as its agents publish it: nodes with GPUs, and tenants that work, wait, rest, fill their grants and
// go beyond them. Built rather than sampled, so that a board can be drawn for four hundred tenants. Pure: the same minute
// of the same fleet is the same snapshot.
import type { Snapshot, SnapshotContainer, SnapshotDevice } from '../../src/agent/snapshot/snapshot.ts';
import { exampleContainer, exampleSnapshot, idleSelf } from '../support/product/snapshots.ts';

const GIB = 2 ** 30;
/** More are on further nodes. */
const TENANTS_PER_GPU = 8;
const LEAST_NODES = 2;
const MOST_NAMESPACES = 40;
const TEAMS = ['vision', 'speech', 'language-models', 'recommender', 'fraud', 'sandbox', 'robotics', 'search'];
const PROGRAMS = ['trainer', 'notebook', 'serve-embeddings', 'batch-inference', 'vllm-llama-3-70b', 'jupyter'];

export type FleetSize = { readonly gpus: number; readonly tenants: number };
export type FleetNode = {
  readonly name: string;
  /** At a minute of the hour, which began at this time. */
  snapshot(minute: number, sinceMs: number): Snapshot;
};

type Tenant = {
  readonly number: number;
  readonly gpu: number;
  readonly limitBytes: number;
  readonly cores: number;
};

/** Of the kinds of names that clouds give. */
const nodeName = (index: number): string =>
  index % 2 === 0
    ? `ip-10-0-${140 + index}-27.eu-central-1.compute.internal`
    : `gke-prod-h100-pool-3f2c9b1e-x${index}k2`;

/** What each tenth tenant is like; the others work within their grants. */
const isIdle = ({ number }: Tenant) => number % 10 === 3;
const isWaiting = ({ number }: Tenant) => number % 10 === 1;
const isNear = ({ number }: Tenant) => number % 10 === 4;
const isOver = ({ number }: Tenant) => number % 50 === 2;
/** Between 0 and 1, and never the same for two tenants. */
const wave = (number: number, minute: number) => (1 + Math.sin(minute / (4 + (number % 7)) + number * 1.7)) / 2;
const use = (tenant: Tenant, minute: number): number => {
  if (isOver(tenant)) return minute > 40 && minute < 45 ? 1.2 : 0.8;
  if (isNear(tenant)) return 0.97;
  return (isIdle(tenant) ? 0.1 : 0.5) + 0.3 * wave(tenant.number, minute);
};
const busy = (tenant: Tenant): number => (isIdle(tenant) ? 0 : (tenant.cores / 100) * (0.4 + (tenant.number % 5) / 8));
/** The integral of a use that swings around `busy`. */
const seconds = (tenant: Tenant, minute: number): number =>
  busy(tenant) * 60 * (minute + 2 * (1 + Math.sin(minute / 5 + tenant.number)));

/** By the arbiter. */
const used = (tenant: Tenant, minute: number) => ({
  chargedSeconds: seconds(tenant, minute) * 1.02,
  contendedSeconds: seconds(tenant, minute) / 2,
  throttledSeconds: minute * 60 * (isWaiting(tenant) ? 0.8 : isIdle(tenant) ? 0 : 0.05),
  relieved: 0,
  overruns: 0,
  faults: 0,
});

/** The nodes of a fleet, with about eight tenants on each GPU, or as many as there are on two nodes. */
export function fleet({ gpus, tenants }: FleetSize): readonly FleetNode[] {
  const nodes = Math.max(LEAST_NODES, Math.ceil(tenants / (gpus * TENANTS_PER_GPU)));
  const all = Array.from({ length: tenants }, (_, number): Tenant => {
    const shares = Math.max(2, Math.min(TENANTS_PER_GPU, Math.ceil(tenants / (nodes * gpus))));
    return { number, gpu: Math.floor(number / nodes) % gpus, limitBytes: (76 * GIB) / shares, cores: 90 / shares };
  });
  return Array.from({ length: nodes }, (_, index) => {
    const own = all.filter(({ number }) => number % nodes === index);
    return { name: nodeName(index), snapshot: (minute, sinceMs) => snapshotOf({ index, gpus, own, minute, sinceMs }) };
  });
}

type Moment = {
  readonly index: number;
  readonly gpus: number;
  readonly own: readonly Tenant[];
  readonly minute: number;
  readonly sinceMs: number;
};

function snapshotOf(moment: Moment): Snapshot {
  const { index, gpus, own, minute, sinceMs } = moment;
  const atMs = sinceMs + minute * 60_000;
  const containers = own.map((tenant) => container(moment, tenant, atMs));
  const events = Math.floor(minute / 7);
  return {
    ...exampleSnapshot,
    atMs,
    driverVersion: '580.159.04',
    devices: Array.from({ length: gpus }, (_, gpu) => device(moment, gpu)),
    containers,
    assigned: [],
    unknownDevices: 0,
    foreign: [],
    assignedTotals: [],
    foreignTotals: [],
    containerTotals: own.map((tenant) => ({
      ...named(index, tenant),
      ...used(tenant, minute),
      smSeconds: seconds(tenant, minute),
      memoryBusySeconds: seconds(tenant, minute) / 3,
      encoderSeconds: 0,
      decoderSeconds: 0,
      overLimitSeconds: isOver(tenant) ? 60 * Math.max(0, Math.min(minute, 45) - 40) : 0,
      denied: isNear(tenant) ? 3 * minute : 0,
      unknownEntryPoints: 0,
      peakBytes: Math.max(...Array.from({ length: minute + 1 }, (__, at) => use(tenant, at))) * tenant.limitBytes,
      smPeakRatio: busy(tenant),
      utilizationKnown: true,
      seenMs: undefined,
    })),
    xids:
      index === 0
        ? [{ gpuUuid: uuidOf(index, 0), gpuIndex: 0, xid: '94', count: 1 + (minute > 30 ? 1 : 0), lastMs: atMs }]
        : index === 1
          ? [{ gpuUuid: uuidOf(1, gpus - 1), gpuIndex: gpus - 1, xid: '119', count: minute > 57 ? 1 : 0, lastMs: atMs }]
          : [],
    kills: own.filter((tenant) => isOver(tenant) && minute > 44).map((tenant) => stopOf(index, tenant, sinceMs)),
    errors: index === 1 ? [{ call: 'nvmlDeviceGetTemperature', code: 999, count: events }] : [],
    recent: [],
    self: {
      ...idleSelf,
      version: '0.1.0',
      revision: '6c9a80f0',
      nodeVersion: process.version,
      failures: { gone: events, no_cgroup: 0, container_not_known: 0, host: minute },
      publishes: { published: minute, pending: events, refused: 0, failed: 0 },
      connections: { api: true, csi: true, nri: true },
      decisions: index === 0 ? [{ decision: 'would_kill', reason: 'over-limit', count: events }] : [],
    },
  };
}

/** Of a tenant that stayed over its grant, in the 45th minute. */
function stopOf(index: number, tenant: Tenant, sinceMs: number): Snapshot['kills'][number] {
  const { grantId: _, gpuIndex: _index, ...names } = named(index, tenant);
  const lastMs = sinceMs + 45 * 60_000;
  return { ...names, reason: 'over-limit', action: 'kill', result: 'released', count: 1, lastMs };
}

const uuidOf = (node: number, gpu: number) => `GPU-${node}-${gpu}`;

function named(node: number, { number, gpu }: Tenant) {
  const namespaces = Math.min(MOST_NAMESPACES, 3 + Math.floor(number / 10));
  const team = number % namespaces;
  const [of, program] = [TEAMS[team % TEAMS.length], PROGRAMS[number % PROGRAMS.length]];
  return {
    grantId: `g${number}`,
    namespace: team < TEAMS.length ? `${of}` : `${of}-${Math.floor(team / TEAMS.length)}`,
    pod: `${program}-6d4cf56db6-${(number + 46_656).toString(36)}x`,
    container: 'main',
    gpuUuid: uuidOf(node, gpu),
    gpuIndex: gpu,
  };
}

function container({ index, minute }: Moment, tenant: Tenant, atMs: number): SnapshotContainer {
  const usedBytes = Math.round(use(tenant, minute) * tenant.limitBytes);
  return {
    ...exampleContainer,
    ...named(index, tenant),
    limitBytes: tenant.limitBytes,
    coresPercent: tenant.cores,
    coresLimitPercent: tenant.cores,
    enforcement: { mode: 'enforce', by: 'node' },
    compute: {
      ...used(tenant, minute),
      guaranteeRatio: tenant.cores / 100,
      limitRatio: tenant.cores / 100,
    },
    usedBytes,
    ledger: { contextBytes: 5e8, managedBytes: 0, poolBytes: usedBytes / 4, bufferBytes: usedBytes / 2 },
    smPercent: Math.round(100 * busy(tenant)),
    lastActiveMs: isIdle(tenant) ? atMs - minute * 60_000 - 5e6 : atMs - 900,
    over: use(tenant, minute) > 1,
    observed: { debugger: 0, profiler: 0 },
    engines: { processes: [{ engine: '4', count: 2 }], refused: 0, outdated: false },
    processes: [1, 2].map((child) => ({
      pid: 10_000 + 2 * tenant.number + child,
      command: 'python3',
      usedBytes: usedBytes / 2,
      smPercent: Math.round(50 * busy(tenant)),
      types: 1,
      inLedger: true,
    })),
  };
}

function device({ index, gpus, own, minute, sinceMs }: Moment, gpu: number): SnapshotDevice {
  const mine = own.filter((tenant) => tenant.gpu === gpu);
  const [like] = exampleSnapshot.devices;
  if (like === undefined) throw new Error('the example has no GPU');
  const used = mine.reduce((sum, tenant) => sum + use(tenant, minute) * tenant.limitBytes, 0);
  const active = Math.min(
    1,
    mine.reduce((sum, tenant) => sum + busy(tenant), 0),
  );
  const swing = 0.8 + 0.2 * wave(index * gpus + gpu, minute);
  const ppm = (ratio: number) => Math.round(ratio * active * swing * 1e6);
  const hot = index === 0 && gpu === 0 && minute > 20 && minute < 35;
  const done = minute + 2 * Math.sin(minute / 5) + 2;
  return {
    ...like,
    gpu: {
      ...like.gpu,
      ...{ index: gpu, minor: gpu, uuid: uuidOf(index, gpu), name: 'NVIDIA H100 80GB HBM3' },
      ...{
        totalBytes: 80 * GIB,
        usedBytes: Math.round(used),
        reservedBytes: GIB,
        freeBytes: Math.round(79 * GIB - used),
      },
      utilizationPercent: Math.round(100 * Math.min(1, active * 1.2)),
      memoryBusyPercent: Math.round(60 * active * swing),
      temperatureC: Math.round(38 + 40 * active * swing + (hot ? 10 : 0)),
      memoryTemperatureC: Math.round(45 + 42 * active * swing),
      powerMilliwatts: Math.round(90_000 + 580_000 * active * swing),
      ...{ powerLimitMilliwatts: 700_000, energyMillijoules: Math.round(active * 5e5 * 60 * done) },
      ...{ smMhz: hot ? 1410 : 1980, maxSmMhz: 1980, memoryMhz: 2619, maxMemoryMhz: 2619 },
      throttleReasons: hot ? 0x40 : 0x4,
      ...{ eccCorrectedVolatile: Math.floor(minute / 20), eccUncorrectedVolatile: 0, eccUncorrectedAggregate: 0 },
      ...{ rowsUncorrected: 0, rowsPending: 0 },
      pcieReceivedBytes: Math.round(GIB * active * 60 * done),
      pcieSentBytes: Math.round(0.3 * GIB * active * 60 * done),
      nvlinkReceivedBytes: Math.round(9 * GIB * active * 60 * done),
      nvlinkSentBytes: Math.round(8 * GIB * active * 60 * done),
      ...{ graphicsActivePpm: ppm(1), smActivePpm: ppm(0.9), smOccupancyPpm: ppm(0.4), tensorActivePpm: ppm(0.3) },
      ...{ dramActivePpm: ppm(0.5), fp32ActivePpm: ppm(0.1) },
    },
    grantedBytes: mine.reduce((sum, { limitBytes }) => sum + limitBytes, 0),
    grantedCoresPercent: mine.reduce((sum, { cores }) => sum + cores, 0),
    containers: mine.length,
    processes: { compute: 2 * mine.length, graphics: 0, both: 0, mps: 0 },
    unattributedBytes: GIB,
    mode: mine.length > 0 ? 'shared' : 'none',
    // The last GPU of one node hangs in its system processor, and is cordoned.
    fault: index === 1 && gpu === gpus - 1 && minute > 57 ? { xid: 119, atMs: sinceMs + 58 * 60_000 } : undefined,
    fences: { interposer: { result: 'holds', why: '' }, driver: { result: 'holds', why: '' } },
  };
}

// Opens the parts of the node half in order and joins them: grants and compute, isolation, enforcement, attribution.
import { EventEmitter } from 'node:events';
import { statSync } from 'node:fs';
import type { Mode } from '../api/request.ts';
import { effectiveMode } from '../policy/mode.ts';
import { createPodMemory } from './allocation/pod-memory.ts';
import { changeGrant, type GrantChange } from './allocation/process-grants.ts';
import type { PodContainers } from './attribution/attribute.ts';
import { type ContainerIndex, createContainerIndex } from './attribution/container-index.ts';
import { createGrantMounts, type GrantMounts } from './attribution/grant-mounts.ts';
import { createOwnerTracker } from './attribution/owner-tracker.ts';
import { createNodeCompute, type RefusedChange } from './compute/node-policy.ts';
import { openShares, type Shares } from './compute/shares.ts';
import type { AgentConfiguration } from './config.ts';
import { createStopCounts, type StopCounts } from './counters/stop-counts.ts';
import { type Audit, openAudit } from './enforcement/audit-log.ts';
import { createEnforcer } from './enforcement/enforcer.ts';
import { createEvictions } from './enforcement/evictions.ts';
import { openNodeMode } from './enforcement/node-mode.ts';
import { createPodModes } from './enforcement/pod-mode.ts';
import { createGrantUpkeep } from './grant-upkeep.ts';
import { type Grant, isOfPod, podGrantId, podUidOf } from './grants/grant.ts';
import { openRegistry, type Registry } from './grants/registry.ts';
import { openProfiles } from './isolation/calibration.ts';
import { createDriverLimits } from './isolation/driver-limits/driver-limits.ts';
import { openLimitRecords } from './isolation/driver-limits/records.ts';
import { createGpuChecks } from './isolation/gpu-checks.ts';
import { openGpuFaults } from './isolation/gpu-faults.ts';
import { openMissedContainers } from './kubelet/missed-containers.ts';
import type { NodeEvents, NodeInputs } from './node-api.ts';
import type { Native } from './os/addon.ts';
import { createHelperRunner } from './os/helper-process.ts';
import { unseenProcesses } from './os/pid-namespace.ts';
import { createSampleProcessor } from './process-sample.ts';
import { isShareable } from './sampling/sample.ts';
import type { NameOf } from './snapshot/snapshot.ts';

type Around = {
  readonly configuration: AgentConfiguration;
  readonly native: Native;
  readonly inputs: NodeInputs;
  readonly events: EventEmitter<NodeEvents>;
};

export type NodeParts = ReturnType<typeof openNodeParts>;

export function openNodeParts(around: Around) {
  const { configuration, inputs } = around;
  const { enabled, pods } = configuration.kubernetes;
  const modeLog = inputs.log.component('node-mode');
  const nodeMode = openNodeMode(
    { stateFolder: configuration.stateFolder, configured: configuration.enforcement.mode, hears: enabled && pods },
    modeLog,
  );
  const { helpers, profiles } = openHelpers(around);
  const { audit, stopCounts } = openActionRecords(around);
  const { registry, shares, grantChanges } = openGrants(around, profiles.of);
  const containers = createContainerIndex((containerId) => {
    const { podUid, container } = inputs.nameOf(containerId);
    return container === '' ? undefined : { podUid, container };
  });
  const isolation = openIsolation(around, { helpers, profiles, registry, containers });
  const mounts = createGrantMounts({ registry, native: around.native });
  const enforcement = openEnforcement(around, { registry, audit, containers, mounts, mode: nodeMode.mode });
  const nameOf = containerNames(registry, inputs.nameOf);
  const intake = openIntake(around, { registry, shares, containers, mounts, isolation, nameOf });
  const onRefused = (change: RefusedChange) => {
    inputs.log.component('grants').warn(change.message, { pod: `${change.namespace}/${change.pod}` });
    around.events.emit('change-refused', change);
  };
  const compute = createNodeCompute({
    shares,
    registry,
    gpus: () => (intake.state()?.devices ?? []).map(({ gpu }) => gpu).filter(isShareable),
    log: inputs.log.component('compute'),
    onRefused,
  });
  const upkeep = openUpkeep(around, registry, mounts);
  const changeOfGrant = (id: string, change: GrantChange) => {
    const live = changeGrant(id, change, intake.state(), registry);
    if (change.memoryBytes !== undefined && live.ok) upkeep.resized(id, registry.readLedger(live.value).readNs);
    return live;
  };
  return {
    nodeMode,
    registry,
    shares,
    grantChanges,
    containers,
    mounts,
    audit,
    stopCounts,
    compute,
    podModes: createPodModes(registry, inputs.log.component('pod-mode')),
    intake,
    nameOf,
    usableBytesOf: (gpuUuid: string) => profiles.of(gpuUuid).usableBytes,
    upkeep,
    changeOfGrant,
    podMemory: createPodMemory({
      registry,
      resize: (id, memoryBytes) => changeOfGrant(id, { memoryBytes }),
      onRefused,
    }),
    missed: openMissed(around, containers),
    ...isolation,
    ...enforcement,
  };
}

/** Helper programs that open the driver, and what contexts cost by them. */
function openHelpers({ configuration, inputs }: Around) {
  const helpers = createHelperRunner();
  inputs.driver.join(helpers.user);
  const profiles = openProfiles({
    stateFolder: configuration.stateFolder,
    libraries: { cuda: configuration.cudaLibrary, nvml: configuration.nvmlLibrary },
    tools: helpers,
    log: inputs.log.component('calibration'),
    clock: inputs.clock,
  });
  return { helpers, profiles };
}

/** The audit log, with its actions counted for metrics. */
function openActionRecords({ configuration: { stateFolder }, inputs: { log } }: Around): {
  audit: Audit;
  stopCounts: StopCounts;
} {
  const auditLog = openAudit(stateFolder, log.component('audit'));
  const stopCounts = createStopCounts(auditLog.steps());
  const add: Audit['add'] = (record) => {
    auditLog.add(record);
    stopCounts.add([record]);
  };
  return { audit: { ...auditLog, add }, stopCounts };
}

/** Grants with their files, and the division of compute, which follows each change of grants. */
function openGrants(
  { configuration, native, inputs }: Around,
  profileOf: Parameters<typeof openRegistry>[0]['profileOf'],
) {
  const { stateFolder, interposerEngine } = configuration;
  const log = inputs.log.component('registry');
  const grantChanges = new EventEmitter<{ changed: [] }>();
  const shares = openShares(configuration, inputs.log.component('compute'));
  const registry = openRegistry({
    stateFolder,
    native,
    volumes: inputs.volumes,
    profileOf,
    log,
    heldEngine: interposerEngine === 0 ? undefined : interposerEngine,
    leasedOf: shares.leasedOf,
  });
  registry.subscribe(() => {
    shares.follow(registry.list());
    grantChanges.emit('changed');
  });
  shares.follow(registry.list());
  return { registry, shares, grantChanges };
}

type IsolationNeeds = {
  readonly helpers: ReturnType<typeof createHelperRunner>;
  readonly profiles: ReturnType<typeof openProfiles>;
  readonly registry: Registry;
  readonly containers: ContainerIndex;
};

/** Whether limits hold on each GPU, Xids that take a GPU out of use, and the driver's own limits. */
function openIsolation({ configuration, native, inputs }: Around, needs: IsolationNeeds) {
  const { helpers, profiles, registry, containers } = needs;
  const { log, clock } = inputs;
  const faults = openGpuFaults({
    stateFolder: configuration.stateFolder,
    unhealthyXids: configuration.unhealthyXids,
    log: log.component('gpu-faults'),
  });
  const limitRecords = openLimitRecords(configuration.stateFolder, log.component('driver-limits'));
  const checks = createGpuChecks({
    configuration,
    native,
    tools: helpers,
    profiles,
    limitRecords,
    grants: () => registry.list().map(({ grant }) => grant),
    onCalibrated: registry.refreshProfiles,
    driver: inputs.driver,
    faultOf: faults.textOf,
    log: log.component('gpu-checks'),
    clock,
  });
  const driverLimits = createDriverLimits(configuration.driverLimits, {
    native,
    tools: helpers,
    records: limitRecords,
    nvmlLibrary: configuration.nvmlLibrary,
    containers,
    failsOn: checks.driverFailsOn,
    log: log.component('driver-limits'),
    clock,
  });
  return { faults, checks, driverLimits };
}

type EnforcementNeeds = {
  readonly registry: Registry;
  readonly audit: Audit;
  readonly containers: ContainerIndex;
  readonly mounts: GrantMounts;
  readonly mode: () => Mode;
};

/** Stops and evictions, and whether a grant is enforced at all. */
function openEnforcement({ configuration, native, inputs, events }: Around, needs: EnforcementNeeds) {
  const { registry, audit, containers, mounts, mode } = needs;
  const clocks = { now: Date.now, steady: inputs.clock };
  const enforcer = createEnforcer({
    registry,
    native,
    audit,
    policy: configuration.enforcement,
    mode,
    clocks,
    pods: {
      containers,
      mounts,
      beforeStop(grant, message) {
        if (!isOfPod(grant.owner)) return;
        const { terminationLog } = containers.newest(grant.owner.podUid, grant.container) ?? {};
        inputs.writeReason?.(grant, message, terminationLog);
      },
    },
    log: inputs.log.component('enforcer'),
  });
  /** By the grant as it is now; without one, by the mode of the node. */
  const isEnforced = (grant: Grant | undefined): boolean =>
    effectiveMode(mode(), grant?.enforcement).mode === 'enforce';
  // An eviction that an earlier agent requested is not repeated where the grant is no longer enforced.
  const earlierStops = audit
    .steps()
    .filter(({ action, grantId }) => action !== 'evict' || isEnforced(registry.get(grantId)?.grant));
  const evictions =
    inputs.evict &&
    createEvictions({
      policy: configuration.enforcement,
      evict: inputs.evict,
      clocks,
      earlier: earlierStops,
      report(record) {
        audit.add(record);
        if (record.result !== 'asked') events.emit('actions', [record]);
      },
    });
  return { enforcer, evictions, isEnforced };
}

/** On a GPU that it was not granted a container has the name in its grant. */
const containerNames =
  (registry: Registry, otherNames: NameOf): NameOf =>
  (id, podUid = '') => {
    const grant = registry.get(id)?.grant;
    if (grant === undefined) return otherNames(id, podUid);
    const { namespace, pod, container } = grant;
    return { namespace, pod, podUid, container };
  };

type IntakeNeeds = {
  readonly registry: Registry;
  readonly shares: Shares;
  readonly containers: ContainerIndex;
  readonly mounts: GrantMounts;
  readonly isolation: ReturnType<typeof openIsolation>;
  readonly nameOf: NameOf;
};

function openIntake({ configuration, native, inputs }: Around, needs: IntakeNeeds) {
  const { registry, shares, containers, mounts, isolation, nameOf } = needs;
  const pods: PodContainers = {
    nameOf: containers.nameOf,
    grantOf: (podUid, container) => registry.get(podGrantId(podUid, container))?.grant.id,
    grantsOf: (podUid) => registry.list().flatMap(({ grant }) => (podUidOf(grant) === podUid ? [grant.id] : [])),
  };
  return createSampleProcessor({
    registry,
    shares,
    owners: createOwnerTracker({ registry, pods, mounts, isAlive: native.isRunning }),
    policy: configuration.enforcement,
    driverHolds: isolation.driverLimits.holds,
    interposerFails: ({ gpus }) =>
      gpus.some(({ gpuUuid }) => isolation.checks.fencesOf(gpuUuid).interposer?.result === 'fails'),
    assignments: inputs.assignments,
    nameOf,
  });
}

function openUpkeep({ native, inputs: { log } }: Around, registry: Registry, mounts: GrantMounts) {
  const ownPidNamespace = statSync('/proc/self/ns/pid').ino;
  const unseen = unseenProcesses(ownPidNamespace);
  if (unseen !== undefined) log.warn(unseen);
  return createGrantUpkeep({
    registry,
    native,
    mounts,
    ownPidNamespace,
    isAlive: native.isRunning,
    log: log.component('grants'),
  });
}

const GPUS_MISSING =
  'was created without its GPUs: the agent of its node was not running, or did not answer the container runtime in time. It gets them when it starts again';

function openMissed({ configuration: { stateFolder }, inputs, events }: Around, containers: ContainerIndex) {
  const log = inputs.log.component('missed-containers');
  return openMissedContainers({
    stateFolder,
    log,
    containers,
    report(missed) {
      const { namespace, pod, container } = missed;
      const message = `${namespace}/${pod}/${container} ${GPUS_MISSING}`;
      log.warn(message, { pod: `${namespace}/${pod}`, container });
      events.emit('gpus-missing', missed, message);
    },
  });
}

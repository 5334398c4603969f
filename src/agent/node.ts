// The node half: what happens at each sample, in order: it is taken in (intake.ts), acted upon, published, and the pages are taught.
// Owns how the rooms of it are joined and what may be asked of them from outside; every decision is made by those rooms.
import { statSync } from 'node:fs';
import { effectiveMode } from '../policy/mode.ts';
import { offeredGpus } from './allocation/advertised-gpus.ts';
import { publishPod } from './allocation/pod-grants.ts';
import { changeGrant, grantPlain, unreadable } from './allocation/process-grants.ts';
import type { PodContainers } from './attribution/attribute.ts';
import { createContainerBook } from './attribution/container-index.ts';
import { createOwners } from './attribution/owner-tracker.ts';
import { createNodeCompute } from './compute/node-policy.ts';
import { openShares } from './compute/shares.ts';
import type { AgentConfiguration } from './config.ts';
import { createNobodys } from './counters/invalid-pid-count.ts';
import { removeOldCounterFiles } from './counters/old-files.ts';
import { createSamplerCounts } from './counters/reset-safe-counter.ts';
import { createStopCounts } from './counters/stop-counts.ts';
import type { ActionRecord } from './enforcement/action-record.ts';
import { type Audit, openAudit } from './enforcement/audit-log.ts';
import { createEnforcer } from './enforcement/enforcer.ts';
import { createEvictions } from './enforcement/evictions.ts';
import { openNodeMode } from './enforcement/node-mode.ts';
import { createModes } from './enforcement/pod-mode.ts';
import { createHousekeeping } from './grant-upkeep.ts';
import { type Grant, isOfPod, podGrantId, podUidOf } from './grants/grant.ts';
import { openRegistry, type Registry } from './grants/registry.ts';
import { openProfiles } from './isolation/calibration.ts';
import { createDriverFence } from './isolation/driver-limits/fence.ts';
import { createProbing } from './isolation/gpu-checks.ts';
import { openGpuFaults } from './isolation/gpu-faults.ts';
import { openPassedBy } from './kubelet/missed-containers.ts';
import type { Node, NodeHooks } from './node-api.ts';
import type { Native } from './os/addon.ts';
import { createHelperRunner } from './os/helper-process.ts';
import { unseenProcesses } from './os/pid-namespace.ts';
import { createIntake } from './process-sample.ts';
import { createUntold } from './sampling/capability-log.ts';
import { isShareable, type Sample } from './sampling/sample.ts';
import { createPace } from './sampling-interval.ts';
import {
  PUBLISH_RESULTS,
  releasedSnapshot,
  type SelfSnapshot,
  type Snapshot,
  snapshotOf,
  staleSnapshot,
} from './snapshot/snapshot.ts';
import type { NodeState } from './usage/node-usage.ts';

/** One silence abandons a sampler; the next one has had its time to answer, too. */
const SILENCES_UNTIL_STALE = 2;

const PASSED_BY =
  "was made without its GPU: the node's agent was away, or did not answer the container runtime in time. It gets its GPUs when it starts anew";

export function openNode(configuration: AgentConfiguration, native: Native, hooks: NodeHooks): Node {
  const { stateFolder, kubernetes } = configuration;
  const { log } = hooks;
  const nodeMode = openNodeMode(
    { stateFolder, configured: configuration.enforcement.mode, hears: kubernetes.enabled && kubernetes.pods },
    log.component('node-mode').warn,
    log.component('node-mode').info,
  );
  const enforcement: AgentConfiguration['enforcement'] = {
    ...configuration.enforcement,
    get mode() {
      return nodeMode.mode();
    },
  };
  const tools = createHelperRunner();
  const profiles = openProfiles({
    stateFolder: configuration.stateFolder,
    libraries: { cuda: configuration.cudaLibrary, nvml: configuration.nvmlLibrary },
    tools,
    onProblem: log.component('calibration').warn,
    clock: hooks.clock,
  });
  hooks.driver.join(tools.user);
  removeOldCounterFiles(stateFolder, log.component('counters'));
  const auditLog = openAudit(stateFolder, log.component('audit').warn);
  const stopCounts = createStopCounts(auditLog.steps());
  const audit: Audit = {
    ...auditLog,
    add(record) {
      auditLog.add(record);
      stopCounts.add([record]);
    },
  };
  const shares = openShares(configuration, log.component('compute').warn);
  let snapshot: Snapshot | undefined;
  const pace = createPace(configuration);
  /** Before there is a sample nobody rests. */
  const stir = () => {
    if (snapshot) hooks.onInterval(pace.stir());
  };
  let opened: Registry | undefined;
  const registry = openRegistry({
    stateFolder: configuration.stateFolder,
    native,
    volumes: hooks.volumes,
    profileOf: profiles.of,
    onProblem: log.component('registry').warn,
    onChange: log.component('registry').info,
    heldEngine: configuration.interposerEngine === 0 ? undefined : configuration.interposerEngine,
    leasedOf: shares.leasedOf,
    onGrants: () => {
      if (opened) shares.follow(opened);
      stir();
    },
  });
  opened = registry;
  shares.follow(registry);
  const compute = createNodeCompute({
    shares,
    registry,
    gpus: () => (intake.state()?.devices ?? []).map(({ gpu }) => gpu).filter(isShareable),
    onProblem: log.component('compute').warn,
    onRefused: (change) => {
      log.component('compute').warn(change.message, { pod: `${change.namespace}/${change.pod}` });
      hooks.onRefused?.(change);
    },
  });
  const modes = createModes(registry, log.component('pod-mode').warn);
  const onPod: Node['onPod'] = (podUid, annotations) => {
    modes.onPod(podUid, annotations);
    compute.onPod(podUid, annotations);
  };
  /** By its grant as it is now; of one that has ended, or was never judged by another mode, by the node's. */
  const isEnforced = (grant: Grant | undefined): boolean =>
    effectiveMode(enforcement.mode, grant?.enforcement).mode === 'enforce';
  const containers = createContainerBook((containerId) => {
    const { podUid, container } = hooks.nameOf(containerId);
    return container === '' ? undefined : { podUid: podUid ?? '', container };
  });
  const pods: PodContainers = {
    nameOf: containers.nameOf,
    grantOf: (podUid, container) => registry.get(podGrantId(podUid, container))?.grant.id,
    grantsOf: (podUid) => registry.list().flatMap(({ grant }) => (podUidOf(grant) === podUid ? [grant.id] : [])),
  };
  const clocks = { now: Date.now, steady: hooks.clock };
  const enforcer = createEnforcer({
    registry,
    native,
    audit,
    policy: enforcement,
    clocks,
    pods: {
      containers,
      beforeStop: (grant, message) => {
        if (!isOfPod(grant.owner)) return;
        hooks.lastWords?.(grant, message, containers.newest(grant.owner.podUid, grant.container)?.terminationLog);
      },
    },
    onProblem: log.component('enforcer').warn,
  });
  // Nobody's eviction is asked for again where nobody is to be stopped any more.
  const earlierStops = audit
    .steps()
    .filter(({ action, grantId }) => action !== 'evict' || isEnforced(registry.get(grantId)?.grant));
  const evictions =
    hooks.evict &&
    createEvictions(enforcement, hooks.evict, clocks, earlierStops, (record) => {
      audit.add(record);
      if (record.result !== 'asked') hooks.onActions([record]);
    });
  const ownPidNamespace = statSync('/proc/self/ns/pid').ino;
  const unseen = unseenProcesses(ownPidNamespace);
  if (unseen !== undefined) log.warn(unseen);
  let sampledAt = 0;
  const staleAfterMs = SILENCES_UNTIL_STALE * configuration.silenceMs;
  const isStale = () => intake.state() !== undefined && hooks.clock() - sampledAt > staleAfterMs;
  const failures = new Map<string, number>();
  const nobodys = createNobodys();
  const samplerCounts = createSamplerCounts();
  const publishes = new Map(PUBLISH_RESULTS.map((result) => [result, 0]));

  const isAlive = native.isRunning;

  const keeping = createHousekeeping({
    registry,
    native,
    ownPidNamespace,
    isAlive,
    onProblem: log.component('grants').warn,
  });

  const faults = openGpuFaults({
    stateFolder: configuration.stateFolder,
    unhealthyXids: configuration.unhealthyXids,
    onProblem: log.component('gpu-faults').warn,
    onChange: log.component('gpu-faults').warn,
  });
  const untold = createUntold(log.component('sampler').info);
  const passedBy = openPassedBy({
    stateFolder,
    onProblem: log.component('missed-containers').warn,
    containers,
    tell(container) {
      const message = `${container.namespace}/${container.pod}/${container.container} ${PASSED_BY}`;
      log.component('missed-containers').warn(message);
      hooks.onPassedBy?.(container, message);
    },
  });
  const probing = createProbing({
    configuration,
    native,
    tools,
    profiles,
    registry,
    driver: hooks.driver,
    faultOf: faults.wordsOf,
    onProblem: log.component('gpu-checks').warn,
    onChange: log.component('gpu-checks').info,
    clock: hooks.clock,
  });

  const driverFence = createDriverFence(configuration, {
    native,
    tools,
    containers,
    failsOn: probing.driverFailsOn,
    onProblem: log.component('driver-limits').warn,
    clock: hooks.clock,
  });

  /** On a GPU that it was not granted a container goes by the id of its grant. */
  const nameOf: typeof hooks.nameOf = (id, podUid = '') => {
    const grant = registry.get(id)?.grant;
    if (grant === undefined) return hooks.nameOf(id, podUid);
    const { namespace, pod, container } = grant;
    return { namespace, pod, podUid, container };
  };
  const intake = createIntake({
    registry,
    shares,
    owners: createOwners({ registry, pods, isAlive }),
    policy: enforcement,
    driverHolds: driverFence.holds,
    interposerFails: ({ gpus }) => gpus.some(({ gpuUuid }) => probing.fencesOf(gpuUuid).interposer?.result === 'fails'),
    assignments: hooks.assignments,
    nameOf,
  });

  /** What cannot be done to anybody now must not keep what was seen from being told. */
  const act = (now: NodeState): readonly ActionRecord[] => {
    try {
      return enforcer.act(now);
    } catch (error) {
      log.component('enforcer').error(`nobody can be held to a grant: ${(error as Error).stack ?? error}`);
      return [];
    }
  };

  const selfSnapshot = (sample: Sample): SelfSnapshot => ({
    up: sample.problem === undefined && sample.gpus.length > 0,
    problem: sample.problem ?? (sample.gpus.length === 0 ? 'the driver shows no GPU' : undefined),
    mode: enforcement.mode,
    version: hooks.version,
    revision: hooks.revision,
    nodeVersion: process.version,
    driverHeld: hooks.driver.releasedMs() === undefined,
    samplersAbandoned: hooks.samplers().abandoned,
    decisions: stopCounts.decisions(),
    refusals: stopCounts.refusals(),
    failures: Object.fromEntries(failures),
    publishes: Object.fromEntries(publishes) as SelfSnapshot['publishes'],
  });

  return {
    onSample(sample) {
      probing.notice(sample.driverVersion);
      faults.see(sample);
      untold.see(sample);
      const { state, totals, owned, ledgers, stateOf } = intake.take(sample);
      stopCounts.update(state);
      for (const [reason, count] of Object.entries(state.failures))
        failures.set(reason, (failures.get(reason) ?? 0) + count);
      const ofNobody = nobodys.see(sample);
      if (ofNobody !== undefined) failures.set('no_pid', ofNobody);

      const records = act(state);
      audit.retry();
      // A stop that an agent before this one left half told is no ground where nobody is to be stopped any more.
      evictions?.see(records.filter(({ grantId }) => isEnforced(registry.get(grantId)?.grant)));
      sampledAt = hooks.clock();
      snapshot = snapshotOf(
        samplerCounts.see(state),
        totals,
        stopCounts.totals(),
        audit.recent(),
        selfSnapshot(sample),
        nameOf,
        containers.newest,
        { stateOf, ofGpu: shares.ofGpu },
        probing.fencesOf,
        faults.of,
      );
      hooks.onSnapshot(snapshot);
      if (records.length > 0) hooks.onActions(records);
      hooks.onInterval(pace.after(state));

      // Last: what is told of a sample, and how old it is, must not hang on files that cannot be written.
      passedBy.after(snapshot, (id) =>
        state.containers.flatMap(({ grant, gpus }) =>
          grant.id === id ? gpus.flatMap(({ processes }) => processes) : [],
        ),
      );
      keeping.after(sample, ledgers, owned.ofGrant);
      compute.again();
      const grants = registry.list().map(({ grant }) => grant);
      driverFence.after(sample, grants, isEnforced, owned.ofGrant);
      void probing.look(sample);
    },

    lookAtAge() {
      const samplers = hooks.samplers();
      const releasedMs = hooks.driver.releasedMs();
      if (snapshot && releasedMs !== undefined) {
        sampledAt = Number.NEGATIVE_INFINITY;
        if (!snapshot.self.driverHeld && snapshot.self.samplersAbandoned === samplers.abandoned) return;
        snapshot = releasedSnapshot(snapshot, releasedMs, samplers);
        hooks.onSnapshot(snapshot);
        return;
      }
      if (!snapshot || !isStale()) return;
      if (!snapshot.self.up && snapshot.self.samplersAbandoned === samplers.abandoned) return;
      snapshot = staleSnapshot(snapshot, hooks.clock() - sampledAt, samplers);
      hooks.onSnapshot(snapshot);
    },

    snapshot: () => snapshot,

    grant(ask) {
      const state = intake.state();
      const refusal = unreadable(state, isStale(), hooks.driver.releasedMs());
      return (
        refusal ??
        grantPlain(
          ask,
          state as NodeState,
          registry,
          native,
          { ...configuration, enforcement },
          probing.notYet,
          probing.standingOf,
        )
      );
    },

    change(id, change, memoryBytesPerGpu) {
      const live = changeGrant(id, change, memoryBytesPerGpu, intake.state(), registry);
      if (memoryBytesPerGpu !== undefined && !('refused' in live))
        keeping.resized(id, registry.readLedger(live).readNs);
      return live;
    },

    compute,
    mode: nodeMode.mode,
    onLabels(labels) {
      compute.onLabels(labels);
      nodeMode.label(labels);
    },
    onPod,

    publish(ask) {
      const state = intake.state();
      const refusal = unreadable(state, isStale(), hooks.driver.releasedMs());
      const published = refusal ?? publishPod(ask, state as NodeState, registry, probing.notYet, enforcement.mode);
      if (!('refused' in published)) onPod(ask.podUid, ask.annotations);
      return published;
    },

    onPublish: (result) => void publishes.set(result, (publishes.get(result) ?? 0) + 1),
    unpublish(podUid, target) {
      for (const { grant } of registry.list()) {
        if (podUidOf(grant) === podUid && isOfPod(grant.owner) && grant.owner.target === target)
          keeping.takeDown(grant.id);
      }
    },

    holds: registry.holdsAll,

    containerStarts(podUid, container) {
      const live = registry.get(podGrantId(podUid, container));
      if (!live) return undefined;
      stir();
      try {
        // Whoever held something in it has ended: the new one starts with empty books, at once.
        if (registry.readLedger(live).slots.every(({ locked }) => !locked)) registry.clearLedger(live);
      } catch (error) {
        // It starts all the same: what the books of the dead say ends with the next samples.
        log.component('grants').warn(`the usage ledger cannot be cleared: ${(error as Error).message}`, {
          pod: `${live.grant.namespace}/${live.grant.pod}`,
          container,
        });
      }
      return live.grant.gpus.map(({ gpuUuid }) => gpuUuid);
    },

    containerPassedBy(container) {
      if (!registry.get(podGrantId(container.podUid, container.container))) return;
      passedBy.add(container);
    },

    containers,

    gpus() {
      const state = intake.state();
      return (
        state &&
        offeredGpus(state, {
          isStale: isStale(),
          mostTenantsPerGpu: configuration.mostTenantsPerGpu,
          grants: registry.list().map(({ grant }) => grant),
          standingOf: probing.standingOf,
          fencesOf: configuration.canary ? probing.state : undefined,
        })
      );
    },

    clearFault: faults.clear,
    release: keeping.takeDown,
    grantFiles: (id) => registry.get(id),
    actionsOn: (who) =>
      audit
        .recent()
        .filter(({ grantId, namespace, pod }) => who === grantId || who === pod || who === `${namespace}/${pod}`),
    async close() {
      audit.retry();
      await shares.close();
      registry.close();
    },
  };
}

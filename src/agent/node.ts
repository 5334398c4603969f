// The node half of the agent: processes each sample (attribute, judge, act, publish, maintain files) and answers
// requests for grants, volumes and state. Its parts are opened in node-parts.ts and make every decision.
import { EventEmitter } from 'node:events';
import { ok, type Result } from '../common/result.ts';
import { advertisedGpus } from './allocation/advertised-gpus.ts';
import { usableState } from './allocation/driver-state.ts';
import { adoptPod, annotationsOf, type PodVolume, publishPod } from './allocation/pod-grants.ts';
import { type GrantContext, grantContainers, grantProcess } from './allocation/process-grants.ts';
import type { AgentConfiguration } from './config.ts';
import { createSlices } from './containers/slices.ts';
import { createInvalidPidCount } from './counters/invalid-pid-count.ts';
import type { ActionRecord } from './enforcement/action-record.ts';
import { grantNamed } from './grants/by-name.ts';
import { isOfContainers, isOfPod, podGrantId, podUidOf } from './grants/grant.ts';
import type { Refusal } from './grants/refusal.ts';
import type { Node, NodeEvents, NodeInputs } from './node-api.ts';
import { type NodeParts, openNodeParts } from './node-parts.ts';
import type { Native } from './os/addon.ts';
import type { AbandonedCounts } from './os/helper-process.ts';
import type { ProcessedSample } from './process-sample.ts';
import { createCapabilityLog } from './sampling/capability-log.ts';
import { withReserve } from './sampling/reserve.ts';
import type { Sample } from './sampling/sample.ts';
import { createSamplingInterval } from './sampling-interval.ts';
import {
  createSnapshot,
  PUBLISH_RESULTS,
  type PublishResult,
  releasedSnapshot,
  type SelfSnapshot,
  type Snapshot,
  staleSnapshot,
} from './snapshot/snapshot.ts';
import type { NodeState } from './usage/node-usage.ts';

/** After one silence a sampler is abandoned; after the second its successor did not answer either. */
const SILENCES_UNTIL_STALE = 2;
const NO_SAMPLERS: AbandonedCounts = { abandoned: 0, hung: 0 };

export function openNode(configuration: AgentConfiguration, native: Native, inputs: NodeInputs): Node {
  const events = new EventEmitter<NodeEvents>();
  const parts = openNodeParts({ configuration, native, inputs, events });
  const publishes = new Map<PublishResult, number>(PUBLISH_RESULTS.map((result) => [result, 0]));
  const publication = createPublication({ configuration, inputs, events, parts, publishes });
  const { registry, checks, nodeMode, audit } = parts;
  /** The newest state, or why nothing can be granted by it. */
  const readableState = () => usableState(parts.intake.state(), publication.isStale(), inputs.driver.releasedMs());
  const pace = createSamplingInterval(configuration);
  const sampleSoon = () => {
    // Before the first sample the sampler is not slow yet.
    if (publication.snapshot()) events.emit('interval', pace.wake());
  };
  parts.grantChanges.on('changed', sampleSoon);
  const context = grantContext({ configuration, native, parts, readableState });
  const slices = createSlices({
    settings: configuration.slices,
    registry,
    mounts: parts.mounts,
    grant: (owner, ask) => {
      const found = context();
      return found.ok ? grantContainers(owner, ask, found.value) : found;
    },
    change: parts.changeOfGrant,
    end: parts.upkeep.takeDown,
    uuidOf: (index) => parts.intake.state()?.devices.find(({ gpu }) => gpu.index === index)?.gpu.uuid,
    log: inputs.log.component('slices'),
  });

  return {
    ...podFunctions({ parts, inputs, sampleSoon }),
    ...grantFunctions({ parts, context, readableState }),
    slices,
    events,
    onSample(sampled, samplers = NO_SAMPLERS) {
      const sample = withReserve(sampled, parts.usableBytesOf);
      const taken = publication.onSample(sample, samplers);
      events.emit('interval', pace.after(taken.state));
      maintainFiles(parts, sample, taken, publication.snapshot());
      slices.after();
    },
    checkAge: (samplers = NO_SAMPLERS) => publication.checkAge(samplers),
    snapshot: publication.snapshot,

    onPublish: (result) => void publishes.set(result, (publishes.get(result) ?? 0) + 1),
    compute: parts.compute,
    mode: nodeMode.mode,
    onLabels(labels) {
      parts.compute.onLabels(labels);
      nodeMode.label(labels);
    },

    gpus() {
      const state = parts.intake.state();
      return (
        state &&
        advertisedGpus(state, {
          isStale: publication.isStale(),
          mostTenantsPerGpu: configuration.mostTenantsPerGpu,
          grants: registry.list().map(({ grant }) => grant),
          standingOf: checks.standingOf,
          fencesOf: configuration.canary ? checks.state : undefined,
        })
      );
    },

    containers: parts.containers,
    clearFault: parts.faults.clear,
    release(id) {
      const owner = registry.get(id)?.grant.owner;
      if (owner && isOfContainers(owner) && parts.mounts.held([id]).has(id)) return 'in use';
      return parts.upkeep.takeDown(id) ? 'released' : 'unknown';
    },
    find: (name) =>
      grantNamed(
        registry.list().map(({ grant }) => grant),
        name,
      ),
    grantFiles: (id) => registry.get(id),
    actionsOn: (name) =>
      audit
        .recent()
        .filter(({ grantId, namespace, pod }) => name === grantId || name === pod || name === `${namespace}/${pod}`),
    async close() {
      audit.retry();
      await parts.shares.close();
      registry.close();
    },
  };
}

type GrantContextOptions = {
  readonly configuration: AgentConfiguration;
  readonly native: Native;
  readonly parts: NodeParts;
  readonly readableState: () => ReturnType<typeof usableState>;
};

/** What grants are placed by, as it is now. */
const grantContext =
  ({ configuration: { placement, mostTenantsPerGpu }, native, parts, readableState }: GrantContextOptions) =>
  (): Result<GrantContext, Refusal> => {
    const state = readableState();
    if (!state.ok) return state;
    const { registry, nodeMode, checks } = parts;
    const { notYet, standingOf } = checks;
    return ok({
      ...{ state: state.value, registry, native, placement, mostTenantsPerGpu },
      ...{ mode: nodeMode.mode(), notYet, standingOf },
    });
  };

type GrantFunctionOptions = Pick<GrantContextOptions, 'parts' | 'readableState'> & {
  readonly context: ReturnType<typeof grantContext>;
};

/** Grants for processes and for pods: made, changed, adopted. */
function grantFunctions({
  parts,
  context,
  readableState,
}: GrantFunctionOptions): Pick<Node, 'grant' | 'change' | 'publish' | 'adopt' | 'onPod'> {
  const { registry, nodeMode } = parts;
  const { notYet } = parts.checks;
  const onPod: Node['onPod'] = (podUid, annotations) => {
    parts.podModes.onPod(podUid, annotations);
    parts.compute.onPod(podUid, annotations);
    parts.podMemory.onPod(podUid, annotations);
  };
  const publish = (ask: PodVolume, how: typeof publishPod) => {
    const state = readableState();
    if (!state.ok) return state;
    const published = how(ask, { state: state.value, registry, notYet, mode: nodeMode.mode() });
    if (published.ok) onPod(ask.podUid, annotationsOf(ask));
    return published;
  };
  return {
    grant(ask) {
      const found = context();
      return found.ok ? grantProcess(ask, found.value) : found;
    },
    change: parts.changeOfGrant,
    publish: (ask) => publish(ask, publishPod),
    adopt: (ask) => publish(ask, adoptPod),
    onPod,
  };
}

type PublicationOptions = {
  readonly configuration: AgentConfiguration;
  readonly inputs: NodeInputs;
  readonly events: EventEmitter<NodeEvents>;
  readonly parts: NodeParts;
  readonly publishes: ReadonlyMap<PublishResult, number>;
};

/** Processes that could not be attributed since the agent's start, by reason. */
function createFailureCounts() {
  const counts = new Map<string, number>();
  const invalidPids = createInvalidPidCount();
  return {
    add(state: NodeState, sample: Sample) {
      for (const [reason, count] of Object.entries(state.failures))
        counts.set(reason, (counts.get(reason) ?? 0) + count);
      const invalid = invalidPids.update(sample);
      if (invalid !== undefined) counts.set('no_pid', invalid);
    },
    totals: (): Readonly<Record<string, number>> => Object.fromEntries(counts),
  };
}

const selfFacts = ({ problem, gpus }: Sample, { nodeMode, stopCounts }: NodeParts, { build, driver }: NodeInputs) => ({
  up: problem === undefined && gpus.length > 0,
  problem: problem ?? (gpus.length === 0 ? 'the driver shows no GPU' : undefined),
  mode: nodeMode.mode(),
  ...build,
  nodeVersion: process.version,
  driverHeld: driver.releasedMs() === undefined,
  decisions: stopCounts.decisions(),
  refusals: stopCounts.refusals(),
});

/** Makes the snapshot of each sample, after enforcement acted on it, and replaces it when it is stale. */
function createPublication({ configuration, inputs, events, parts, publishes }: PublicationOptions) {
  const { clock, driver } = inputs;
  const { intake, checks, faults, stopCounts, audit } = parts;
  const capabilities = createCapabilityLog(inputs.log.component('sampler'));
  const failures = createFailureCounts();
  const staleAfterMs = SILENCES_UNTIL_STALE * configuration.silenceMs;
  let snapshot: Snapshot | undefined;
  let sampledAtMs = 0;

  const isStale = () => intake.state() !== undefined && clock() - sampledAtMs > staleAfterMs;
  const publish = (next: Snapshot) => {
    snapshot = next;
    events.emit('snapshot', next);
  };
  /** A failure must not keep the snapshot from being published. */
  const act = (state: NodeState): readonly ActionRecord[] => {
    try {
      return parts.enforcer.act(state);
    } catch (error) {
      inputs.log.component('enforcer').error(`enforcement failed: ${(error as Error).stack ?? error}`);
      return [];
    }
  };
  return {
    isStale,
    snapshot: () => snapshot,
    onSample(sample: Sample, samplers: AbandonedCounts): ProcessedSample {
      checks.notice(sample.driverVersion);
      faults.see(sample);
      capabilities.see(sample);
      const taken = intake.process(sample);
      const { state, totals, stateOf } = taken;
      stopCounts.update(state);
      failures.add(state, sample);
      const records = act(state);
      audit.retry();
      // Stops that an earlier agent recorded do not lead to evictions where the grant is no longer enforced.
      parts.evictions?.see(records.filter(({ grantId }) => parts.isEnforced(parts.registry.get(grantId)?.grant)));
      sampledAtMs = clock();
      publish(
        createSnapshot({
          state,
          totals,
          kills: stopCounts.totals(),
          recent: audit.recent(),
          self: {
            ...selfFacts(sample, parts, inputs),
            samplersAbandoned: samplers.abandoned,
            failures: failures.totals(),
            publishes: Object.fromEntries(publishes) as SelfSnapshot['publishes'],
            connections: inputs.connections(),
          },
          nameOf: parts.nameOf,
          newestOf: parts.containers.newest,
          compute: { stateOf, ofGpu: parts.shares.ofGpu },
          fencesOf: checks.fencesOf,
          faultOf: faults.of,
          ...(inputs.podGoneSinceMs && { podGoneSinceMs: inputs.podGoneSinceMs }),
        }),
      );
      if (records.length > 0) events.emit('actions', records);
      return taken;
    },
    checkAge(samplers: AbandonedCounts) {
      const releasedMs = driver.releasedMs();
      if (!snapshot || (releasedMs === undefined && !isStale())) return;
      if (releasedMs !== undefined) sampledAtMs = Number.NEGATIVE_INFINITY;
      const { up, driverHeld, samplersAbandoned } = snapshot.self;
      const isReported = releasedMs === undefined ? !up : !driverHeld;
      if (isReported && samplersAbandoned === samplers.abandoned) return;
      publish(
        releasedMs === undefined
          ? staleSnapshot(snapshot, clock() - sampledAtMs, samplers)
          : releasedSnapshot(snapshot, releasedMs, samplers),
      );
    },
  };
}

/** After publication, so that a file that cannot be written does not delay metrics. */
function maintainFiles(
  parts: NodeParts,
  sample: Sample,
  { state, owned, ledgers }: ProcessedSample,
  snapshot?: Snapshot,
): void {
  const processesOf = (grantId: string) =>
    state.containers.flatMap(({ grant, gpus }) =>
      grant.id === grantId ? gpus.flatMap(({ processes }) => processes) : [],
    );
  if (snapshot) parts.missed.after(snapshot, processesOf);
  parts.upkeep.after(sample, ledgers, owned.ofGrant);
  parts.compute.retryRefused();
  parts.podMemory.retryRefused();
  const grants = parts.registry.list().map(({ grant }) => grant);
  parts.driverLimits.after(sample, grants, parts.isEnforced, owned.ofGrant);
  void parts.checks.look(sample);
}

type PodFunctionOptions = {
  readonly parts: NodeParts;
  readonly inputs: NodeInputs;
  readonly sampleSoon: () => void;
};

/** What the kubelet and the container runtime call. */
function podFunctions({
  parts: { registry, upkeep, missed },
  inputs: { log },
  sampleSoon,
}: PodFunctionOptions): Pick<Node, 'unpublish' | 'holds' | 'containerStarts' | 'containerMissed'> {
  return {
    unpublish(podUid, target) {
      for (const { grant } of registry.list()) {
        if (podUidOf(grant) === podUid && isOfPod(grant.owner) && grant.owner.target === target)
          upkeep.takeDown(grant.id);
      }
    },
    holds: registry.holdsAll,
    containerStarts(podUid, container) {
      const live = registry.get(podGrantId(podUid, container));
      if (!live) return undefined;
      sampleSoon();
      try {
        // All processes of the earlier container have ended: the new one starts with an empty ledger, at once.
        if (registry.readLedger(live).slots.every(({ locked }) => !locked)) registry.clearLedger(live);
      } catch (error) {
        // The container starts all the same: rows of dead processes are removed after the next samples.
        const { namespace, pod } = live.grant;
        const keys = { pod: `${namespace}/${pod}`, container };
        log.component('grants').warn(`the usage ledger cannot be cleared: ${(error as Error).message}`, keys);
      }
      return live.grant.gpus.map(({ gpuUuid }) => gpuUuid);
    },
    containerMissed(container) {
      if (registry.get(podGrantId(container.podUid, container.container))) missed.add(container);
    },
  };
}

// How one sample becomes the state of the node, in four steps, each of which has a type that says what it adds: the
// sample, its processes attributed to grants, reconciled with grants and ledgers (memory is judged), and judged
// (compute, too). Holds what the next sample needs of this one; what is done about the state is decided in node.ts.
import { type Assignments, NOTHING_ASSIGNED } from './attribution/other-allocations.ts';
import type { OwnerTracker } from './attribution/owner-tracker.ts';
import { type AttributedProcesses, NO_PROCESSES } from './attribution/processes-by-owner.ts';
import type { ShareState, Shares } from './compute/shares.ts';
import { accumulate } from './counters/accumulate.ts';
import { createSamplerTotals } from './counters/reset-safe-counter.ts';
import { NO_TOTALS, type Totals } from './counters/totals.ts';
import type { EnforcementSettings } from './enforcement/settings.ts';
import type { ReadGrant } from './grant-upkeep.ts';
import type { Grant } from './grants/grant.ts';
import type { Registry } from './grants/registry.ts';
import { judgeCompute, NO_WATCHES } from './judge-compute.ts';
import type { Sample, SampledGpu } from './sampling/sample.ts';
import type { NameOf } from './snapshot/snapshot.ts';
import { useOnGpu } from './usage/gpu-processes.ts';
import { applyMemoryPressure } from './usage/memory-pressure.ts';
import type { NodeState, ReconciledNode } from './usage/node-usage.ts';
import { reconcile } from './usage/reconcile.ts';

/** A sample whose processes are attributed, with the ledgers as they were read for it. */
type AttributedSample = {
  readonly sample: Sample;
  readonly owned: AttributedProcesses;
  readonly ledgers: readonly ReadGrant[];
};

/** What becomes of a sample. */
export type ProcessedSample = AttributedSample & {
  readonly state: NodeState;
  readonly totals: Totals;
  readonly stateOf: (grantId: string, gpu: number) => ShareState;
};

type SampleProcessorOptions = {
  readonly registry: Pick<Registry, 'list' | 'get' | 'readLedger' | 'isBehind'>;
  readonly shares: Pick<Shares, 'stateOf' | 'highCapPercent'>;
  readonly owners: OwnerTracker;
  readonly policy: EnforcementSettings;
  readonly driverHolds: (grant: Grant) => boolean;
  readonly interposerFails: (grant: Grant) => boolean;
  readonly assignments: Assignments | undefined;
  readonly nameOf: NameOf;
};

type SampleProcessor = {
  process(sample: Sample): ProcessedSample;
  /** The newest state; undefined: there was no sample yet. */
  readonly state: () => NodeState | undefined;
};

/**
 * Testing slot locks dominates the cost of reading a ledger, so locks are tested again only after this time while the
 * processes of the grant are as they were. A process that holds GPU memory and ends changes the sample, and then locks
 * are tested at once. A process without GPU memory is in no sample: its end is noticed later, which delays only this
 * agent, because other processes of its container test its lock themselves.
 */
const LOCKS_FOR_MS = 5000;

export function createSampleProcessor(options: SampleProcessorOptions): SampleProcessor {
  const { registry, shares, owners, policy, driverHolds, interposerFails, assignments, nameOf } = options;
  const samplerTotals = createSamplerTotals();
  /** Before memory pressure, which follows from other containers. */
  let lastReconciled: ReconciledNode | undefined;
  let state: NodeState | undefined;
  let totals = NO_TOTALS;
  let watched = NO_WATCHES;
  let owned = NO_PROCESSES;

  const attribute = (sample: Sample): AttributedSample => {
    const before = owned;
    owned = owners.attribute(sample);
    const { ofGrant } = owned;
    const ledgers = registry.list().map((live) => {
      const isQuiet = ofGrant(live.grant.id) === before.ofGrant(live.grant.id);
      return { live, reading: registry.readLedger(live, isQuiet ? LOCKS_FOR_MS : 0) };
    });
    return { sample, owned, ledgers };
  };

  const reconcileAttributed = ({ sample, owned, ledgers }: AttributedSample): ReconciledNode => {
    const readings = ledgers.map(({ live, reading }) => ({
      grant: live.grant,
      ledger: reading,
      engines: live.engines,
      behind: registry.isBehind(live),
      driverHolds: driverHolds(live.grant),
      interposerFails: interposerFails(live.grant),
    }));
    const others = { assigned: assignments?.of(sample.gpus) ?? NOTHING_ASSIGNED, nameOf };
    lastReconciled = reconcile({ sample, readings, owned, tolerance: policy, others, before: lastReconciled });
    assignments?.met(new Set(lastReconciled.foreign.map(({ containerId, podUid }) => containerId || podUid)));
    return applyMemoryPressure(lastReconciled, policy);
  };

  const judge = (reconciled: ReconciledNode, { owned }: AttributedSample, stateOf: ProcessedSample['stateOf']) =>
    judgeCompute(watched, reconciled, {
      totals,
      stateOf,
      highCapPercent: shares.highCapPercent(),
      isGateClosed: (id) => registry.get(id)?.gateClosed ?? false,
      windowSeconds: policy.shareSeconds,
      isUsedOutside: (gpu) => isUsedOutsideGrants(gpu, owned, reconciled),
    });

  return {
    state: () => state,
    process(rawSample) {
      const attributed = attribute(samplerTotals.apply(rawSample));
      const reconciled = reconcileAttributed(attributed);
      const stateOf = shares.stateOf(registry.list());
      const useOf = (grantId: string, gpu: number) => stateOf(grantId, gpu).use;
      totals = accumulate(totals, reconciled, owned.ownerOf, { nameOf, useOf });
      const judged = judge(reconciled, attributed, stateOf);
      watched = judged.watched;
      state = judged.state;
      return { ...attributed, state, totals, stateOf };
    },
  };
}

/** Is the GPU used by processes without a grant, as far as their owners are known? */
const isUsedOutsideGrants = (gpu: SampledGpu, { others }: AttributedProcesses, node: ReconciledNode): boolean =>
  others.some(({ process, owner }) => owner.kind !== 'unknown' && useOnGpu(process, gpu) !== undefined) ||
  node.assigned.some(({ gpuUuid, processes }) => gpuUuid === gpu.uuid && processes.length > 0) ||
  node.foreign.some(({ gpuUuid }) => gpuUuid === gpu.uuid);

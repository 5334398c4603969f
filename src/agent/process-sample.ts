// A sample taken in: processes are attributed, ledgers read, all of it compared, added up, and compute judged. Owns what lives from
// sample to sample for that; what is done about it is the node's.
import { type Assignments, NOTHING_ASSIGNED } from './attribution/other-allocations.ts';
import type { OwnerTracker } from './attribution/owner-tracker.ts';
import { type AttributedProcesses, NO_PROCESSES } from './attribution/processes-by-owner.ts';
import type { ShareState, Shares } from './compute/shares.ts';
import { accumulate } from './counters/accumulate.ts';
import { NO_TOTALS, type Totals } from './counters/totals.ts';
import type { EnforcementSettings } from './enforcement/settings.ts';
import type { ReadGrant } from './grant-upkeep.ts';
import type { Grant } from './grants/grant.ts';
import type { Registry } from './grants/registry.ts';
import { judgeCompute, NO_WATCHES } from './judge-compute.ts';
import type { Sample } from './sampling/sample.ts';
import type { NameOf } from './snapshot/snapshot.ts';
import { useOnGpu } from './usage/gpu-processes.ts';
import { applyMemoryPressure } from './usage/memory-pressure.ts';
import type { NodeState } from './usage/node-usage.ts';
import { reconcile } from './usage/reconcile.ts';

/** What a sample comes to. */
export type ProcessedSample = {
  readonly state: NodeState;
  readonly totals: Totals;
  readonly owned: AttributedProcesses;
  /** Of each grant, as it was read for this sample. */
  readonly ledgers: readonly ReadGrant[];
  readonly stateOf: (grantId: string, gpu: number) => ShareState;
};

export type SampleProcessorOptions = {
  readonly registry: Pick<Registry, 'list' | 'get' | 'readLedger' | 'isBehind'>;
  readonly shares: Pick<Shares, 'stateOf' | 'highCapPercent'>;
  readonly owners: OwnerTracker;
  readonly policy: EnforcementSettings;
  readonly driverHolds: (grant: Grant) => boolean;
  readonly interposerFails: (grant: Grant) => boolean;
  readonly assignments: Assignments | undefined;
  readonly nameOf: NameOf;
};

export type SampleProcessor = {
  process(sample: Sample): ProcessedSample;
  /** The newest state; undefined: no sample was taken in yet. */
  readonly state: () => NodeState | undefined;
};

/**
 * Who lives is asked of each slot's lock, which is most of what reading a ledger takes. Whoever holds memory of a GPU and ends is
 * missed in the sample, or told of as gone, and then locks are asked for at once. Who holds none is in no sample: its end is seen
 * so much later, and nobody waits for that, for other processes of its container look at its lock themselves.
 */
const LOCKS_FOR_MS = 5000;

export function createSampleProcessor(options: SampleProcessorOptions): SampleProcessor {
  const { registry, shares, owners, policy, driverHolds, interposerFails, assignments, nameOf } = options;
  let state: NodeState | undefined;
  let totals = NO_TOTALS;
  let watched = NO_WATCHES;
  let owned = NO_PROCESSES;

  return {
    state: () => state,
    process(sample) {
      const before = owned;
      owned = owners.attribute(sample);
      const { ofGrant, ownerOf } = owned;
      const ledgers = registry.list().map((live) => {
        const { id } = live.grant;
        const isQuiet = ofGrant(id) === before.ofGrant(id);
        return { live, reading: registry.readLedger(live, isQuiet ? LOCKS_FOR_MS : 0) };
      });
      const told = reconcile(
        sample,
        ledgers.map(({ live, reading }) => ({
          grant: live.grant,
          ledger: reading,
          engines: live.engines,
          behind: registry.isBehind(live),
          driverHolds: driverHolds(live.grant),
          interposerFails: interposerFails(live.grant),
        })),
        owned,
        policy,
        { assigned: assignments?.of(sample.gpus) ?? NOTHING_ASSIGNED, nameOf },
        state,
      );
      const compared = applyMemoryPressure(told, policy);
      assignments?.met(new Set(compared.foreign.map(({ containerId, podUid }) => containerId || podUid)));
      const stateOf = shares.stateOf(registry.list());
      totals = accumulate(totals, compared, ownerOf, nameOf, (grantId, place) => stateOf(grantId, place).use);
      const judged = judgeCompute(watched, compared, {
        totals,
        stateOf,
        highCapPercent: shares.highCapPercent(),
        isGateClosed: (id) => registry.get(id)?.gateClosed ?? false,
        windowSeconds: policy.shareSeconds,
        isUsedOutside: (gpu) =>
          owned.others.some(({ process, owner }) => owner.kind !== 'unknown' && useOnGpu(process, gpu) !== undefined) ||
          compared.assigned.some(({ gpuUuid, processes }) => gpuUuid === gpu.uuid && processes.length > 0) ||
          compared.foreign.some(({ gpuUuid }) => gpuUuid === gpu.uuid),
      });
      watched = judged.watched;
      state = judged.state;
      return { state, totals, owned, ledgers, stateOf };
    },
  };
}

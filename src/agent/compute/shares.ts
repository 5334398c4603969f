// The compute policies of this node's GPUs: combines settings, the Node's label and `cotenant set`, and sends the
// arbiter a new plan at each change. Holds the state; gpu-policy.ts and arbiter-plan.ts decide what follows from it.

import { COMPUTE_POLICY_ANNOTATION } from '../../api/names.ts';
import { COMPUTE_POLICIES, type ComputePolicy, parseComputePolicy } from '../../api/request.ts';
import type { Logger } from '../../common/logger.ts';
import type { Grant } from '../grants/grant.ts';
import type { LiveGrant } from '../grants/live-grant.ts';
import { createArbiter } from './arbiter-process.ts';
import { type GpuPolicy, leasedGrants, type PolicyChoices, policiesOf, policyOfGpu } from './gpu-policy.ts';
import { openComputeStore } from './policy-file.ts';
import type { ComputeSettings } from './settings.ts';
import type { ComputeUse } from './usage-account.ts';

/** Compute of a grant on one GPU, for the snapshot. */
export type ShareState = {
  /** The policy in force. */
  readonly policy: ComputePolicy;
  readonly use: ComputeUse | undefined;
};

/** For the node, or for one of its GPUs; null removes what was set before. */
export type NodeComputeChange = {
  readonly gpuUuid?: string;
  readonly policy?: ComputePolicy | null;
  readonly highCapPercent?: number | null;
};

export type Shares = {
  /** Ids of those with a lease page. */
  leasedOf(grants: readonly Grant[]): ReadonlySet<string>;
  /** Called when grants, their amounts or their leases have changed. */
  follow(grants: readonly LiveGrant[]): void;
  ofGpu(gpuUuid: string): GpuPolicy;
  readonly highCapPercent: () => number;
  stateOf(entries: readonly LiveGrant[]): (grantId: string, gpu: number) => ShareState;
  /** Throws if the change cannot be stored. After it the caller updates the leases of grants. */
  set(change: NodeComputeChange): void;
  /** Called with the Node's present labels; true: the policy has changed. */
  label(labels: Readonly<Record<string, string>>): boolean;
  close(): Promise<void>;
};

export function openShares(settings: ComputeSettings, log: Pick<Logger, 'warn'>): Shares {
  const { computePolicy, computePolicies, mostTenantsPerGpu } = settings;
  const store = openComputeStore(settings.stateFolder, log);
  const arbiter = createArbiter({ log });
  let labeled: ComputePolicy | undefined;
  const choices = (): PolicyChoices => ({
    configured: computePolicy,
    label: labeled,
    set: store.get().policy,
    configuredOfGpus: computePolicies,
    setOfGpus: store.get().gpus,
  });
  const ofGpu = (gpuUuid: string) => policyOfGpu(choices(), gpuUuid);
  const policyOf = (gpuUuid: string) => ofGpu(gpuUuid).policy;
  const highCapPercent = () => store.get().highCapPercent ?? settings.highCapPercent;

  return {
    leasedOf: (grants) => leasedGrants(policyOf, grants),
    follow(grants) {
      arbiter.follow(grants, { policyOf, instances: mostTenantsPerGpu, highCapPercent: highCapPercent() });
    },
    ofGpu,
    highCapPercent,
    stateOf(entries) {
      const policies = policiesOf(
        policyOf,
        entries.map(({ grant }) => grant),
      );
      const leased = new Set(entries.flatMap((entry) => (entry.leased ? [entry.grant.id] : [])));
      return (grantId, gpu) => ({
        policy: (leased.has(grantId) ? policies.get(grantId)?.[gpu] : undefined) ?? 'native',
        use: leased.has(grantId) ? arbiter.use(grantId, gpu) : undefined,
      });
    },
    set({ gpuUuid, policy, highCapPercent: cap }) {
      const { policy: nodePolicy, gpus, highCapPercent: capBefore } = store.get();
      const { [gpuUuid ?? '']: _, ...otherGpus } = gpus;
      const ofNode = gpuUuid !== undefined || policy === undefined ? nodePolicy : (policy ?? undefined);
      const capNow = cap === undefined ? capBefore : (cap ?? undefined);
      store.put({
        ...(ofNode && { policy: ofNode }),
        gpus:
          gpuUuid === undefined || policy === undefined ? gpus : { ...otherGpus, ...(policy && { [gpuUuid]: policy }) },
        ...(capNow !== undefined && { highCapPercent: capNow }),
      });
    },
    label(labels) {
      const text = labels[COMPUTE_POLICY_ANNOTATION];
      const policy = text === undefined ? undefined : parseComputePolicy(text);
      if (text !== undefined && policy === undefined)
        log.warn(
          `label ${COMPUTE_POLICY_ANNOTATION} of this node is ignored: "${text}" is not a compute policy; use one of ${COMPUTE_POLICIES.join(', ')}`,
        );
      if (policy === labeled) return false;
      labeled = policy;
      return true;
    },
    close: arbiter.close,
  };
}

// The compute of this node's GPUs: who said which policy holds, what operators change of it while containers run, and that the
// arbiter is told at once. Owns what lives from change to change; what follows from it is decided by policy.ts and plan.ts.
import { COMPUTE_POLICY_ANNOTATION } from '../../api/names.ts';
import { type ComputePolicy, parseComputePolicy } from '../../api/request.ts';
import { memoizeLast } from '../../common/memo.ts';
import type { Grant } from '../grants/grant.ts';
import type { LiveGrant } from '../grants/live-grant.ts';
import { createArbiter } from './arbiter-process.ts';
import { type GpuPolicy, leasedGrants, type PolicyChoices, policiesOf, policyOfGpu } from './gpu-policy.ts';
import { openComputeStore } from './policy-file.ts';
import type { ComputeSettings } from './settings.ts';
import type { ComputeUse } from './usage-account.ts';

/** Of a grant on one GPU, for whoever looks. */
export type ShareState = {
  /** What holds there now. */
  readonly policy: ComputePolicy;
  readonly use: ComputeUse | undefined;
};

/** For the node, or for one GPU of it; null takes back what was set before. */
export type NodeComputeChange = {
  readonly gpuUuid?: string;
  readonly policy?: ComputePolicy | null;
  readonly highCapPercent?: number | null;
};

export type Shares = {
  /** Which of these launch by the arbiter. */
  leasedOf(grants: readonly Grant[]): ReadonlySet<string>;
  /** Grants, their amounts or their leases have changed. */
  follow(grants: readonly LiveGrant[]): void;
  ofGpu(gpuUuid: string): GpuPolicy;
  readonly highCapPercent: () => number;
  stateOf(entries: readonly LiveGrant[]): (grantId: string, gpu: number) => ShareState;
  /** Throws where it cannot be stored. The caller then updates the leases of grants. */
  set(change: NodeComputeChange): void;
  /** Labels of the Node as they are now; true: another policy holds. */
  label(labels: Readonly<Record<string, string>>): boolean;
  close(): Promise<void>;
};

export function openShares(settings: ComputeSettings, onProblem: (text: string) => void): Shares {
  const { computePolicy, computePolicies, mostTenantsPerGpu } = settings;
  const store = openComputeStore(settings.stateFolder, onProblem);
  const arbiter = createArbiter({ onProblem });
  let labeled: ComputePolicy | undefined;
  let toldLabel: string | undefined;
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

  /** Grows whenever what holds may be another. */
  let turn = 0;
  const stateOf = memoizeLast((entries: readonly LiveGrant[], _turn: number) => {
    const policies = policiesOf(
      policyOf,
      entries.map(({ grant }) => grant),
    );
    const leased = new Set(entries.flatMap((entry) => (entry.leased ? [entry.grant.id] : [])));
    return (grantId: string, gpu: number): ShareState => ({
      policy: (leased.has(grantId) ? policies.get(grantId)?.[gpu] : undefined) ?? 'native',
      use: leased.has(grantId) ? arbiter.use(grantId, gpu) : undefined,
    });
  });

  return {
    leasedOf: (grants) => leasedGrants(policyOf, grants),
    follow(grants) {
      turn += 1;
      arbiter.follow(grants, { policyOf, instances: mostTenantsPerGpu, highCapPercent: highCapPercent() });
    },
    ofGpu,
    highCapPercent,
    stateOf: (entries) => stateOf(entries, turn),
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
      // A Node changes all the time, mostly in other ways.
      const isNews = text !== toldLabel;
      toldLabel = text;
      if (text !== undefined && policy === undefined && isNews)
        onProblem(
          `label ${COMPUTE_POLICY_ANNOTATION} of this node says "${text}", which is no policy, and is passed over`,
        );
      if (policy === labeled) return false;
      labeled = policy;
      return true;
    },
    close: arbiter.close,
  };
}

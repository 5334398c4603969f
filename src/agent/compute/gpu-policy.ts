// Which policy divides the compute of a GPU, and what that comes to for each container on it. Pure; what the policies make of
// requests is native/compute/arbiter/policy.c.
import type { GpuGrant } from '../../api/gpu.ts';
import type { ComputePolicy } from '../../api/request.ts';
import type { Grant } from '../grants/grant.ts';

/** Who said which policy a GPU has, the narrowest first: `cotenant set` of the GPU, the configuration of the GPU, `cotenant set`
 * of the node, the Node's label, the configuration of the node. */
export type PolicyChoices = {
  readonly configured: ComputePolicy;
  readonly label?: ComputePolicy | undefined;
  readonly set?: ComputePolicy | undefined;
  readonly configuredOfGpus: Readonly<Record<string, ComputePolicy>>;
  readonly setOfGpus: Readonly<Record<string, ComputePolicy>>;
};
export type PolicySource = 'configuration' | 'label' | 'set';
export type GpuPolicy = { readonly policy: ComputePolicy; readonly source: PolicySource };

export function policyOfGpu(choices: PolicyChoices, gpuUuid: string): GpuPolicy {
  const { configured, label, set, configuredOfGpus, setOfGpus } = choices;
  const found: readonly [ComputePolicy | undefined, PolicySource][] = [
    [setOfGpus[gpuUuid], 'set'],
    [configuredOfGpus[gpuUuid], 'configuration'],
    [set, 'set'],
    [label, 'label'],
  ];
  for (const [policy, source] of found) if (policy) return { policy, source };
  return { policy: configured, source: 'configuration' };
}

/** What the policies look at of a grant. */
export type Shared = Pick<Grant, 'id' | 'gpus' | 'compute'>;
export type PolicyOf = (gpuUuid: string) => ComputePolicy;

/**
 * The policy that holds for each GPU of each grant, by the grant's id: what was chosen for the container, or the GPU's. A GPU
 * whose compute nobody asked for any of is nobody's to divide, unless a policy divides it anyway. High priority needs others to
 * give way, so beside it a native GPU is lent softly; whoever chose native for itself keeps it.
 */
export function policiesOf(
  policyOf: PolicyOf,
  grants: readonly Shared[],
): ReadonlyMap<string, readonly ComputePolicy[]> {
  const onGpu = Map.groupBy(
    grants.flatMap((grant) => grant.gpus.map((gpu) => ({ grant, gpu }))),
    ({ gpu }) => gpu.gpuUuid,
  );
  const held = new Map<string, ComputePolicy>();
  for (const [gpuUuid, entries] of onGpu) {
    const hasHigh = entries.some(
      ({ grant: { compute } }) => compute?.priority === 'high' && compute.policy !== 'native',
    );
    const ofGpu = policyOf(gpuUuid);
    const usual = ofGpu === 'native' && hasHigh ? 'soft' : ofGpu;
    const wanted = ({ compute }: Shared) => compute?.policy ?? usual;
    const divides = entries.some(({ grant, gpu }) => {
      const policy = wanted(grant);
      if (policy === 'native') return false;
      return (policy !== 'fixed' && policy !== 'soft') || hasHigh || gpu.coresPercent > 0;
    });
    for (const { grant } of entries) held.set(`${grant.id} ${gpuUuid}`, divides ? wanted(grant) : 'native');
  }
  return new Map(
    grants.map(({ id, gpus }) => [id, gpus.map(({ gpuUuid }) => held.get(`${id} ${gpuUuid}`) ?? 'native')]),
  );
}

/** Ids of the grants that launch by the arbiter: all that have a GPU which it divides. */
export function leasedGrants(policyOf: PolicyOf, grants: readonly Shared[]): ReadonlySet<string> {
  const held = policiesOf(policyOf, grants);
  return new Set(grants.flatMap(({ id }) => (held.get(id)?.some((policy) => policy !== 'native') ? [id] : [])));
}

/**
 * The part of a GPU that a container's share is a hard limit of: its fixed quota, its maximum, the cap of high priority.
 * Undefined: the policy lends, or makes parts by who is there.
 */
export function hardLimitOf(
  policy: ComputePolicy,
  { compute }: Pick<Grant, 'compute'>,
  { coresPercent, coresLimitPercent = 0 }: Pick<GpuGrant, 'coresPercent' | 'coresLimitPercent'>,
  highCapPercent: number,
): number | undefined {
  const percent = (): number => {
    if (compute?.priority === 'high') return policy === 'native' ? 100 : highCapPercent;
    if ((policy === 'fixed' || policy === 'soft') && coresLimitPercent > 0)
      return Math.max(coresPercent, coresLimitPercent);
    return policy === 'fixed' && coresPercent > 0 ? coresPercent : 100;
  };
  const limit = percent();
  return limit < 100 ? limit / 100 : undefined;
}

export const weightOf = ({ compute }: Pick<Grant, 'compute'>, gpu: Pick<GpuGrant, 'coresPercent'>): number =>
  compute?.weight ?? gpu.coresPercent;

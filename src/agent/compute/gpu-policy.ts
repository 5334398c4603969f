// Which policy divides the compute of a GPU, and which policy and limit follow for each container on it. Pure;
// native/compute/arbiter/policy.c turns policies and requests into shares.
import type { GpuGrant } from '../../api/gpu.ts';
import type { ComputePolicy } from '../../api/request.ts';
import type { Grant } from '../grants/grant.ts';

/** Policies by source. Order of precedence: `cotenant set` of the GPU, the configuration of the GPU, `cotenant set` of
 * the node, the Node's label, the configuration of the node. */
export type PolicyChoices = {
  readonly configured: ComputePolicy;
  readonly label?: ComputePolicy | undefined;
  readonly set?: ComputePolicy | undefined;
  readonly configuredOfGpus: Readonly<Record<string, ComputePolicy>>;
  readonly setOfGpus: Readonly<Record<string, ComputePolicy>>;
};
type PolicySource = 'configuration' | 'label' | 'set';
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

/** The fields of a grant that policies use. */
export type ComputeGrant = Pick<Grant, 'id' | 'gpus' | 'compute'>;
export type PolicyOf = (gpuUuid: string) => ComputePolicy;

/**
 * The policy in force on each GPU of each grant, by the grant's id: the container's own choice, or else the GPU's
 * policy. A GPU is not divided if none of its containers requested compute, unless a policy divides it without
 * requests. A container of high priority needs the others to yield, so beside it `native` as the GPU's policy becomes
 * `soft`; a container that chose `native` itself keeps it.
 */
export function policiesOf(
  policyOf: PolicyOf,
  grants: readonly ComputeGrant[],
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
    const wanted = ({ compute }: ComputeGrant) => compute?.policy ?? usual;
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

/** Ids of grants with a lease page: all that have a GPU which the arbiter divides. */
export function leasedGrants(policyOf: PolicyOf, grants: readonly ComputeGrant[]): ReadonlySet<string> {
  const held = policiesOf(policyOf, grants);
  return new Set(grants.flatMap(({ id }) => (held.get(id)?.some((policy) => policy !== 'native') ? [id] : [])));
}

/**
 * A container's hard limit on a GPU, 0 to 1: its fixed quota, its maximum, or the cap of high priority. Undefined: the
 * policy lends idle compute, or divides the GPU by the number of containers.
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

// Writes the plan that the agent sends to the compute arbiter: lease pages, their GPUs and their requests
// (native/compute/arbiterd/plan.h). Pure; arbiter-process.ts runs the arbiter.
import { COMPUTE_POLICIES, type ComputePolicy } from '../../api/request.ts';
import type { Grant } from '../grants/grant.ts';
import { type PolicyOf, policiesOf, weightOf } from './gpu-policy.ts';

export type Planned = {
  readonly grant: Pick<Grant, 'id' | 'gpus' | 'compute'>;
  readonly leased: boolean;
  readonly ledgerPath: string;
  readonly ledgerTurn: number;
};

/** Settings of the node that apply to every GPU. */
export type Terms = {
  readonly policyOf: PolicyOf;
  /** Into how many equal parts the average policy divides a GPU. */
  readonly instances: number;
  /** Upper limit for a container of high priority. */
  readonly highCapPercent: number;
};

/** A ledger that was created again counts as another page. */
export const pageId = ({ grant, ledgerTurn }: Pick<Planned, 'grant' | 'ledgerTurn'>): string =>
  `${grant.id}.${ledgerTurn}`;

const PPM_OF_PERCENT = 10_000;

/** The plan's lines without its first and last; `placeOf`: the arbiter's number of a GPU. */
export function planLines(
  { policyOf, instances, highCapPercent }: Terms,
  slots: number,
  entries: readonly Planned[],
  placeOf: (gpuUuid: string) => number,
): readonly string[] {
  const policies = policiesOf(
    policyOf,
    entries.map(({ grant }) => grant),
  );
  const leased = entries.filter((entry) => entry.leased);
  const gpus = new Set(leased.flatMap(({ grant }) => grant.gpus.map(({ gpuUuid }) => gpuUuid)));
  const number = (name: ComputePolicy = 'native') => COMPUTE_POLICIES.indexOf(name);
  const cap = highCapPercent < 100 ? highCapPercent * PPM_OF_PERCENT : 0;
  return [
    ...[...gpus].map((gpuUuid) => `gpu ${placeOf(gpuUuid)} ${instances}`),
    ...leased.flatMap(({ grant, ledgerPath, ledgerTurn }) => [
      `page ${pageId({ grant, ledgerTurn })} ${slots} ${grant.gpus.length} ${ledgerPath}`,
      ...grant.gpus.map((gpu, index) =>
        [
          'on',
          placeOf(gpu.gpuUuid),
          number(policies.get(grant.id)?.[index]),
          gpu.coresPercent * PPM_OF_PERCENT,
          (gpu.coresLimitPercent ?? 0) * PPM_OF_PERCENT,
          weightOf(grant, gpu),
          grant.compute?.priority === 'high' ? 1 : 0,
          cap,
        ].join(' '),
      ),
    ]),
  ];
}

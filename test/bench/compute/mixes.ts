// Containers that share one GPU and always have work: how evenly the GPU is shared by weight, and what sharing costs.
// A container's rate is over what its program reaches alone on the GPU, so that unequal programs compare.
import type { BenchOptions } from '../bench.ts';
import type { Row } from '../row.ts';
import { each, type Form, type Law, runLab, type Served, type Tenant } from './lab.ts';
import { after, jain, percentOf } from './measure.ts';

const WARM_SECONDS = 2;
const LAWS: readonly Law[] = ['cotenant', 'native', 'count_bucket', 'event_bucket'];

type Program = readonly [form: Form, kernelUs: number];
type Mix = { readonly name: string; readonly percents: readonly number[]; readonly programs: readonly Program[] };

const EQUAL: readonly Program[] = [['async', 200]];
const UNEQUAL: readonly Program[] = [
  ['async', 50],
  ['sync', 500],
  ['graph', 1000],
  ['async', 5000],
  ['cooperative', 500],
  ['async', 20],
  ['sync', 50],
  ['graph', 200],
  ['async', 1000],
  ['sync', 1000],
];
const PERCENTS: Readonly<Record<string, readonly number[]>> = {
  '30_70': [30, 70],
  '10_90': [10, 90],
  '4x25': Array<number>(4).fill(25),
  '10x10': Array<number>(10).fill(10),
  '50x2': Array<number>(50).fill(2),
  '2_8_30_60': [2, 8, 30, 60],
};
const MIXES: readonly Mix[] = Object.entries(PERCENTS).flatMap(([name, percents]) => [
  { name: `${name}_equal`, percents, programs: EQUAL },
  { name: `${name}_unequal`, percents, programs: UNEQUAL },
]);

type Shared = { readonly jain: number; readonly sum: number };

const tenantOf = ({ percents, programs }: Mix, index: number): Tenant => {
  const [form, kernelUs] = programs[index % programs.length] ?? ['async', 200];
  return { form, kernelUs, percent: percents[index] ?? 0 };
};
const shareOf = (served: Served) => percentOf(after(served.work_us, WARM_SECONDS));

export async function mixes({ quick, note }: BenchOptions): Promise<Row[]> {
  const chosen = quick ? MIXES.filter(({ percents }) => percents.length < 50) : MIXES;
  const seconds = WARM_SECONDS + (quick ? 5 : 20);
  const alone = new Map<string, number>();
  for (const [form, kernelUs] of [...EQUAL, ...UNEQUAL]) {
    const [served] = await runLab({ law: 'native', seconds: 7, tenants: [{ form, kernelUs, percent: 50 }] });
    if (served) alone.set(`${form} ${kernelUs}`, shareOf(served));
  }
  const share = async (mix: Mix, law: Law): Promise<Shared> => {
    const tenants = mix.percents.map((_, index) => tenantOf(mix, index));
    const served = await runLab({ law, seconds, tenants });
    const rates = served.map((one, index) => {
      const { form, kernelUs } = tenants[index] ?? { form: 'async', kernelUs: 200 };
      return shareOf(one) / (alone.get(`${form} ${kernelUs}`) ?? 100);
    });
    const sum = rates.reduce((total, rate) => total + rate, 0);
    return { jain: jain(rates.map((rate, index) => rate / (mix.percents[index] ?? 1))), sum };
  };
  note(`compute: ${chosen.length} mixes of programs under ${LAWS.length} laws`);
  const found = await each(chosen, async (mix) => {
    const results = {} as Record<Law, Shared>;
    for (const law of LAWS) results[law] = await share(mix, law);
    return { mix, results };
  });
  const rows: Row[] = found.flatMap(({ mix, results }): Row[] => [
    {
      name: `compute.jain.${mix.name}`,
      value: results.cotenant.jain,
      unit: 'index',
      reference: { value: results.count_bucket.jain, what: 'the same under the count bucket' },
      goal: { least: 0.998 },
    },
    {
      name: `compute.throughput_ratio.${mix.name}`,
      value: results.cotenant.sum / results.native.sum,
      unit: 'ratio',
      reference: { value: results.cotenant.sum, what: 'of a GPU that is not shared; the value is of native sharing' },
      goal: { least: 0.97 },
    },
    ...(['count_bucket', 'event_bucket'] as const).flatMap((law): Row[] => [
      {
        name: `compute.peer.${law}.jain.${mix.name}`,
        value: results[law].jain,
        unit: 'index',
        reference: { value: results.cotenant.jain, what: 'ours' },
      },
      {
        name: `compute.peer.${law}.throughput_ratio.${mix.name}`,
        value: results[law].sum / results.native.sum,
        unit: 'ratio',
        reference: { value: results.cotenant.sum / results.native.sum, what: 'ours' },
      },
    ]),
  ]);
  const least = (pick: (results: Record<Law, Shared>) => number) =>
    found.reduce((worst, one) => (pick(one.results) < pick(worst.results) ? one : worst));
  const unfair = least(({ cotenant }) => cotenant.jain);
  const slow = least(({ cotenant, native }) => cotenant.sum / native.sum);
  rows.push(
    {
      name: 'compute.jain.worst',
      value: unfair.results.cotenant.jain,
      unit: 'index',
      reference: { value: 0.998, what: `the bound; ${unfair.mix.name}` },
      goal: { least: 0.998 },
    },
    {
      name: 'compute.throughput_ratio.worst',
      value: slow.results.cotenant.sum / slow.results.native.sum,
      unit: 'ratio',
      reference: { value: 0.97, what: `the bound; ${slow.mix.name}` },
      goal: { least: 0.97 },
    },
  );
  return rows;
}

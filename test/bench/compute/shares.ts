// One container alone under a hard cap: for each form of launch, length of kernel and percentage, how far from its
// share it is. The share is of what the same program reaches without a cap, so a program that waits for each launch has
// its part of its own pace. Where that says less than the time of the GPU, the time counts: `streams`, whose launches
// fill the GPU less in the short bursts of a capped program, and `bursty`, which thinks now and then and is only capped
// above the share that it asks for anyway.
import type { BenchOptions } from '../bench.ts';
import type { Row } from '../row.ts';
import { quantile } from '../statistics.ts';
import { each, type Form, type Law, lengthName, runLab, type Served } from './lab.ts';
import { after, mean, percentOf, stretches, type Windows } from './measure.ts';

const WARM_SECONDS = 2;
const FORMS: readonly Form[] = ['async', 'sync', 'graph', 'cooperative', 'streams', 'bursty'];
const PEERS: readonly Law[] = ['count_bucket', 'event_bucket'];
const PERCENTS = [2, 5, 10, 25, 30, 50, 75];
const SHORT_US = [20, 200, 1000, 5000];
const LONG_US = [20_000, 200_000];

type Case = { readonly form: Form; readonly kernelUs: number; readonly percent: number };
type Errors = { readonly ten: number; readonly sixty: number; readonly oneP99: number };

const byTime = (form: Form) => form === 'streams' || form === 'bursty';
const windowsOf = (form: Form, served: Served): Windows =>
  after(byTime(form) ? served.active_us : served.work_us, WARM_SECONDS);

async function alone(law: Law, { form, kernelUs, percent }: Case, seconds: number): Promise<Windows> {
  const spread = kernelUs > 5000 ? { spread: 'fixed' } : {};
  const [served] = await runLab({ law, seconds, tenants: [{ form, kernelUs, percent, more: spread }] });
  if (!served) throw new Error('the laboratory served no container');
  return windowsOf(form, served);
}

/** Points of the GPU between what it got and what it should have, per stretch of so many seconds. */
function errors(windows: Windows, native: number, { form, percent }: Case): Errors {
  const points = (seconds: number) =>
    stretches(windows, seconds).map((got) =>
      Math.abs(byTime(form) ? got - Math.min(percent, native) : (100 * got) / native - percent),
    );
  return { ten: mean(points(10)), sixty: mean(points(60)), oneP99: quantile(points(1), 0.99) };
}

const nameOf = ({ form, kernelUs, percent }: Case) => `${form}.${lengthName(kernelUs)}.${percent}`;
const worst = (found: readonly (readonly [Case, Errors])[], of: keyof Errors) =>
  found.reduce((most, entry) => (entry[1][of] > most[1][of] ? entry : most));

export async function shares({ quick, note }: BenchOptions): Promise<Row[]> {
  // Long enough that the 99th percentile of its seconds is not the longest kernel of all.
  const seconds = WARM_SECONDS + (quick ? 10 : 300);
  const lengths = quick ? [200, 5000] : [...SHORT_US, ...LONG_US];
  const cases = FORMS.flatMap((form) =>
    lengths
      .filter((kernelUs) => kernelUs <= 5000 || form === 'async')
      .flatMap((kernelUs) => (quick ? [2, 25, 75] : PERCENTS).map((percent) => ({ form, kernelUs, percent }))),
  );
  const natives = new Map<string, number>();
  await each(
    cases.filter((one) => one.percent === 2),
    async (one) => natives.set(`${one.form} ${one.kernelUs}`, percentOf(await alone('native', one, 12))),
  );
  const under = async (law: Law) => {
    note(`compute: ${cases.length} programs alone under ${law}`);
    const of = law === 'cotenant' ? seconds : WARM_SECONDS + 10;
    return await each(cases, async (one): Promise<readonly [Case, Errors]> => {
      const native = natives.get(`${one.form} ${one.kernelUs}`) ?? 100;
      return [one, errors(await alone(law, one, of), native, one)];
    });
  };
  const ours = await under('cotenant');
  const peers = new Map<Law, (readonly [Case, Errors])[]>();
  for (const law of PEERS) peers.set(law, await under(law));
  const counted = peers.get('count_bucket') ?? [];
  const rows: Row[] = ours.map(([one, found], index) => ({
    name: `compute.share_error_points.${nameOf(one)}`,
    value: found.ten,
    unit: 'points',
    reference: { value: counted[index]?.[1].ten ?? null, what: 'the same under the count bucket' },
    goal: { most: one.kernelUs > 5000 ? one.kernelUs / 100_000 : 1 },
  }));
  const short = ours.filter(([{ kernelUs }]) => kernelUs <= 5000);
  const summary = (name: string, of: keyof Errors, most: number, what: string): Row => {
    const [one, found] = worst(short, of);
    return {
      name,
      value: found[of],
      unit: 'points',
      reference: { value: most, what: `the bound; ${what}, at ${nameOf(one)}` },
      goal: { most },
    };
  };
  rows.push(
    summary('compute.share_error_points.worst', 'ten', 1, 'mean over stretches of 10 s'),
    summary('compute.share_error_points_1s_p99.worst', 'oneP99', 3, '99th percentile of stretches of 1 s'),
  );
  if (!quick) rows.push(summary('compute.share_error_points_60s.worst', 'sixty', 0.25, 'over 60 s'));
  for (const [law, found] of peers) {
    for (const form of FORMS) {
      const of = found.filter(([one]) => one.form === form && one.kernelUs <= 5000);
      const [one, most] = worst(of, 'ten');
      rows.push({
        name: `compute.peer.${law}.share_error_points.${form}.worst`,
        value: most.ten,
        unit: 'points',
        reference: {
          value: worst(
            short.filter(([{ form: other }]) => other === form),
            'ten',
          )[1].ten,
          what: `our worst of that form; at ${nameOf(one)}`,
        },
      });
    }
  }
  return rows;
}

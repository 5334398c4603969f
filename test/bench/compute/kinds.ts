// Programs that launch many kinds of kernels, or ever new ones, as inference with inputs of all lengths does: what a
// share costs them beyond the share.
import type { BenchOptions } from '../bench.ts';
import type { Row } from '../row.ts';
import { each, type Law, runLab, type Tenant } from './lab.ts';
import { after, percentOf } from './measure.ts';

const WARM_SECONDS = 2;
/** 0: each launch is of a new kind. */
const KINDS = { '200': 200, '2000': 2000, ever_new: 0 } as const;
const PERCENTS = [100, 50, 10];

async function gpuPercent(law: Law, kinds: number, percent: number): Promise<number> {
  const tenant: Tenant = { form: 'async', kernelUs: 50, percent, more: { kinds } };
  const [served] = await runLab({ law, seconds: WARM_SECONDS + 10, tenants: [tenant] });
  return percentOf(after(served?.work_us ?? [], WARM_SECONDS));
}

/** Work done under each share, relative to that share of what the same program does without one; the least of them. */
export async function ratioOfKinds(kinds: number, percents: readonly number[] = PERCENTS): Promise<number> {
  const native = await gpuPercent('native', kinds, 100);
  const got = await each(percents, async (percent) => (await gpuPercent('cotenant', kinds, percent)) / percent);
  return Math.min(...got) / (native / 100);
}

export async function kinds({ note }: BenchOptions): Promise<Row[]> {
  note('compute: many kinds of launches');
  const one = await ratioOfKinds(1);
  const rows: Row[] = [];
  for (const [name, count] of Object.entries(KINDS)) {
    rows.push({
      name: `compute.kinds.${name}.throughput_ratio`,
      value: await ratioOfKinds(count),
      unit: 'ratio',
      reference: { value: one, what: `launches of one kind; the least under shares of ${PERCENTS.join(', ')} %` },
      goal: { least: 0.95 },
    });
  }
  return rows;
}

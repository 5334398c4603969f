// Jobs whose ranks need one another in each step, on two GPUs: in one container, and in a container for each rank; and on
// one GPU, in one container, many steps launched ahead; with neighbors that always have work, and alone.
import type { BenchOptions } from '../bench.ts';
import type { Row } from '../row.ts';
import { type Run, runLab, type Tenant } from './lab.ts';

const SECONDS = 20;
const PERCENT = 50;
const KERNEL_US = 20;

const collective = (more: Tenant['more']): Tenant => ({
  form: 'collective',
  kernelUs: KERNEL_US,
  percent: PERCENT,
  more: { spread: 'fixed', ...more },
});
const JOBS: Readonly<Record<'one_container' | 'two_containers' | 'one_gpu' | 'four_on_one_gpu', readonly Tenant[]>> = {
  one_container: [collective({ gpus: 2 })],
  two_containers: [0, 1].map((gpu) => collective({ gpu })),
  one_gpu: [collective({ processes: 2, work_us: 2000, burst: 2 * 28 })],
  four_on_one_gpu: [collective({ processes: 4, work_us: 2000, burst: 2 * 28 })],
};
const NEIGHBORS: readonly Tenant[] = [0, 1].map((gpu) => ({
  form: 'async',
  kernelUs: 500,
  percent: PERCENT,
  more: { gpu },
}));

export type Job = keyof typeof JOBS;

async function stepsPerSecond(run: Omit<Run, 'seconds'>): Promise<number> {
  const [served] = await runLab({ ...run, seconds: SECONDS });
  return (served?.steps ?? 0) / SECONDS;
}

/** Steps under a share of half of each GPU, relative to half of those without a share and neighbors. */
export async function ratioOfCollectives(job: Job, beside: readonly Tenant[] = NEIGHBORS): Promise<number> {
  const native = await stepsPerSecond({ law: 'native', tenants: JOBS[job] });
  const got = await stepsPerSecond({ tenants: [...JOBS[job], ...beside] });
  return got / ((native * PERCENT) / 100);
}

export async function collectives({ note }: BenchOptions): Promise<Row[]> {
  note('compute: collectives of several GPUs');
  const rows: Row[] = [];
  for (const job of ['one_container', 'two_containers', 'one_gpu', 'four_on_one_gpu'] as const) {
    rows.push({
      name: `compute.collectives.${job}.rate_ratio`,
      value: await ratioOfCollectives(job),
      unit: 'ratio',
      reference: { value: await ratioOfCollectives(job, []), what: 'the same share without neighbors' },
      goal: { least: 0.8 },
    });
  }
  return rows;
}

// The laboratory as a program: one run of it per call, two at a time. Owns its command line and what it prints.
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { BUILD } from '../../support/native/node.ts';

export type Law = 'native' | 'cotenant' | 'count_bucket' | 'event_bucket';
export type Form = 'async' | 'sync' | 'graph' | 'cooperative' | 'streams' | 'bursty' | 'requests' | 'collective';

/** What a tenant's program does and what it is granted; other arguments of the program in `more`. */
export type Tenant = {
  readonly form: Form;
  readonly kernelUs: number;
  readonly percent: number;
  readonly more?: Readonly<Record<string, string | number>>;
};

export type Served = {
  /** What the GPU executed for it, in microseconds of the whole GPU per window of 100 ms. */
  readonly work_us: readonly number[];
  /** For how long anything of it ran, per window. */
  readonly active_us: readonly number[];
  readonly longest_wait_us: number;
  /** Of its job's ranks together. */
  readonly steps?: number;
  readonly p50_us?: number;
  readonly p99_us?: number;
  readonly max_us?: number;
};

export type Run = {
  readonly law?: Law;
  readonly seconds: number;
  readonly seed?: number;
  readonly policy?: number;
  readonly tenants: readonly Tenant[];
  /** Further arguments, such as `stop=6000`. */
  readonly words?: readonly string[];
};

/** A graph has so many kernels that it is neither a kernel nor a second. */
const nodesOf = ({ form, kernelUs }: Tenant): number => {
  if (form !== 'graph') return 1;
  return kernelUs <= 200 ? 10 : kernelUs <= 1000 ? 5 : 2;
};

function argumentOf(tenant: Tenant): string {
  const { form, kernelUs, percent, more = {} } = tenant;
  const words = { form, kernel_us: kernelUs, nodes: nodesOf(tenant), percent, weight: percent, ...more };
  return `tenant=${Object.entries(words)
    .map(([key, value]) => `${key}:${value}`)
    .join(',')}`;
}

const start = promisify(execFile);

export async function runLab(run: Run): Promise<readonly Served[]> {
  const { law = 'cotenant', seconds, seed = 1, policy = 3, tenants, words = [] } = run;
  const args = [`law=${law}`, `seconds=${seconds}`, `seed=${seed}`, `policy=${policy}`, ...words];
  const program = join(BUILD, 'tests/compute-lab');
  const { stdout } = await start(program, [...args, ...tenants.map(argumentOf)], { maxBuffer: 1 << 26 });
  return (JSON.parse(stdout) as { tenants: Served[] }).tenants;
}

/** As many at once as there may be; results in the order of the list. */
export async function each<T, R>(items: readonly T[], work: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = [];
  const rest = items.entries();
  const worker = async () => {
    for (const [index, item] of rest) results[index] = await work(item);
  };
  await Promise.all([worker(), worker()]);
  return results;
}

export const lengthName = (us: number): string => (us >= 1000 ? `${us / 1000}ms` : `${us}us`);

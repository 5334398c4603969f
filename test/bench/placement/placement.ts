// How much of a cluster's GPUs is allocated when as much as there is has been requested: a trace of Alibaba replayed
// under our policies and those of others, in the same run. The trace is not part of the repository: `--trace DIR`.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Teardown } from '../../support/native/node.ts';
import type { Bench } from '../bench.ts';
import type { Goal, Row } from '../row.ts';
import { churn, hasTimes } from './churn.ts';
import { type PodList, type Policy, readTrace, replay, type Trace } from './openb.ts';
import { binpack, fragmentation, spread } from './ours.ts';
import { OTHER_PODS, replayOverHttp } from './over-http.ts';
import { bestFit, fgd, fgdRandomTies, firstFit, hami, hamiGpuBinpack, random } from './peers.ts';

const POLICIES = [random, bestFit, firstFit, fgd, fgdRandomTies, hami, hamiGpuBinpack, binpack, spread, fragmentation];
/** As in the published tables. */
const SEEDS = [42, 43, 44, 45, 46, 47, 48, 49, 50, 51];
const QUICK_SEEDS = [42];
const CHURN_SEEDS = 3;
const HTTP_SEEDS = 3;
/** Another order of the same nodes. */
const OTHER_NAMES = 1000;
/** Of GPUs, on the list `default`; on all lists more than FGD's published result. */
const LEAST_ON_DEFAULT = 96;
const MOST_CHANGE = 0.1;

const mean = (values: readonly number[]): number => values.reduce((sum, one) => sum + one, 0) / values.length;

/** FGD's own result on a list, the mean of its ten seeds, where the folder has its table. */
function publishedFgd(folder: string, list: string): number | undefined {
  const file = join(folder, 'fgd-published', 'analysis_allo_discrete.csv');
  if (!existsSync(file)) return undefined;
  const [head = '', ...lines] = readFileSync(file, 'utf8').trim().split('\n');
  const keys = head.split(',');
  const [workload, policy, at] = ['workload', 'sc_policy', '100'].map((key) => keys.indexOf(key)) as [
    number,
    number,
    number,
  ];
  const values = lines
    .map((line) => line.split(','))
    .filter((cells) => cells[workload] === `openb_pod_list_${list}` && /FGD/.test(cells[policy] ?? ''))
    .map((cells) => Number(cells[at]));
  return values.length > 0 ? mean(values) : undefined;
}

type Run = { readonly trace: Trace; readonly folder: string; readonly seeds: readonly number[] };

function rowsOf(list: PodList, { trace, folder, seeds }: Run, note: (text: string) => void): readonly Row[] {
  const published = publishedFgd(folder, list.name);
  const allocated = (policy: Policy, names?: number) =>
    seeds.map((seed) => replay({ trace, list, policy, seed, ...(names !== undefined && { names: names + seed }) }));
  const reference = published === undefined ? null : { value: published, what: "FGD's published result" };
  const least = Math.max(list.name === 'default' ? LEAST_ON_DEFAULT : 0, published ?? 0);
  let ours: readonly number[] = [];
  const rows = POLICIES.map((policy): Row => {
    const values = allocated(policy);
    if (policy === fragmentation) ours = values;
    note(
      `${list.name} ${policy.name}: ${mean(values).toFixed(2)} (${Math.min(...values).toFixed(2)} to ${Math.max(...values).toFixed(2)})`,
    );
    const goal: Goal | undefined = policy === fragmentation ? { least } : undefined;
    const name = `placement.openb.${list.name}.${policy.name}.allocated_percent_at_100`;
    return { name, value: mean(values), unit: '%', reference, ...(goal && { goal }) };
  });
  const renamed = Math.abs(mean(allocated(fragmentation, OTHER_NAMES)) - mean(ours));
  return [
    ...rows,
    {
      name: `placement.openb.${list.name}.${fragmentation.name}.change_by_renaming`,
      value: renamed,
      unit: 'points',
      reference: null,
      goal: { most: MOST_CHANGE },
    },
  ];
}

/** Of arrivals and departures; on `default` alone, whose pods are those that were there. */
function churnRowsOf(list: PodList, { trace, seeds }: Run, note: (text: string) => void): readonly Row[] {
  return POLICIES.flatMap((policy): readonly Row[] => {
    const runs = seeds.slice(0, CHURN_SEEDS).map((seed) => churn(trace, list, policy, seed));
    const row = (name: string, unit: string, measure: (run: (typeof runs)[number]) => number): Row => ({
      name: `placement.churn.${list.name}.${policy.name}.${name}`,
      value: mean(runs.map(measure)),
      unit,
      reference: null,
    });
    const rows = [
      row('allocated_percent', '%', ({ allocatedPercent }) => allocatedPercent),
      row('wait_mean_s', 's', ({ meanWaitSeconds }) => meanWaitSeconds),
      row('wait_p99_s', 's', ({ p99WaitSeconds }) => p99WaitSeconds),
    ];
    note(`churn ${policy.name}: ${rows.map(({ value, unit }) => `${value?.toFixed(1)} ${unit}`).join(', ')}`);
    return rows;
  });
}

/** On `default` alone: each is a call of the extender for thousands of pods. */
async function httpRowsOf(
  scope: Teardown,
  list: PodList,
  { trace, seeds }: Run,
  note: (text: string) => void,
): Promise<readonly Row[]> {
  const rows: Row[] = [];
  const some = seeds.slice(0, HTTP_SEEDS);
  const alone = mean(some.map((seed) => replay({ trace, list, policy: fragmentation, seed })));
  for (const otherPods of Object.keys(OTHER_PODS) as (keyof typeof OTHER_PODS)[]) {
    const values: number[] = [];
    for (const seed of some)
      values.push(await replayOverHttp(scope, { trace, list, placement: 'fragmentation', seed, otherPods }));
    const name = `placement.http.${list.name}.${fragmentation.name}.${otherPods}.allocated_percent_at_100`;
    note(`${name}: ${values.map((value) => value.toFixed(2)).join(', ')}`);
    const what = 'the policy alone, with statistics of the whole list';
    rows.push({ name, value: mean(values), unit: '%', reference: { value: alone, what } });
  }
  return rows;
}

export const placement: Bench = {
  name: 'placement',
  what: 'how full a cluster becomes under our placement policies and those of others, on a trace (--trace DIR)',
  isPure: true,
  async run(scope, { quick, note, trace: folder }) {
    if (folder === undefined) {
      const skipped =
        'no trace was named; --trace DIR takes a folder with openb_node_list_gpu_node.csv and openb_pod_list_*.csv';
      return [{ name: 'placement.openb', value: null, unit: '%', reference: null, skipped }];
    }
    const trace = readTrace(folder);
    const seeds = quick ? QUICK_SEEDS : SEEDS;
    const run = { trace, folder, seeds };
    const rows: Row[] = [];
    for (const list of trace.lists) {
      rows.push(...rowsOf(list, run, note));
      if (list.name !== 'default') continue;
      if (hasTimes(list)) rows.push(...churnRowsOf(list, run, note));
      rows.push(...(await httpRowsOf(scope, list, run, note)));
    }
    return rows;
  },
};

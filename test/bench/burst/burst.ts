// How long pods with shares take from their binding until they run, created all at once on one node of a real cluster,
// beside the same pods without shares. Times are those at which the API server tells a watcher: what stands in a status
// has a grain of a second.

import type { Api } from '../../cluster/bed/api.ts';
import { startWhole, wholeTools } from '../../cluster/bed/whole.ts';
import { namespaceOf, type Pod, podOf, shellOf } from '../../cluster/support/pods.ts';
import { eventually } from '../../support/native/node.ts';
import type { Bench } from '../bench.ts';
import type { Row } from '../row.ts';
import { median } from '../statistics.ts';

const GPUS = ['l4', 'l4', 'l4', 'l4'];
const NAMESPACE = 'burst';
const PODS = `/api/v1/namespaces/${NAMESPACE}/pods`;
const SHARE = { 'cotenant.io/gpu-memory': '1Gi' };
const BURST_MS = 240_000;
const QUICK_PODS = 10;
const FULL_PODS = 40;

type Kind = 'shares' | 'plain';
type PodList = { metadata: { resourceVersion: string }; items: Pod[] };

const podNumber = (kind: Kind, index: number): object =>
  podOf(`${kind}-${index}`, [shellOf('exec sleep 3600', { resources: { limits: kind === 'shares' ? SHARE : {} } })], {
    namespace: NAMESPACE,
  });

/** Creates the pods, waits until all run, deletes them; milliseconds from binding to running of each. */
async function timesOf(api: Api, kind: Kind, count: number): Promise<readonly number[]> {
  const { metadata } = (await api.get<PodList>(PODS)) ?? {};
  const bound = new Map<string, number>();
  const running = new Map<string, number>();
  const stop = new AbortController();
  const watching = api.watch<Pod>(
    PODS,
    metadata?.resourceVersion ?? '',
    ({
      object: {
        metadata: { name },
        spec,
        status,
      },
    }) => {
      const now = performance.now();
      if (spec.nodeName !== undefined && !bound.has(name)) bound.set(name, now);
      if (status?.phase === 'Running' && !running.has(name)) running.set(name, now);
    },
    stop.signal,
  );
  const names = Array.from({ length: count }, (_, index) => `${kind}-${index}`);
  try {
    const answers = await Promise.all(names.map((_, index) => api.ask('POST', PODS, podNumber(kind, index))));
    const refused = answers.find(({ status }) => status !== 201);
    if (refused !== undefined) throw new Error(`a pod was refused: ${JSON.stringify(refused.body)}`);
    const allRun = eventually(() => running.size === count || undefined, `${count} pods run`, BURST_MS);
    allRun.catch(() => {}); // the watch may have failed before it
    await Promise.race([allRun, watching]);
  } finally {
    stop.abort();
    await watching.catch(() => {}); // its failure has ended the wait above
  }
  await api.ask('DELETE', PODS);
  const gone = async () => (await api.get<PodList>(PODS))?.items.length === 0 || undefined;
  await eventually(gone, 'the pods are gone', BURST_MS);
  return names.map((name) => (running.get(name) ?? Number.NaN) - (bound.get(name) ?? Number.NaN));
}

export const burst: Bench = {
  name: 'burst',
  what: 'pods with shares that are created all at once, from binding to running on a real cluster',
  async run(scope, { quick, note }) {
    const count = quick ? QUICK_PODS : FULL_PODS;
    const name = `burst.bind_to_running_${count}`;
    const found = wholeTools(note);
    if (!found.ok)
      return [{ name: `${name}.ratio`, value: null, unit: 'ratio', reference: null, skipped: found.reason }];
    const { bed } = await startWhole(found, GPUS, note);
    scope.teardown(() => bed.close());
    bed.apply(namespaceOf(NAMESPACE));
    const times: Record<Kind, number[][]> = { shares: [], plain: [] };
    // The first of each kind waits for what is done once.
    for (const kind of ['plain', 'shares'] as const) await timesOf(bed.api, kind, 1);
    const turns: readonly Kind[] = quick ? ['plain', 'shares'] : ['plain', 'shares', 'shares', 'plain'];
    for (const kind of turns) {
      const started = performance.now();
      times[kind].push([...(await timesOf(bed.api, kind, count))]);
      const seconds = ((performance.now() - started) / 1000).toFixed(1);
      note(
        `burst: ${count} pods (${kind}): median ${Math.round(median(times[kind].at(-1) ?? []))} ms; gone after ${seconds} s`,
      );
    }
    return rowsOf(name, times);
  },
};

function rowsOf(name: string, times: Readonly<Record<Kind, readonly (readonly number[])[]>>): readonly Row[] {
  const [shares, plain] = [median(times.shares.flat()), median(times.plain.flat())];
  const [first, again] = times.plain;
  const what = 'the same pods without shares';
  return [
    { name: `${name}.p50_ms`, value: shares, unit: 'ms', reference: { value: plain, what } },
    {
      name: `${name}.ratio`,
      value: shares / plain,
      unit: 'ratio',
      reference:
        first && again
          ? { value: median(again) / median(first), what: `${what}: the second time against the first` }
          : null,
    },
  ];
}

// Counters as Prometheus sees them, by the labels on the metrics page: within one agent the counter of a container
// never falls, and another container with the same labels starts at zero.
import test from 'ava';
import fc from 'fast-check';
import type { Owner } from '../../../../src/agent/attribution/attribute.ts';
import type { ShareMode } from '../../../../src/agent/attribution/device-ids.ts';
import type { ShareState } from '../../../../src/agent/compute/shares.ts';
import type { ComputeUse } from '../../../../src/agent/compute/usage-account.ts';
import { accumulate } from '../../../../src/agent/counters/accumulate.ts';
import { createStopCounts } from '../../../../src/agent/counters/stop-counts.ts';
import { NO_TOTALS, type Totals } from '../../../../src/agent/counters/totals.ts';
import { createSnapshot, type Snapshot, staleSnapshot } from '../../../../src/agent/snapshot/snapshot.ts';
import { COLLECTORS, createRenderer } from '../../../../src/exporter/render.ts';
import { exampleSnapshot } from '../../../support/product/snapshots.ts';
import {
  compared,
  gpu,
  grantOf,
  ledgerOf,
  ofContainer,
  ofGrant,
  owners,
  reading,
  row,
  sampledProcess,
  sampleOf,
  slot,
  use,
} from '../node.ts';

const START = 1_700_000_000_000;
const NAMES = ['web', 'job'] as const;
/** Of one start of a container: what it is on the node, its number, and the name that several of them have in turn. */
type Start = {
  readonly kind: 'grant' | 'foreign' | ShareMode;
  readonly number: number;
  readonly pod: string;
  readonly gpus: readonly number[];
};
type Now = Start & { readonly smUs: number; readonly denied: number };

const idOf = ({ number }: Start): string => String(number).padStart(64, '0');

/** What the arbiter has counted of it. */
const useOf = (one: Now | undefined): ComputeUse | undefined =>
  one && {
    chargedSeconds: one.denied,
    contendedSeconds: one.denied / 4,
    throttledSeconds: one.denied * 2,
    relieved: one.denied * 3,
    overruns: one.denied,
    faults: one.denied,
    guaranteeRatio: 0.5,
    limitRatio: 1,
  };

/** Its counters on the page, as parts of `denied`. */
const OF_THE_ARBITER = [
  ['cotenant_container_sm_charged_seconds_total', 1],
  ['cotenant_container_sm_contended_seconds_total', 0.25],
  ['cotenant_container_sm_throttled_seconds_total', 2],
  ['cotenant_container_sm_relieved_launches_total', 3],
  ['cotenant_container_sm_overruns_total', 1],
  ['cotenant_container_lease_page_corruptions_total', 1],
] as const;

/** An agent whose page is read after each sample. */
function startAgent() {
  const make = createRenderer(COLLECTORS);
  const stops = createStopCounts();
  let totals: Totals = NO_TOTALS;
  let snapshot: Snapshot = exampleSnapshot;
  return {
    /** When no other sample comes for long. */
    stale: async () => (await make(staleSnapshot(snapshot, 60_000, { abandoned: 0, hung: 0 }))).text,
    totals: () => totals,
    async at(
      second: number,
      list: readonly Now[],
      { hasProcessUtilization = true, setSeconds = 0, gpus = [0, 1] as readonly number[], isHeld = true } = {},
    ): Promise<string> {
      const atMs = START + (second + setSeconds) * 1000;
      const processes = list.map((one) =>
        sampledProcess(
          1000 + one.number,
          one.gpus.flatMap((index) =>
            gpus.includes(index) ? use(index, { smUs: one.smUs, memoryUs: one.smUs, encoderUs: one.smUs }) : [],
          ),
        ),
      );
      const byPid: Record<number, Owner> = Object.fromEntries(
        list.map((one) => [
          1000 + one.number,
          one.kind === 'grant' ? ofGrant(`g${one.number}`) : ofContainer(idOf(one)),
        ]),
      );
      const named = new Map(list.map((one) => [idOf(one), one]));
      const nameOf = (id: string) => {
        const one = named.get(id);
        const known = { namespace: 'team', pod: one?.pod ?? '', podUid: '', container: 'main' };
        return one ? known : { namespace: '', pod: '', podUid: '', container: '' };
      };
      const given = list.filter(({ kind }) => kind !== 'grant' && kind !== 'foreign');
      const assigned = given.flatMap(({ pod, gpus, kind }) =>
        gpus.map((index) => ({
          namespace: 'team',
          pod,
          container: 'main',
          gpuUuid: `GPU-${index}`,
          mode: kind as ShareMode,
        })),
      );
      const sample = sampleOf(
        gpus.map((index) => {
          const { hasProcessUtilization: _, ...silent } = gpu(index);
          return hasProcessUtilization ? { ...silent, hasProcessUtilization } : silent;
        }),
        processes,
        atMs,
        (second + 1e6) * 1e9,
      );
      const grants = list.flatMap((one) => {
        if (one.kind !== 'grant') return [];
        const grant = grantOf(`g${one.number}`, 100, one.gpus, { namespace: 'team', pod: one.pod });
        const rows = one.gpus.map(() => row());
        const more = { denied: one.gpus.map(() => one.denied), unknown: one.denied };
        return [reading(grant, ledgerOf([slot(1000 + one.number, rows)], more))];
      });
      const state = compared(sample, grants, byPid, { assigned: { list: assigned, unknown: [] } as never, nameOf });
      const compute = {
        stateOf: (id: string, _: number): ShareState => ({
          policy: 'fixed',
          use: isHeld ? useOf(list.find(({ number }) => id === `g${number}`)) : undefined,
        }),
        ofGpu: () => ({ policy: 'fixed', source: 'configuration' }) as const,
      };
      totals = accumulate(totals, state, owners(byPid), {
        nameOf,
        useOf: (id, place) => compute.stateOf(id, place).use,
      });
      stops.update(state);
      const { self } = exampleSnapshot;
      snapshot = createSnapshot({ state, totals, kills: stops.totals(), recent: [], self, nameOf, compute });
      return (await make(snapshot)).text;
    },
  };
}

function countersOf(page: string): ReadonlyMap<string, number> {
  const counters = new Map<string, number>();
  for (const [, name = '', labels = '', value] of page.matchAll(/^(\w+_total)(\{.*\})? (\S+)$/gm))
    if (!name.startsWith('cotenant_exporter_')) counters.set(`${name}${labels}`, Number(value));
  return counters;
}
const fallen = (before: ReadonlyMap<string, number>, after: ReadonlyMap<string, number>): readonly string[] =>
  [...before].flatMap(([series, value]) => {
    const now = after.get(series);
    return now !== undefined && now < value - 1e-9 ? [`${series}: ${value}, then ${now}`] : [];
  });

const seriesIn = (page: string, name: string): readonly number[] =>
  [...countersOf(page)].flatMap(([series, value]) => (series.startsWith(`${name}{`) ? [value] : []));

for (const kind of ['grant', 'foreign'] as const) {
  test(`a container that takes over the labels of an ended one starts at zero: ${kind}`, async (t) => {
    const agent = startAgent();
    const name = kind === 'foreign' ? 'cotenant_foreign_sm_seconds_total' : 'cotenant_container_sm_seconds_total';
    const one = (number: number, smUs: number): Now => ({ kind, number, pod: 'web', gpus: [0], smUs, denied: number });
    const seconds = (page: string) => seriesIn(page, name).map((value) => Math.round(value * 100) / 100);
    await agent.at(0, []);
    t.deepEqual(seconds(await agent.at(1, [one(5, 33e6)])), [33]);
    t.deepEqual(seconds(await agent.at(2, [])), [33], 'it has ended, and is still shown');
    const page = await agent.at(3, [one(2, 500_000)]);
    t.deepEqual(seconds(page), [0.5], 'one series, with what the successor used');
    if (kind === 'grant') {
      t.deepEqual(seriesIn(page, 'cotenant_container_allocations_denied_total'), [2]);
      t.deepEqual(seriesIn(page, 'cotenant_container_unknown_entry_points_total'), [2]);
      for (const [counter, part] of OF_THE_ARBITER) t.deepEqual(seriesIn(page, counter), [2 * part], counter);
    }
    t.deepEqual(seconds(await agent.at(4, [one(2, 1_500_000)])), [1.5]);
    t.deepEqual(seconds(await agent.at(5, [])), [1.5], 'of those that ended, the last');
    t.deepEqual(seconds(await agent.at(310, [])), [], 'five minutes later it is forgotten');
  });
}

test('a GPU allocated by others is known by name, so a successor continues its counter', async (t) => {
  const agent = startAgent();
  const one = (number: number, smUs: number): Now => ({
    kind: 'shared',
    number,
    pod: 'web',
    gpus: [0],
    smUs,
    denied: 0,
  });
  await agent.at(0, [one(1, 33e6)]);
  const page = await agent.at(1, [one(2, 1e6)]);
  t.deepEqual(seriesIn(page, 'cotenant_container_sm_seconds_total'), [34]);
});

test('a name that is reused has one series and the rows of the last five minutes', async (t) => {
  const agent = startAgent();
  let page = '';
  for (let second = 0; second < 700; second += 1) {
    const number = Math.floor(second / 2);
    page = await agent.at(second, [{ kind: 'grant', number, pod: 'job', gpus: [0, 1], smUs: 1e6, denied: 1 }]);
    t.deepEqual(seriesIn(page, 'cotenant_container_sm_seconds_total'), [1, 1]);
  }
  t.deepEqual(seriesIn(page, 'cotenant_container_unknown_entry_points_total'), [1], 'once, on however many GPUs');
  t.true(agent.totals().containers.size <= 2 * 160);
});

test('a GPU that is gone for some samples keeps the counters that it had', async (t) => {
  const agent = startAgent();
  const one: Now = { kind: 'grant', number: 1, pod: 'web', gpus: [0, 1], smUs: 2e6, denied: 3 };
  const two: Now = { kind: 'grant', number: 2, pod: 'job', gpus: [0], smUs: 0, denied: 1 };
  const before = countersOf(await agent.at(0, [one]));
  for (const [second, gpus] of [
    [1, []],
    [7, [1]],
    [14, []],
  ] as const) {
    const page = await agent.at(second, [one, two], { gpus });
    t.deepEqual(fallen(before, countersOf(page)), [], `at ${second}`);
    t.notRegex(page, /gpu="(?!0"|1")/);
    t.is(/^cotenant_container_memory_limit_bytes\{gpu="0",gpu_uuid="GPU-0".*pod="web"/m.test(page), true, page);
    t.notRegex(page, /gpu_uuid=.*pod="job"/, 'its GPU has not been seen yet');
    t.regex(
      page,
      /^cotenant_container_engine_outdated\{namespace="team",pod="job",/m,
      'series without a GPU are there',
    );
    t.is(seriesIn(page, 'cotenant_container_allocations_denied_total').length, 2, 'none on a GPU that was never seen');
  }
  t.deepEqual(fallen(before, countersOf(await agent.at(22, [one, two], { gpus: [0, 1] }))), []);
});

test('arbiter counts are shown for five minutes after their container ended', async (t) => {
  const agent = startAgent();
  const one: Now = { kind: 'grant', number: 1, pod: 'web', gpus: [0, 1], smUs: 0, denied: 8 };
  const two: Now = { kind: 'grant', number: 2, pod: 'job', gpus: [1], smUs: 0, denied: 4 };
  const isThere = (page: string, what: string, expected: readonly number[], pod = 'web') => {
    for (const [counter, part] of OF_THE_ARBITER) {
      const series = [...countersOf(page)].filter(
        ([name]) => name.startsWith(counter) && name.includes(`pod="${pod}"`),
      );
      t.deepEqual(
        series.map(([, value]) => value),
        expected.map((denied) => denied * part),
        `${counter}, ${what}`,
      );
    }
  };
  isThere(await agent.at(0, [one]), 'it lives', [8, 8]);
  isThere(await agent.stale(), 'no sample comes', [8, 8]);
  isThere(await agent.at(1, [one], { gpus: [] }), 'its GPUs are gone', [8, 8]);
  await agent.at(11, [one, two]);
  isThere(await agent.at(12, [two]), 'it has ended', [8, 8]);
  isThere(await agent.at(300, [two]), 'nearly five minutes later', [8, 8]);
  isThere(await agent.at(340, [two]), 'later than that', []);
  const successor = { ...two, number: 3 };
  isThere(await agent.at(342, [successor]), 'a successor starts at zero', [4], 'job');
  isThere(await agent.at(343, [successor], { isHeld: false }), 'no arbiter counts for it', [], 'job');
  isThere(await agent.at(344, [successor]), 'an arbiter counts again', [4], 'job');
});

test('no counter of a container falls within one agent, for any containers and samples', async (t) => {
  const kind = fc.constantFrom('grant', 'grant', 'grant', 'foreign', 'shared', 'exclusive' as const);
  const step = fc.record({
    gapSeconds: fc.constantFrom(1, 1, 5, 20, 60, 150, 301, 4000),
    setSeconds: fc.constantFrom(0, 0, 0, -5000, 5000),
    hasProcessUtilization: fc.constantFrom(true, true, true, false),
    // A GPU that is gone for a while, or all of them: the driver is not open.
    gpus: fc.constantFrom([0, 1], [0, 1], [0, 1], [1], []),
    // At each place a container lives, another one takes its place, or there is none.
    places: fc.array(
      fc.record({
        change: fc.constantFrom('stays', 'stays', 'next', 'next', 'gone'),
        kind,
        pod: fc.constantFrom(...NAMES),
        gpus: fc.constantFrom([0], [1], [0, 1]),
        grown: fc.integer({ min: 0, max: 3_000_000 }),
      }),
      { minLength: 3, maxLength: 3 },
    ),
  });
  await t.notThrowsAsync(
    fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 2, maxLength: 30 }), async (steps) => {
        const agent = startAgent();
        let [second, number, setSeconds] = [0, 0, 0];
        const living: (Now | undefined)[] = [undefined, undefined, undefined];
        let before = new Map() as ReadonlyMap<string, number>;
        for (const { gapSeconds, setSeconds: set, hasProcessUtilization, gpus: seen, places } of steps) {
          second += gapSeconds;
          setSeconds += set;
          for (const [place, { change, kind: of, pod, gpus, grown }] of places.entries()) {
            const last = living[place];
            if (change === 'gone') living[place] = undefined;
            else if (change === 'next' || last === undefined) {
              number += 1;
              living[place] = { kind: of, number, pod: `${pod}-${number}`, gpus, smUs: grown, denied: number % 7 };
            } else living[place] = { ...last, smUs: last.smUs + grown, denied: last.denied + 1 };
          }
          const list = living.flatMap((one) => one ?? []);
          const after = countersOf(await agent.at(second, list, { hasProcessUtilization, setSeconds, gpus: seen }));
          const fell = fallen(before, after);
          if (fell.length > 0) throw new Error(fell.join('; '));
          before = after;
        }
      }),
      { numRuns: 100 },
    ),
  );
});

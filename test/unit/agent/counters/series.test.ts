// Counters as Prometheus has them: by what the page says of a series, whoever is behind its labels. A value that falls passes for
// a counter that began anew, and all that it has for an increase.
import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import type { Owner } from '../../../../src/agent/attribution/attribute.ts';
import type { ShareMode } from '../../../../src/agent/attribution/device-ids.ts';
import type { ShareState } from '../../../../src/agent/compute/shares.ts';
import { type ComputeUse, useKey } from '../../../../src/agent/compute/usage-account.ts';
import { advance, totalsOf } from '../../../../src/agent/counters/accumulate.ts';
import { openCounters } from '../../../../src/agent/counters/checkpoint.ts';
import { createKillBook } from '../../../../src/agent/counters/stop-counts.ts';
import { NO_TOTALS, type Totals } from '../../../../src/agent/counters/totals.ts';
import { openAudit } from '../../../../src/agent/enforcement/audit-log.ts';
import { type Snapshot, snapshotOf, staleSnapshot } from '../../../../src/agent/snapshot/snapshot.ts';
import { createPage, FAMILIES } from '../../../../src/exporter/render.ts';
import { temporaryFolder } from '../../../support/node.ts';
import { exampleSnapshot } from '../../../support/snapshots.ts';
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
  readonly pod: (typeof NAMES)[number];
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
  ['cotenant_container_sm_overruns_total', 1],
  ['cotenant_container_compute_page_faults_total', 1],
] as const;

/** An agent of which somebody reads the page after each sample. It ends without a word. */
function agentOf(t: ExecutionContext, folder: string) {
  const audit = openAudit(folder, (text) => t.fail(text));
  let nowMs = 0;
  const counters = openCounters({
    stateFolder: folder,
    audit,
    bootId: 'this',
    clock: () => nowMs,
    onProblem: (text) => t.fail(text),
  });
  t.teardown(() => counters.close());
  const make = createPage(FAMILIES);
  const kills = createKillBook();
  let totals: Totals = NO_TOTALS;
  let isFirst = true;
  let snapshot: Snapshot = exampleSnapshot;
  return {
    /** When no other sample comes for long. */
    stale: () => make(staleSnapshot(snapshot, 60_000, { abandoned: 0, hung: 0 })).text,
    totals: () => totals,
    at(
      second: number,
      list: readonly Now[],
      { useTold = true, setSeconds = 0, gpus = [0, 1] as readonly number[], isHeld = true } = {},
    ): string {
      nowMs = second * 1000;
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
          const { useTold: _, ...silent } = gpu(index);
          return useTold ? { ...silent, useTold } : silent;
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
      if (isFirst) totals = totalsOf(counters.earlier, atMs);
      isFirst = false;
      const compute = {
        stateOf: (id: string, _: number): ShareState => ({
          policy: 'fixed',
          use: isHeld ? useOf(list.find(({ number }) => id === `g${number}`)) : undefined,
        }),
        ofGpu: () => ({ policy: 'fixed', source: 'configuration' }) as const,
      };
      totals = advance(totals, state, owners(byPid), nameOf, (id, place) => compute.stateOf(id, place).use);
      kills.see(state);
      const uses = grants.flatMap(({ grant: { id, gpus: own } }) =>
        own.flatMap((_, place) => {
          const use = compute.stateOf(id, place).use;
          return use ? [[useKey(id, place), use] as const] : [];
        }),
      );
      counters.keep({ totals, uses: new Map(uses), kills: kills.kept });
      snapshot = snapshotOf(state, totals, kills.totals(), [], exampleSnapshot.self, nameOf, undefined, compute);
      return make(snapshot).text;
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

for (const kind of ['grant', 'foreign', 'shared'] as const) {
  test(`a successor of the same name goes on where what ended stood, for longer than that is kept: ${kind}`, (t) => {
    const folder = temporaryFolder(t);
    let agent = agentOf(t, folder);
    const name = kind === 'foreign' ? 'cotenant_foreign_sm_seconds_total' : 'cotenant_container_sm_seconds_total';
    const one = (number: number, smUs: number): Now => ({
      kind,
      number,
      pod: 'web',
      gpus: [0],
      smUs,
      denied: 5,
    });
    agent.at(0, []);
    agent.at(1, [one(1, 33e6)]);
    let before = countersOf(agent.at(2, [one(2, 0)]));
    let [seen, folds] = [0, 0];
    for (let second = 3; second < 500; second += 3) {
      // It is killed early, and right after the sample in which the first one was forgotten.
      const used = Math.min(second, 300) * 10_000;
      const isFolded = folds === 0 && agent.totals().bases.size > 0;
      if (isFolded) folds += 1;
      if (isFolded || second === 33 || second === 93) {
        agent = agentOf(t, folder);
        seen = Math.min(second - 3, 300) * 10_000; // a new sampler counts from zero
      }
      const page = agent.at(second, [one(2, used - (second > 3 ? seen : 0))]);
      const after = countersOf(page);
      t.deepEqual(fallen(before, after), [], `at ${second}`);
      t.deepEqual(
        seriesIn(page, name).map((value) => Math.round(value * 100) / 100),
        [Math.round((33 + Math.min(second, 300) / 100) * 100) / 100],
        `at ${second}`,
      );
      if (kind === 'grant') {
        t.deepEqual(seriesIn(page, 'cotenant_container_allocations_denied_total'), [10]);
        t.deepEqual(seriesIn(page, 'cotenant_container_unknown_entry_points_total'), [10]);
        for (const [counter, count] of OF_THE_ARBITER) t.deepEqual(seriesIn(page, counter), [10 * count], counter);
      }
      before = after;
    }
    t.is(folds, kind === 'shared' ? 0 : 1, 'what others gave out is known by its name alone, so it is the same');
    for (let second = 500; second < 1020; second += 20) agent.at(second, []);
    t.is(agent.totals().bases.size, 0, 'nobody has the name any more');
    t.is(countersOf(agent.at(1020, [])).size, countersOf(agentOf(t, temporaryFolder(t)).at(0, [])).size);
  });
}

test('a name that somebody takes again and again has one series, and the node keeps of it what stood there for five minutes', (t) => {
  const agent = agentOf(t, temporaryFolder(t));
  let before = new Map() as ReadonlyMap<string, number>;
  let page = '';
  for (let second = 0; second < 700; second += 1) {
    const number = Math.floor(second / 2);
    const now = { kind: 'grant', number, pod: 'job', gpus: [0, 1], smUs: 1e6, denied: 1 } as const;
    page = agent.at(second, [now]);
    const after = countersOf(page);
    t.deepEqual(fallen(before, after), []);
    before = after;
  }
  t.deepEqual(seriesIn(page, 'cotenant_container_sm_seconds_total'), [350, 350]);
  t.deepEqual(seriesIn(page, 'cotenant_container_unknown_entry_points_total'), [350], 'once, on however many GPUs');
  t.true(agent.totals().containers.size <= 2 * 160);
  t.is(agent.totals().bases.size, 2);
});

test('a GPU that is gone for some samples keeps the counters that it had, over the end of an agent too', (t) => {
  const folder = temporaryFolder(t);
  let agent = agentOf(t, folder);
  const one: Now = { kind: 'grant', number: 1, pod: 'web', gpus: [0, 1], smUs: 2e6, denied: 3 };
  const two: Now = { kind: 'grant', number: 2, pod: 'job', gpus: [0], smUs: 0, denied: 1 };
  const before = countersOf(agent.at(0, [one]));
  for (const [second, gpus] of [
    [1, []],
    [7, [1]],
    [14, []],
  ] as const) {
    const page = agent.at(second, [one, two], { gpus });
    t.deepEqual(fallen(before, countersOf(page)), [], `at ${second}`);
    t.notRegex(page, /gpu="(?!0"|1")/);
    t.is(/^cotenant_container_memory_limit_bytes\{gpu="0",gpu_uuid="GPU-0".*pod="web"/m.test(page), true, page);
    t.notRegex(page, /gpu_uuid=.*pod="job"/, 'nobody has seen the GPU that it has');
    t.regex(page, /^cotenant_container_fence\{namespace="team",pod="job",/m, 'of it as such all is said');
    t.is(
      seriesIn(page, 'cotenant_container_allocations_denied_total').length,
      2,
      'none of who has no GPU to be seen on',
    );
  }
  agent = agentOf(t, folder);
  for (const [second, gpus] of [
    [21, []],
    [22, [0, 1]],
  ] as const)
    t.deepEqual(fallen(before, countersOf(agent.at(second, [one, two], { gpus }))), [], `at ${second}`);
});

test("what the arbiter has counted outlives its container and the samples like other counters, and is nobody else's", (t) => {
  const folder = temporaryFolder(t);
  let agent = agentOf(t, folder);
  const one: Now = { kind: 'grant', number: 1, pod: 'web', gpus: [0, 1], smUs: 0, denied: 8 };
  const two: Now = { kind: 'grant', number: 2, pod: 'job', gpus: [1], smUs: 0, denied: 4 };
  const isThere = (page: string, what: string, pod = 'web', times = 2) => {
    for (const [counter, part] of OF_THE_ARBITER) {
      const series = [...countersOf(page)].filter(
        ([name]) => name.startsWith(counter) && name.includes(`pod="${pod}"`),
      );
      t.deepEqual(
        series.map(([, value]) => value),
        Array(times).fill(8 * part),
        `${counter}, ${what}`,
      );
    }
  };
  isThere(agent.at(0, [one]), 'it lives');
  isThere(agent.stale(), 'no sample comes');
  isThere(agent.at(1, [one], { gpus: [] }), 'its GPUs are gone');
  // Numbers move on after the file was written, and the agent is away when it ends.
  agent.at(10, [{ ...one, denied: 2 }, two]);
  agent.at(11, [one, two]);
  agent = agentOf(t, folder);
  isThere(agent.at(12, [two]), 'it has ended while no agent was there');
  isThere(agent.at(300, [two]), 'five minutes later');
  isThere(agent.at(340, [two]), 'and then not', 'web', 0);
  const successor = { ...two, number: 3 };
  agent.at(341, [successor]);
  isThere(agent.at(342, [successor]), 'with what its name had', 'job', 1);
  isThere(agent.at(343, [successor], { isHeld: false }), 'nobody counts for it', 'job', 0);
  isThere(agent.at(344, [successor]), 'somebody does again', 'job', 1);
  agent.at(1000, [successor]);
  isThere(agent.at(1001, [successor]), 'in its base', 'job', 1);
  isThere(agent.at(1002, [successor], { isHeld: false }), 'nor of a base', 'job', 0);
});

test('whoever comes, goes, is told or not, and however the agent ends: no counter of the page falls', (t) => {
  const kind = fc.constantFrom('grant', 'grant', 'grant', 'foreign', 'shared', 'exclusive' as const);
  const step = fc.record({
    gapSeconds: fc.constantFrom(1, 1, 5, 20, 60, 150, 301, 4000),
    setSeconds: fc.constantFrom(0, 0, 0, -5000, 5000),
    useTold: fc.constantFrom(true, true, true, false),
    // A GPU that is gone for a while, or all of them: the driver is not open.
    gpus: fc.constantFrom([0, 1], [0, 1], [0, 1], [1], []),
    ends: fc.constantFrom(false, false, false, true),
    // At each place a start lives, another one takes its place, or nobody is there.
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
  t.notThrows(() => {
    fc.assert(
      fc.property(fc.array(step, { minLength: 2, maxLength: 30 }), (steps) => {
        const folder = temporaryFolder(t);
        let agent = agentOf(t, folder);
        let [second, number, setSeconds] = [0, 0, 0];
        const living: (Now | undefined)[] = [undefined, undefined, undefined];
        let before = new Map() as ReadonlyMap<string, number>;
        for (const { gapSeconds, setSeconds: set, useTold, gpus: seen, ends, places } of steps) {
          second += gapSeconds;
          setSeconds += set;
          // Killed, maybe within the five seconds in which who has a name alone is in no file: that one is counted anew.
          if (ends) agent = agentOf(t, folder);
          for (const [place, { change, kind: of, pod, gpus, grown }] of places.entries()) {
            const last = living[place];
            if (change === 'gone') living[place] = undefined;
            else if (change === 'next' || last === undefined) {
              number += 1;
              // No two that the kubelet knows have one name at a time.
              const isTaken = living.some((one, index) => index !== place && one?.pod === pod);
              living[place] =
                isTaken && of !== 'foreign'
                  ? undefined
                  : { kind: of, number, pod, gpus, smUs: grown, denied: number % 7 };
            } else living[place] = { ...last, smUs: last.smUs + grown, denied: last.denied + 1 };
          }
          const list = living.flatMap((one) => one ?? []);
          const after = countersOf(agent.at(second, list, { useTold, setSeconds, gpus: seen }));
          // With a clean second between them, so that all of them are in the file.
          const fell = fallen(before, after);
          if (fell.length > 0) throw new Error(fell.join('; '));
          before = countersOf(agent.at(second + 6, list, { useTold, setSeconds, gpus: seen }));
          second += 6;
        }
      }),
      { numRuns: 100 },
    );
  });
});

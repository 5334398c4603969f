// A tenant whose page says what is not so, to get turns sooner: in the laboratory, where the arbiter reads a forged
// report while the tenant's own gates go by what the arbiter grants. Its neighbors keep their shares over 10 s.
import test from 'ava';
import { type Run, runLab } from '../../bench/compute/lab.ts';
import { after, percentOf } from '../../bench/compute/measure.ts';

/** What test/bench/compute/lab/cotenant_agent.c reports for it, as bits. */
const FORGED: readonly (readonly [what: string, forges: number])[] = [
  ['work long overdue', 1],
  ['work long overdue, a launch that waits, and launches without end', 1 | 2 | 4],
  ['work long overdue, a launch that waits, and neither launches nor use', 1 | 2 | 8 | 16],
];
const MOST_MISSING = 1;

/** Of `instances` for average, and by these percents or weights in the others. */
const PERCENTS = [50, 20, 30] as const;
for (const [policy, name, shares] of [
  [0, 'average', [33.3, 33.3]],
  [1, 'preemptive', [33.3, 33.3]],
  [2, 'weighted', [50, 20]],
  [3, 'fixed', [50, 20]],
  [4, 'soft', [50, 20]],
] as const) {
  test(`a forged page takes no share from neighbors on its GPU: ${name}`, async (t) => {
    const run = async (forges: number) => {
      const [first, second, forger] = PERCENTS.map((percent) => ({ form: 'async', kernelUs: 1000, percent }) as const);
      const tenants: Run['tenants'] = first && second && forger ? [first, second, { ...forger, more: { forges } }] : [];
      const served = await runLab({ seconds: 11, policy, tenants, words: ['instances=3'] });
      return served.map(({ work_us }) => percentOf(after(work_us, 1)));
    };
    const honest = await run(0);
    for (const [what, forges] of FORGED) {
      const had = await run(forges);
      t.log(`${what}: ${had.map((percent) => percent.toFixed(1)).join(' ')}`);
      for (const [index, share] of shares.entries()) {
        const least = Math.min(share, honest[index] ?? 0) - MOST_MISSING;
        t.true((had[index] ?? 0) >= least, `${what}: neighbor ${index} has ${had[index]} % of ${share}`);
      }
    }
  });
}

test('a forged page on two GPUs takes no share from the neighbors on either', async (t) => {
  for (const policy of [0, 3]) {
    const run = async (forges: number) => {
      const neighbors = [0, 1].map((gpu) => ({ form: 'async', kernelUs: 1000, percent: 60, more: { gpu } }) as const);
      const forger = { form: 'async', kernelUs: 1000, percent: 40, more: { gpus: 2, forges } } as const;
      const served = await runLab({ seconds: 11, policy, tenants: [...neighbors, forger], words: ['instances=2'] });
      return served.map(({ work_us }) => percentOf(after(work_us, 1)));
    };
    const honest = await run(0);
    for (const [what, forges] of FORGED) {
      const had = await run(forges);
      t.log(`policy ${policy}, ${what}: ${had.map((percent) => percent.toFixed(1)).join(' ')}`);
      for (const index of [0, 1]) {
        const least = Math.min(policy < 2 ? 50 : 60, honest[index] ?? 0) - MOST_MISSING;
        t.true((had[index] ?? 0) >= least, `policy ${policy}, ${what}: neighbor ${index} has ${had[index]} %`);
      }
    }
  }
});

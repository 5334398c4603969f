// A tenant whose page says what is not so, to get turns sooner: in the laboratory, where the arbiter reads a forged
// report while the tenant's own gates go by what the arbiter grants. Its neighbors keep their shares over 10 s.
import test, { type ExecutionContext } from 'ava';
import { each, type Run, runLab } from '../../bench/compute/lab.ts';
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

// ---- what a tenant's own gates believe as well ----

const WORDS = [
  ...['use is counted up to', 'launches that were awaited', 'relieved launches', 'launches made'],
  ...['waiting', 'used', 'in flight', 'predicted', 'longest', 'launches', 'throttled', 'stamp'],
  'bell and rows in use',
];
const VALUES = ['0', '1', 'the largest number', 'an hour from now', 'more and more'];
type Bounds = {
  /** Of a share, which neighbors keep. */
  readonly leastRatio: number;
  /** Points beyond its share that a tenant may have. */
  readonly mostMore: number;
};
const BOUNDS: Bounds = { leastRatio: 0.85, mostMore: 2 };
/** With nothing predicted its gate launches what it likes in a turn, all of which is charged. */
const UNPREDICTED: Bounds = { leastRatio: 0.75, mostMore: 2 };
/** With nothing shown in flight it does so as a program that has no gate: docs/develop/interposer.md. */
const HIDDEN: Bounds = { leastRatio: 0.45, mostMore: 35 };

function boundsOf(word: number, value: number): Bounds {
  if (WORDS[word] === 'in flight' && value === 0) return HIDDEN;
  return WORDS[word] === 'predicted' ? UNPREDICTED : BOUNDS;
}

type Forger = {
  readonly what: string;
  readonly more: Readonly<Record<string, number>>;
  readonly bounds?: Bounds;
};

const FIXED = 3;

async function keepsShares(
  t: ExecutionContext,
  forgers: readonly Forger[],
  kernelsUs: readonly number[],
  policy = FIXED,
) {
  const runs = forgers.flatMap((forger) => kernelsUs.map((kernelUs) => ({ ...forger, kernelUs })));
  await each(runs, async ({ what, more, kernelUs, bounds: { leastRatio, mostMore } = BOUNDS }) => {
    const tenants = PERCENTS.map((percent) => ({ form: 'async', kernelUs: 1000, percent }) as const);
    const [first, second, forger] = tenants;
    if (!first || !second || !forger) throw new Error('no tenants');
    const all = [first, second, { ...forger, kernelUs, more }];
    const served = await runLab({ seconds: 11, policy, tenants: all, words: ['instances=3'] });
    const had = served.map(({ active_us }) => percentOf(after(active_us, 1)));
    const text = `${what}, kernels of ${kernelUs} us: ${had.map((percent) => percent.toFixed(1)).join(' ')}`;
    const shareOf = (index: number) => (policy < 2 ? 100 / 3 : (PERCENTS[index] ?? 0));
    for (const index of [0, 1]) t.true((had[index] ?? 0) >= leastRatio * shareOf(index), text);
    t.true((had[2] ?? 100) <= shareOf(2) + mostMore, text);
  });
}

// Before, this tenant had 65 % (with three processes 81), its neighbors 22 and 9.
test('a page on which nothing counts as used and all is awaited wins no share', async (t) => {
  const holds = 3 + 1000 * 14;
  await keepsShares(t, [{ what: 'forged', more: { holds } }], [100, 1000, 10_000, 50_000]);
  await keepsShares(t, [{ what: 'three processes', more: { holds, processes: 3 } }], [100, 1000, 10_000]);
});

// With no launches shown as in flight, or long ones predicted, the arbiter never came to an end of its decisions. With none
// predicted, three processes had 79 % under policies that lend, and their neighbors a quarter of their shares.
for (const [policy, name] of ['average', 'preemptive', 'weighted', 'fixed', 'soft'].entries()) {
  test(`no word of a page wins more than is documented, whatever its value: ${name}`, async (t) => {
    const forgers = WORDS.flatMap((held, word) =>
      VALUES.flatMap((kept, value) =>
        [1, 3].map((processes) => ({
          what: `${held}: ${kept}, x${processes}`,
          more: { holds: word * 10 + value, processes },
          bounds: boundsOf(word, value),
        })),
      ),
    );
    await keepsShares(t, forgers, [1000], policy);
  });
}

test('random and extreme values in all words of a page win no share', async (t) => {
  const forgers = [1, 3].map((processes) => ({ what: `x${processes}`, more: { scribbles: 1, processes } }));
  await keepsShares(t, forgers, [100, 1000, 10_000]);
});

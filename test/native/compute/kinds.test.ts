// Programs that launch many kinds of kernels, under a share of the whole GPU and without one: real processes on the
// simulated driver (test/native/programs/scripted/streams.c).
import test, { type ExecutionContext } from 'ava';
import { startArbiter } from '../../support/native/arbiter.ts';
import { startNode } from '../../support/native/node.ts';
import { streams } from '../../support/native/streams.ts';
import { MIB, makeGrant } from '../../support/product/grant.ts';

const ROUNDS = 5;
/** On a machine that gives some rounds less than half of the processors that it gives others. */
const MOST_ROUNDS = 20;
/** The rest is noise of the machine. */
const LEAST_RATIO = 0.9;
const ROUND_MS = 700;

type Launched = { readonly launches: number; readonly ms: number };

/** Launches per second under the share, relative to those without one: of several rounds in turn, and of more until one
 * shows no delay. */
async function ratiosOf(t: ExecutionContext, kinds: number): Promise<number[]> {
  const node = await startNode(t, '--gpu', 't4');
  const arbiter = startArbiter(t);
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB, coresPercent: 100 }]);
  const tenant = { id: 'tenant', grant, gpus: [{ gpu: 0, percent: 100 }] };
  const rate = async (policy: 'fixed' | 'native') => {
    await arbiter.plan(policy, [tenant]);
    const words = ['kinds', String(kinds), String(ROUND_MS)];
    const { launches, ms } = await streams<Launched>(t, node, words, { preload: grant.cuda }).result;
    return launches / ms;
  };
  const ratios: number[] = [];
  for (let round = 0; round < ROUNDS || (round < MOST_ROUNDS && Math.max(...ratios) < LEAST_RATIO); round += 1) {
    const [native, leased] = [await rate('native'), await rate('fixed')];
    ratios.push(leased / native);
  }
  t.log(`${kinds} kinds: ${ratios.map((one) => one.toFixed(2)).join(' ')}`);
  return ratios;
}

for (const [kinds, what] of [
  [200, '200 kinds of launches in turn'],
  [2000, '2,000 kinds of launches in turn'],
  [0, 'launches of ever new kinds'],
] as const) {
  test.serial(`${what} are not delayed by a share of the whole GPU`, async (t) => {
    t.timeout(300_000);
    const ratios = await ratiosOf(t, kinds);
    t.true(Math.max(...ratios) >= LEAST_RATIO);
    t.true(Math.min(...ratios) > 0.05, 'one of them stood still');
  });
}

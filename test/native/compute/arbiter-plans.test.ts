// The arbiter refuses an invalid plan as a whole, leaves no file of it open, and follows the next valid one; a plan may
// have many containers.
import { readdirSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { type Arbiter, startArbiter } from '../../support/native/arbiter.ts';
import { readyClient } from '../../support/native/client.ts';
import { eventually, startNode } from '../../support/native/node.ts';
import { hold } from '../../support/native/shares.ts';
import { MIB, makeGrant } from '../../support/product/grant.ts';

const page = (id: string, ledger: string, gpus = 1) => `page ${id} 64 ${gpus} ${ledger}`;
const on = (gpu: number) => `on ${gpu} 3 250000 0 0 0 0`;
const planned = (arbiter: Arbiter, plan: number) => arbiter.until((status) => status.plan === plan, `plan ${plan}`);

function openIn({ child }: Arbiter, path: string): number {
  const folder = `/proc/${child.pid}/fd`;
  return readdirSync(folder).filter((fd) => {
    try {
      return readlinkSync(join(folder, fd)) === path;
    } catch {
      return false; // closed meanwhile
    }
  }).length;
}

async function ready(t: ExecutionContext): Promise<{ arbiter: Arbiter; ledger: string; other: string }> {
  const node = await startNode(t, '--gpu', 't4');
  const [ledger = '', other = ''] = [1, 2].map(() =>
    join(makeGrant(t, node, [{ gpu: 0, memoryBytes: 64 * MIB, coresPercent: 25 }]).folder, 'ledger'),
  );
  return { arbiter: startArbiter(t), ledger, other };
}

const WRONG: readonly (readonly [string, (ledger: string, other: string) => readonly string[], RegExp])[] = [
  ['an unknown line', (ledger) => [page('a', ledger), on(3), 'nonsense', 'end'], /^unknown line; /],
  ['too few GPUs for its last page', (ledger) => [page('a', ledger), 'end'], /the last page lacks `on` lines/],
  [
    'too few GPUs for an earlier page',
    (ledger, other) => [page('a', ledger), page('b', other), on(3), 'end'],
    /the page before it lacks `on` lines/,
  ],
  ['too many GPUs for a page', (ledger) => [page('a', ledger), on(3), on(4), 'end'], /its page has fewer GPUs/],
  [
    'one page twice',
    (ledger) => [page('a', ledger), on(3), page('a', ledger), on(3), 'end'],
    /it is in the plan twice/,
  ],
  ['no end before the next plan', (ledger) => [page('a', ledger), on(3)], /^$/],
];
for (const [what, lines, why] of WRONG) {
  test(`the arbiter drops a plan with ${what} and closes its files`, async (t) => {
    const { arbiter, ledger, other } = await ready(t);
    arbiter.say('plan 1', ...lines(ledger, other), 'plan 2', 'gpu 0 0', page('a', ledger), on(0), 'end');
    const status = await planned(arbiter, 2);
    t.deepEqual(
      status.pages.map(({ id, gpus }) => [id, gpus.map(({ limitPpm }) => limitPpm)]),
      [['a', [250_000]]],
    );
    t.regex(arbiter.problems[0] ?? '', why);
    await eventually(
      () => (openIn(arbiter, ledger) === 1 && openIn(arbiter, other) === 0 ? true : undefined),
      'closed',
    );
  });
}

test('an invalid plan leaves the current plan in force', async (t) => {
  const { arbiter, ledger, other } = await ready(t);
  arbiter.say('plan 1', 'gpu 0 0', page('a', ledger), on(0), 'end');
  await planned(arbiter, 1);
  arbiter.say('plan 2', 'gpu 0 0', page('a', ledger), on(0), page('b', other), on(0), 'on', 'end');
  const status = await arbiter.until(() => arbiter.problems.length > 0, 'it is refused');
  t.is(status.plan, 1);
  t.deepEqual(
    status.pages.map(({ id }) => id),
    ['a'],
  );
  await eventually(
    () => (openIn(arbiter, other) === 0 ? true : undefined),
    'the page that only the invalid plan named is closed',
  );
  t.is(openIn(arbiter, ledger), 1);
});

test('the 100th container of a GPU gets its share', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const arbiter = startArbiter(t);
  const grants = Array.from({ length: 100 }, (_, index) =>
    makeGrant(t, node, [{ gpu: 0, memoryBytes: (index === 99 ? 512 : 64) * MIB, coresPercent: index === 99 ? 30 : 0 }]),
  );
  await arbiter.plan(
    'fixed',
    grants.map((grant, index) => ({
      id: `tenant-${index}`,
      grant,
      gpus: [{ gpu: 0, percent: index === 99 ? 30 : 0 }],
    })),
  );
  const { pages } = await arbiter.until((status) => status.pages.length === 100, 'all have joined');
  t.deepEqual(
    pages.flatMap(({ id, broken }) => (broken ? [`${id}: ${broken}`] : [])),
    [],
  );
  const client = await readyClient(t, node, { preload: grants[99]?.cuda ?? '' });
  client.ask('load async 600000 500').catch(() => {});
  await hold(t, node, [client.pid], [30]);
});

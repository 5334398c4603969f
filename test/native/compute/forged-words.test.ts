// Each word of the lease page that a tenant's processes write, kept at an extreme value while they work, with real
// processes: a neighbor keeps its share, in each policy (test/native/compute/forged-page.test.ts has more, in the
// laboratory).
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { type Policy, startArbiter } from '../../support/native/arbiter.ts';
import { readyClient } from '../../support/native/client.ts';
import {
  BUILD,
  environment,
  eventually,
  startNode,
  type Teardown,
  WITHOUT_LEAK_CHECK,
} from '../../support/native/node.ts';
import { hold } from '../../support/native/shares.ts';
import { MIB, makeGrant } from '../../support/product/grant.ts';

const LARGEST = 2n ** 64n - 1n;
/** Each at both values, but for what the arbiter cannot tell from a program without a gate. */
const WORDS = [
  ...['used_until_ns', 'awaited', 'relieved', 'made', 'stamp', 'waiting', 'used_ns', 'inflight', 'pending_ns'],
  ...['longest_ns', 'launches', 'throttled_ns', 'bell_and_slots_used'],
].flatMap((word) => (word === 'inflight' ? [`${word}=${LARGEST}`] : [`${word}=0`, `${word}=${LARGEST}`]));
const POLICIES: readonly Policy[] = ['average', 'preemptive', 'weighted', 'fixed', 'soft'];
/** Of the neighbor, and of the other tenant. */
const PERCENTS = [70, 30] as const;
/** Of a share, which the neighbor misses at most. */
const MISSING = 0.3;

async function keepsShare(test: ExecutionContext, policy: Policy, held: string, processes: number): Promise<void> {
  const ends: (() => unknown)[] = [];
  const t: Teardown = { teardown: (end) => void ends.push(end) };
  try {
    const node = await startNode(t, '--gpu', 't4');
    const arbiter = startArbiter(t);
    const tenants = PERCENTS.map((percent, id) => ({
      id: `tenant-${id}`,
      grant: makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB, coresPercent: percent }]),
      gpus: [{ gpu: 0, percent, weight: percent }],
    }));
    await arbiter.plan(policy, tenants);
    const [own, forged] = tenants.map(({ grant }) => grant);
    if (!own || !forged) throw new Error('no grants');
    const client = await readyClient(t, node, { preload: own.cuda });
    client.ask('load async 600000 1000').catch(() => {});
    const variables = { ...WITHOUT_LEAK_CHECK, PATH: process.env.PATH ?? '', LD_LIBRARY_PATH: node.lib };
    for (let index = 0; index < processes; index += 1) {
      const words = [join(forged.folder, 'ledger'), held, join(BUILD, 'tests/client'), 'libcuda.so.1', 'init'];
      const child = spawn(join(BUILD, 'tests/hide_work'), [...words, 'context 0', 'load async 600000 1000'], {
        env: environment(variables, forged.cuda),
        stdio: ['ignore', 'ignore', 'inherit'],
      });
      const exited = once(child, 'exit');
      t.teardown(async () => {
        child.kill('SIGKILL');
        await exited;
      });
      // Some values keep its own gate closed.
      const isThere = () => node.usage().clients.some(({ pid }) => pid === child.pid) || undefined;
      await eventually(isThere, 'it uses the GPU');
    }
    const percent = policy === 'average' || policy === 'preemptive' ? 50 : PERCENTS[0];
    const what = `${policy}, ${held}, x${processes}:`;
    await hold(test, node, [client.pid], [percent], { above: 100, missing: MISSING, what });
  } finally {
    for (const end of ends.reverse()) await end();
  }
}

for (const [at, policy] of POLICIES.entries()) {
  test.serial(`a page with one field kept at a value takes no neighbor's share: ${policy}`, async (t) => {
    const words = WORDS.filter((_, index) => index % POLICIES.length === at);
    for (const held of words) await keepsShare(t, policy, held, 1);
    await keepsShare(t, policy, 'pending_ns=0', 3);
  });
}

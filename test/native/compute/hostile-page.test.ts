// A tenant that makes its page expensive for the arbiter, which runs above normal priority: it costs a small part of a
// processor core, and other tenants keep their shares.
import { setTimeout as delay } from 'node:timers/promises';
import test from 'ava';
import { ranOnCoresMs } from '../../support/machine/scheduling-delays.ts';
import { startArbiter } from '../../support/native/arbiter.ts';
import { readyClient } from '../../support/native/client.ts';
import { startHostile } from '../../support/native/hostile-page.ts';
import { eventually, startNode } from '../../support/native/node.ts';
import { hold, ranMs } from '../../support/native/shares.ts';
import { MIB, makeGrant } from '../../support/product/grant.ts';

const WINDOW_MS = 2000;
/** Of a core, beyond what the arbiter takes without the tenant. */
const MOST_RATIO = 0.05;

for (const [locks, what] of [
  [0, 'that rings without a pause'],
  [20_000, 'with 20,000 record locks on its ledger'],
] as const) {
  test.serial(`a tenant ${what} costs the arbiter little, and others no share`, async (t) => {
    const node = await startNode(t, '--gpu', 't4');
    const arbiter = startArbiter(t);
    const grants = [50, 30].map((coresPercent) =>
      makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB, coresPercent }]),
    );
    const [own, hostile] = grants;
    if (!own || !hostile) throw new Error('no grants');
    await arbiter.plan('fixed', [
      { id: 'own', grant: own, gpus: [{ gpu: 0, percent: 50 }] },
      { id: 'hostile', grant: hostile, gpus: [{ gpu: 0, percent: 30 }] },
    ]);
    const client = await readyClient(t, node, { preload: own.cuda });
    client.ask('load async 600000 500').catch(() => {});
    await eventually(() => (ranMs(node, client.pid) > 20 ? true : undefined), 'it works');
    const arbiterRatio = async () => {
      const before = ranOnCoresMs(arbiter.child.pid ?? 0);
      const from = performance.now();
      await delay(WINDOW_MS);
      return (ranOnCoresMs(arbiter.child.pid ?? 0) - before) / (performance.now() - from);
    };
    const without = await arbiterRatio();
    await startHostile(t, hostile, locks);
    const beside = await arbiterRatio();
    t.log(`${beside.toFixed(3)} of a core, ${without.toFixed(3)} without`);
    t.true(beside - without <= MOST_RATIO, `${beside} of a core, ${without} without`);
    // While the other claims to have work in flight, half of the GPU's time counts as that work's.
    await hold(t, node, [client.pid], [50], { above: 50 });
  });
}

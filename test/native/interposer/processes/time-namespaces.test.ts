// Processes in a time namespace, as of a container that was restored from a checkpoint: their clock since boot and the
// start times that they read in /proc have an offset (time_namespaces(7)). Shares and identity must not depend on it.
import { spawnSync } from 'node:child_process';
import test from 'ava';
import { loadNative } from '../../../../src/agent/os/addon.ts';
import { possibleStarts } from '../../../../src/agent/os/start-times.ts';
import { testUnless } from '../../../support/gate.ts';
import { startArbiter } from '../../../support/native/arbiter.ts';
import { OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { slotOf } from '../../../support/native/engines.ts';
import { eventually, startNode } from '../../../support/native/node.ts';
import { hold, ranMs } from '../../../support/native/shares.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';

const DAY = 86_400;

function reason(): string | undefined {
  const seen = spawnSync('unshare', ['-T', '--boottime', String(DAY), 'cat', '/proc/uptime'], { encoding: 'utf8' });
  return Number.parseFloat(seen.stdout ?? '') > DAY ? undefined : 'it needs to be root to make time namespaces';
}

const inTimeNamespace = (offset: number) => ['unshare', '-T', '--boottime', String(offset)];
const check = testUnless(reason());

for (const offset of [DAY, -60]) {
  check(`a process in a time namespace is known by its start time, offset ${offset} s`, async (t) => {
    const node = await startNode(t, '--gpu', 't4');
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB }]);
    const client = await readyClient(t, node, { preload: grant.cuda, within: inTimeNamespace(offset) });
    const started = loadNative().readProcess(client.pid)?.startTicks ?? Number.NaN;
    t.true(possibleStarts(slotOf(grant, client)?.startTicks ?? 0).includes(started));
  });
}

check('processes of other time namespaces count in a grant until they end', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB }]);
  const first = await readyClient(t, node, { preload: grant.cuda, within: inTimeNamespace(DAY) });
  await first.must(`alloc ${200 * MIB}`);
  const second = await readyClient(t, node, { preload: grant.cuda });
  t.is((await second.ask(`alloc ${200 * MIB}`))[0], OUT_OF_MEMORY);
  await first.kill();
  await second.must(`alloc ${200 * MIB}`);
});

for (const offset of [DAY, -60]) {
  check(`a share holds in a time namespace, offset ${offset} s`, async (t) => {
    const node = await startNode(t, '--gpu', 't4');
    const arbiter = startArbiter(t);
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB, coresPercent: 30 }]);
    await arbiter.plan('fixed', [{ id: 'tenant', grant, gpus: [{ gpu: 0, percent: 30 }] }]);
    const client = await readyClient(t, node, { preload: grant.cuda, within: inTimeNamespace(offset) });
    client.ask('load async 600000 500').catch(() => {});
    await eventually(() => ranMs(node, client.pid) > 20 || undefined, 'kernels run');
    await hold(t, node, [client.pid], [30]);
  });
}

test('a start time without the offset of a time namespace is at most a tick too early', (t) => {
  t.deepEqual(possibleStarts(1234), [1234, 1235]);
});

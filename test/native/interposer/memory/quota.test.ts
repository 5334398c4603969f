import test from 'ava';
import { OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { readLedger } from '../../../support/native/engines.ts';
import { eventually, startNode } from '../../../support/native/node.ts';
import { KILLS, LONGER, REQUESTS, race, SHARE } from '../../../support/native/race.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';

// One storm at a time: each has more processes than most machines have cores.
test.serial(`32 processes race in ${REQUESTS} requests and never exceed their grant`, async (t) => {
  t.timeout(120_000 * LONGER);
  const node = await startNode(t, '--gpu', 'l4');
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  const limit = 32 * context + 700 * MIB;
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: limit }]);
  const result = await race(t, node, grant, { workers: 32, seconds: 1, bytes: 64 * MIB, attempts: REQUESTS });
  t.log(result);
  t.true(result.peak <= limit, `${result.peak} of ${limit}`);
  t.is(result.failed, 0);
  t.is(result.wrongBytes, 0);
  t.true(result.attempts >= REQUESTS);
  t.true(result.granted > 10_000 * SHARE && result.refused > 10_000 * SHARE, 'the race was about something');
  // How full the GPU itself is meanwhile depends on how many calls are on their way; all of the grant is there
  // afterwards.
  const granules = Math.floor(limit / (2 * MIB));
  const client = await readyClient(t, node, { preload: grant.cuda });
  await client.ask(`fill-all ${2 * MIB}`);
  t.is(
    node.usage().clients.find(({ pid }) => pid === client.pid)?.gpus[0]?.bytes,
    granules * 2 * MIB,
    'to the last granule',
  );
});

test.serial(`after ${KILLS} SIGKILLs no charge leaked, no grant was exceeded, no process waited`, async (t) => {
  t.timeout(180_000 * LONGER);
  const node = await startNode(t, '--gpu', 'l4');
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  // Memory for more than all contexts: a starting process must not wait for memory of running ones.
  const limit = 40 * context + 2048 * MIB;
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: limit }]);
  const result = await race(t, node, grant, {
    workers: 32,
    seconds: 14 * SHARE,
    kills: 75,
    bytes: 32 * MIB,
    seed: 2,
  });
  t.log(result);
  t.true(result.kills >= KILLS, `${result.kills} kills`);
  const { longestMs, longestStallMs } = result;
  t.true(longestStallMs < 500, `a request took ${longestStallMs} ms, ${longestMs} with what the machine took of it`);
  t.true(result.peak <= limit, `${result.peak} of ${limit}`);
  t.is(result.wrongBytes, 0);
  t.true([0, OUT_OF_MEMORY].includes(result.lastError), `the only refusal is for lack of memory: ${result.lastError}`);
  t.is(node.usage().gpus[0]?.usedBytes, 0, 'the GPU is empty');
  // All of the grant is there for the next one, at its first request.
  const client = await readyClient(t, node, { preload: grant.cuda });
  t.is((await client.ask(`alloc ${limit - context}`))[0], 0);
});

test.serial(`a request that fits is granted in each of ${REQUESTS} races of 32 processes`, async (t) => {
  t.timeout(120_000 * LONGER);
  const node = await startNode(t, '--gpu', 'l4');
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  // Each holds one block at a time, and there is memory for the largest of each: to the byte.
  const most = 64 * MIB;
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 32 * (context + most) }]);
  const result = await race(t, node, grant, { workers: 32, hold: 1, bytes: most, attempts: REQUESTS, seed: 4 });
  t.log(result);
  t.deepEqual([result.refused, result.failed, result.wrongBytes], [0, 0, 0]);
  t.true(result.attempts >= REQUESTS && result.peak > 32 * context + 8 * most, 'and it was a race');
});

test.serial('every worker that a SIGKILL storm restarts gets its context', async (t) => {
  t.timeout(120_000 * LONGER);
  const node = await startNode(t, '--gpu', 'l4');
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  // Eight live at a time with at most 64 MiB each, so whatever is refused is refused for memory of the dead.
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 9 * context + 9 * 66 * MIB }]);
  const result = await race(t, node, grant, { workers: 8, seconds: 6 * SHARE, kills: 60, bytes: MIB, seed: 3 });
  t.log(result);
  t.is(result.failed, 0, `last error ${result.lastError}`);
  t.is(result.refused, 0);
  t.true(result.kills > 300 * SHARE);
});

test('three grants that sum to the GPU are all filled to the last granule at once', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const granule = node.usage().gpus[0]?.granuleBytes ?? 0;
  const usable = node.usable(0);
  t.is(usable % granule, 0);
  const sizes = [4001, 6007].map((granules) => (granules * granule) / 1);
  const all = [...sizes.map((bytes) => Math.floor(bytes / 3 / granule) * granule)];
  const grants = [...all, usable - all.reduce((sum, bytes) => sum + bytes, 0)];
  t.is(
    grants.reduce((sum, bytes) => sum + bytes, 0),
    usable,
  );
  const held: number[] = [];
  for (const memoryBytes of grants) {
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes }]);
    const client = await readyClient(t, node, { preload: grant.cuda });
    const [result] = await client.ask(`fill-all ${granule}`);
    t.is(result, OUT_OF_MEMORY);
    t.deepEqual((await client.ask('info'))[1], 0);
    held.push(node.usage().clients.find((entry) => entry.pid === client.pid)?.gpus[0]?.bytes ?? 0);
  }
  t.deepEqual(held, grants);
  t.is(node.usage().gpus[0]?.usedBytes, usable, 'not a byte of the GPU is left');
});

test('a request for memory that a call in progress gets is refused at once', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  const bytes = 640 * MIB;
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 2 * context + bytes + 64 * MIB }]);
  const [first, second] = [
    await readyClient(t, node, { preload: grant.cuda }),
    await readyClient(t, node, { preload: grant.cuda }),
  ];
  const row = () => readLedger(grant).slots.find(({ pid }) => pid === first.pid)?.gpus[0];
  node.child.kill('SIGSTOP');
  let answer: number[] | undefined;
  const asked = first.ask(`alloc ${bytes}`).then((lines) => {
    answer = lines;
  });
  try {
    await eventually(() => (row()?.heldBytes === context + bytes ? true : undefined), 'it is charged before its call');
    t.is((await second.ask(`alloc ${bytes}`))[0], OUT_OF_MEMORY);
    t.is(answer, undefined, 'while the other call has no answer yet');
  } finally {
    node.child.kill('SIGCONT');
  }
  await asked;
  t.like(answer, [0]);
  t.like(row(), { heldBytes: context + bytes, pendingBytes: 0 });
});

// Linear memory that a program frees in the order of a stream. NVIDIA's developer blog on the stream-ordered allocator,
// part 1, "Interoperability with cudaMalloc and cudaFree": it is not freed until the next synchronization of the stream.
import test from 'ava';
import { OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { eventually, startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';

test('linear memory that is freed in stream order is given back', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 256 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const whole = (await client.ask('info'))[1] ?? 0;
  for (const bytes of [512, MIB, 64 * MIB]) {
    const at = await client.must(`alloc ${bytes}`);
    await client.must(`pool-free ${at}`);
    await client.must('sync');
    t.is((await client.ask('info'))[1], whole, `${bytes} bytes`);
    t.not((await client.ask(`pool-free ${at}`))[0], 0, 'not twice');
    t.is((await client.ask('info'))[1], whole, `${bytes} bytes, refused the second time`);
  }
});

test('what is freed behind work is allocated again once the stream was there', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 256 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const held = () => node.usage().clients.find(({ pid }) => pid === client.pid)?.gpus[0]?.bytes ?? 0;
  for (let round = 0; round < 40; round++) {
    const at = await client.must(`alloc ${100 * MIB}`);
    await client.must('launch 1 2000');
    await client.must(`pool-free ${at}`);
    if (round % 2) await client.must('sync');
    else await eventually(async () => ((await client.ask('info'))[1] ?? 0) >= 100 * MIB || undefined, 'it is free');
    await client.must('launch 1 100'); // behind the free: whether that has ended says nothing
  }
  for (let block = 0; block < 100; block++) await client.must(`pool-free ${await client.must(`alloc ${MIB + 1}`)}`);
  t.true(held() <= 256 * MIB);
});

test('a stream that never ends keeps what is freed on it charged', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 256 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const other = await readyClient(t, node, { preload: grant.cuda });
  const held = () => node.usage().clients.reduce((sum, { gpus }) => sum + (gpus[0]?.bytes ?? 0), 0);
  await client.must('launch 1 3600000000');
  const [first, second] = [await client.must(`alloc ${32 * MIB}`), await client.must('alloc 512')];
  const before = held();
  for (const at of [first, second]) await client.must(`pool-free ${at}`);
  for (let tries = 0; tries < 3; tries++) {
    t.is((await client.ask(`alloc ${24 * MIB}`))[0], OUT_OF_MEMORY);
    t.is((await other.ask(`alloc ${24 * MIB}`))[0], OUT_OF_MEMORY, 'of the container');
  }
  t.is(held(), before);
  await client.kill();
  await other.must(`alloc ${24 * MIB}`);
});

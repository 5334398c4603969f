// Limits of the device runtime that reserve memory of the GPU. NVIDIA's CUDA Driver API, cuCtxSetLimit: for a depth of
// synchronization above the default of 2, and for more pending launches than 2048, the driver reserves device memory,
// and returns CUDA_ERROR_OUT_OF_MEMORY if there is too little; the depth can be set below compute capability 9.0 only.
// CUDA C++ Programming Guide 12, "CUDA Dynamic Parallelism": a level may take 150 MB.
import test, { type ExecutionContext } from 'ava';
import { OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';
import { account } from '../../../support/product/ledger-row.ts';

const [HEAP, SYNC_DEPTH, PENDING_LAUNCHES] = [2, 3, 4];
const UNSUPPORTED_LIMIT = 215;

/** A program in a grant of so many MiB beside its context. */
async function startProgram(t: ExecutionContext, mib: number, gpu = 't4') {
  const node = await startNode(t, '--gpu', gpu);
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: context + mib * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const before = account(grant);
  const charge = () => {
    const now = account(grant);
    t.is(now.held - before.held, now.context - before.context, 'as part of the context');
    const bytes = Number(now.held - before.held);
    const reserved = node.usage().clients[0]?.gpus[0]?.limits ?? Number.NaN;
    t.true(bytes >= reserved, `${reserved} reserved, ${bytes} charged`);
    return { charged: bytes > 0, reserved: reserved > 0 };
  };
  return { client, charge };
}

const BOTH = { charged: true, reserved: true };
const NEITHER = { charged: false, reserved: false };

for (const [name, limit, usual, more, most] of [
  ['the depth of synchronization', SYNC_DEPTH, 2, 4, 8],
  ['pending launches', PENDING_LAUNCHES, 2048, 32_768, 131_072],
] as const) {
  test(`memory that ${name} reserve is charged until the limit is lowered`, async (t) => {
    const { client, charge } = await startProgram(t, 310);
    await client.must(`set-limit ${limit} ${usual}`);
    t.deepEqual(charge(), NEITHER, 'the default');
    await client.must(`set-limit ${limit} ${more}`);
    t.deepEqual(charge(), BOTH);
    t.is((await client.ask(`set-limit ${limit} ${most}`))[0], OUT_OF_MEMORY);
    t.is(await client.must(`limit ${limit}`), more, 'it stays as it was');
    t.deepEqual(charge(), BOTH);
    await client.must(`set-limit ${limit} ${usual}`);
    t.deepEqual(charge(), NEITHER);
    await client.must(`alloc ${310 * MIB}`);
  });

  test(`memory for ${name} is refused in a full grant, and gone with its context`, async (t) => {
    const { client, charge } = await startProgram(t, 420);
    const block = await client.must(`alloc ${420 * MIB}`);
    t.is((await client.ask(`set-limit ${limit} ${more}`))[0], OUT_OF_MEMORY);
    await client.must(`free ${block}`);
    const other = await client.must('create 0');
    await client.must(`set-limit ${limit} ${more}`);
    await client.must(`destroy ${other}`);
    t.deepEqual(charge(), NEITHER);
    await client.must('context 0');
    await client.must(`alloc ${420 * MIB}`);
  });
}

test('from compute capability 9.0 on there is no depth of synchronization', async (t) => {
  const { client } = await startProgram(t, 100, 'h100');
  t.is((await client.ask(`set-limit ${SYNC_DEPTH} 4`))[0], UNSUPPORTED_LIMIT);
});

// CUDA C++ Programming Guide, "Heap Memory Allocation": the heap is allocated when a module that uses it is loaded. An
// H100 took nothing when the limit was set: test/gpu/observed/h100-580.159.04.json, step residuals, stage heapLimit.
test('a larger heap is charged when its limit is set, and taken when a module uses it', async (t) => {
  const { client, charge } = await startProgram(t, 64);
  t.is((await client.ask(`set-limit ${HEAP} ${80 * MIB}`))[0], OUT_OF_MEMORY);
  await client.must(`set-limit ${HEAP} ${72 * MIB}`);
  t.deepEqual(charge(), { charged: true, reserved: false });
  t.is((await client.ask(`alloc ${2 * MIB}`))[0], OUT_OF_MEMORY, 'it is kept for the heap');
  await client.must(`module ${MIB} 0`);
  t.deepEqual(charge(), { charged: true, reserved: false }, 'a module without a heap');
  await client.must(`module ${MIB} 1`);
  t.deepEqual(charge(), BOTH);
  await client.must(`set-limit ${HEAP} ${8 * MIB}`);
  t.deepEqual(charge(), NEITHER);
});

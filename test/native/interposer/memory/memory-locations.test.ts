// Memory at the locations that CUmemLocationType names: only host memory is free of charge. NVIDIA's CUDA 13.4 driver
// API reference, CUmemLocation: a locality domain of a device has the device in `localized.deviceId`, the lowest byte
// of `id`.
import test, { type ExecutionContext } from 'ava';
import { OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';
import { account } from '../../../support/product/ledger-row.ts';

const [NONE, DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT, LOCALITY_DOMAIN, FUTURE_TYPE] = [0, 1, 2, 3, 4, 6, 7];
const [INVALID_VALUE, INVALID_DEVICE, NOT_SUPPORTED] = [1, 101, 801];
const SECOND_BYTE = 256;

/** A grant of 256 MiB on each of so many GPUs, and a program of it with a context on the first. */
async function startProgram(t: ExecutionContext, gpuCount: number) {
  const gpus = Array.from({ length: gpuCount }, (_, gpu) => gpu);
  const node = await startNode(t, ...gpus.flatMap(() => ['--gpu', 't4']), '--cuda', '14000');
  const grant = makeGrant(
    t,
    node,
    gpus.map((gpu) => ({ gpu, memoryBytes: 256 * MIB })),
  );
  return readyClient(t, node, { preload: grant.cuda });
}

test('memory in a locality domain of a GPU is charged to that GPU', async (t) => {
  const client = await startProgram(t, 2);
  for (const id of [0, 1, SECOND_BYTE, SECOND_BYTE + 1]) {
    await client.must(`location ${LOCALITY_DOMAIN} ${id}`);
    t.is((await client.ask(`physical ${512 * MIB}`))[0], OUT_OF_MEMORY, `id ${id}`);
  }
  await client.must(`physical ${200 * MIB}`);
  t.is((await client.ask(`physical ${200 * MIB}`))[0], OUT_OF_MEMORY, 'GPU 1 is full');
  await client.must(`location ${DEVICE} 1`);
  t.is((await client.ask(`physical ${200 * MIB}`))[0], OUT_OF_MEMORY, 'for device memory, too');
  await client.must(`location ${DEVICE} 0`);
  await client.must(`physical ${100 * MIB}`);
  await client.must(`location ${LOCALITY_DOMAIN} 2`);
  t.is((await client.ask(`physical ${2 * MIB}`))[0], INVALID_DEVICE, 'there is no third');
});

test('a graph that allocates in a locality domain is charged', async (t) => {
  const client = await startProgram(t, 1);
  await client.must(`location ${LOCALITY_DOMAIN} ${SECOND_BYTE}`);
  const graph = await client.must('graph');
  await client.must(`node-alloc ${graph} ${512 * MIB}`);
  t.is((await client.ask(`instantiate ${graph}`))[0], OUT_OF_MEMORY);
});

test('a pool in a locality domain is charged to its GPU, whatever stream orders it', async (t) => {
  const client = await startProgram(t, 2);
  await client.must(`location ${LOCALITY_DOMAIN} ${SECOND_BYTE + 1}`);
  const pool = await client.must('pool-make');
  await client.must(`pool-take ${pool} ${200 * MIB}`);
  await client.must(`location ${DEVICE} 1`);
  t.is((await client.ask(`physical ${100 * MIB}`))[0], OUT_OF_MEMORY);
});

// CUDA Driver API 13.5, cuMemGetDefaultMemPool: a locality domain of a device has a default pool of its own.
test('the default pool of a locality domain is charged to its GPU on any stream', async (t) => {
  const client = await startProgram(t, 2);
  await client.must(`location ${LOCALITY_DOMAIN} ${SECOND_BYTE + 1}`);
  const pool = await client.must('pool-of');
  await client.must(`pool-take ${pool} ${200 * MIB}`);
  await client.must(`alloc ${100 * MIB}`); // on the first GPU
  await client.must(`location ${DEVICE} 1`);
  t.is((await client.ask(`physical ${100 * MIB}`))[0], OUT_OF_MEMORY);
});

test('memory at a location of unknown type is charged where there is one GPU', async (t) => {
  const client = await startProgram(t, 1);
  await client.must(`location ${FUTURE_TYPE} 1`);
  t.is((await client.ask(`physical ${512 * MIB}`))[0], OUT_OF_MEMORY);
  await client.must(`physical ${100 * MIB}`);
});

test('memory at a location of unknown type is refused where there are several GPUs', async (t) => {
  const client = await startProgram(t, 2);
  await client.must(`location ${FUTURE_TYPE} ${SECOND_BYTE}`);
  t.is((await client.ask(`physical ${2 * MIB}`))[0], NOT_SUPPORTED);
  t.is((await client.ask('pool-make'))[0], NOT_SUPPORTED);
});

test('memory on the host is not charged', async (t) => {
  const client = await startProgram(t, 1);
  for (const type of [HOST, HOST_NUMA]) {
    await client.must(`location ${type} 0`);
    t.is((await client.ask(`physical ${512 * MIB}`))[0], 0, `type ${type}`);
  }
  // The node of the current thread is no place for cuMemCreate (CUDA Driver API 13.5, Virtual Memory Management).
  await client.must(`location ${HOST_NUMA_CURRENT} 0`);
  t.is((await client.ask(`physical ${512 * MIB}`))[0], INVALID_VALUE);
});

// CUDA Driver API 13.0, cuMemPoolCreate and cuMemGetDefaultMemPool: a pool may be of host memory, with a node of it
// (HOST_NUMA) or without (HOST).
for (const [command, type] of [
  ['pool-make', HOST],
  ['pool-make', HOST_NUMA],
  ['pool-of', HOST],
  ['pool-of', HOST_NUMA],
] as const)
  test(`memory of a pool of host memory is not charged: ${command} at location type ${type}`, async (t) => {
    const node = await startNode(t, '--gpu', 't4');
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 256 * MIB }]);
    const client = await readyClient(t, node, { preload: grant.cuda });
    await client.must(`location ${type} 0`);
    const before = account(grant).held;
    const pool = await client.must(command);
    const at = await client.must(`pool-take ${pool} ${512 * MIB}`);
    const more = await client.must(`pool-take ${pool} ${512 * MIB}`);
    t.deepEqual([account(grant).held, account(grant).pool], [before, 0n]);
    t.is(node.usage().clients[0]?.gpus[0]?.pool, 0, 'the GPU has nothing of it');
    await client.must(`alloc ${100 * MIB}`);
    await client.must(`pool-free ${at}`);
    await client.must(`free ${more}`);
    t.is(account(grant).held, before + BigInt(100 * MIB));
    if (command === 'pool-make') await client.must(`pool-destroy ${pool}`);
    await client.must(`location ${DEVICE} 0`);
    const next = await client.must('pool-make'); // it may have the handle of the pool that is gone
    t.is((await client.ask(`pool-take ${next} ${256 * MIB}`))[0], OUT_OF_MEMORY);
  });

// CUDA Driver API 13.0, cuMemPoolCreate: managed memory has a preferred location at most, and may be moved to the GPU.
for (const [type, id] of [
  [NONE, 0],
  [DEVICE, 0],
  [HOST, 0],
  [HOST_NUMA, 0],
] as const)
  test(`memory of a managed pool is charged as managed: location type ${type}`, async (t) => {
    const node = await startNode(t, '--gpu', 't4');
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 256 * MIB }]);
    const client = await readyClient(t, node, { preload: grant.cuda });
    const before = account(grant);
    await client.must(`location ${type} ${id}`);
    const pool = await client.must('pool-make 1');
    const at = await client.must(`pool-take ${pool} ${96 * MIB}`);
    t.deepEqual(account(grant), { ...account(grant), managed: before.managed + BigInt(96 * MIB), pool: 0n });
    t.is(account(grant).held, before.held + BigInt(96 * MIB));
    t.is((await client.ask(`pool-take ${pool} ${96 * MIB}`))[0], OUT_OF_MEMORY);
    await client.must(`pool-free ${at}`); // in stream order
    await client.must('sync');
    await client.must(`pool-destroy ${pool}`);
    t.deepEqual([account(grant).held, account(grant).managed], [before.held, before.managed]);
  });

test('a location unknown to the driver too has its answer, also on several GPUs', async (t) => {
  for (const gpus of [1, 2]) {
    const client = await startProgram(t, gpus);
    await client.must('location 99 0');
    t.is((await client.ask(`physical ${2 * MIB}`))[0], INVALID_VALUE);
    t.is((await client.ask('pool-make'))[0], INVALID_VALUE);
  }
});

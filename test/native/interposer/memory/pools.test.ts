// Pools that are destroyed while they still have memory: it counts against the grant as long as the GPU has it.
import test, { type ExecutionContext } from 'ava';
import { type Client, OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { type GrantFiles, MIB, makeGrant } from '../../../support/product/grant.ts';
import { account } from '../../../support/product/ledger-row.ts';

const PIECE = 64 * MIB;
const KERNEL_US = 1000;
const INVALID_VALUE = 1;

type Setup = { readonly node: SimulatedNode; readonly grant: GrantFiles; readonly client: Client };

async function setUp(t: ExecutionContext, env: Record<string, string> = {}): Promise<Setup> {
  const node = await startNode(t, '--gpu', 't4', '--gpu', 't4');
  const grant = makeGrant(
    t,
    node,
    [0, 1].map((gpu) => ({ gpu, memoryBytes: 256 * MIB })),
  );
  return { node, grant, client: await readyClient(t, node, { preload: grant.cuda, env }) };
}

const books = ({ node }: Setup) => node.usage().clients[0]?.gpus[0];

/** Bytes charged to pools, which is what the GPU has. */
function pooled(t: ExecutionContext, place: Setup, why: string): number {
  const bytes = Number(account(place.grant, 2).pool);
  t.is(bytes, books(place)?.pool ?? 0, why);
  return bytes;
}

type Freeing = (client: Client, pool: number, stream: number) => Promise<void>;

/** Ways to hand a pool and its memory to a stream behind a kernel. */
const WAYS: Record<string, Freeing> = {
  'destroyed, then its piece freed behind the kernel': async (client, pool, stream) => {
    const at = await client.must(`pool-take ${pool} ${PIECE}`);
    await client.must(`pool-destroy ${pool}`);
    await client.must(`stream-free ${stream} ${at}`);
  },
  'its piece freed behind the kernel, then destroyed': async (client, pool, stream) => {
    const at = await client.must(`pool-take ${pool} ${PIECE}`);
    await client.must(`stream-free ${stream} ${at}`);
    await client.must(`pool-destroy ${pool}`);
  },
  'the last piece freed in another stream, which has nothing to do': async (client, pool, stream) => {
    const idle = await client.must('stream');
    const first = await client.must(`pool-take ${pool} ${PIECE / 2}`);
    const second = await client.must(`pool-take ${pool} ${PIECE / 2}`);
    await client.must(`pool-destroy ${pool}`);
    await client.must(`stream-free ${stream} ${first}`);
    await client.must(`stream-free ${idle} ${second}`);
  },
  'the last piece freed by a call that waits for no stream': async (client, pool, stream) => {
    const first = await client.must(`pool-take ${pool} ${PIECE / 2}`);
    const second = await client.must(`pool-take ${pool} ${PIECE / 2}`);
    await client.must(`pool-destroy ${pool}`);
    await client.must(`stream-free ${stream} ${first}`);
    await client.must(`free ${second}`);
  },
};

for (const [way, leave] of Object.entries(WAYS)) {
  test(`a destroyed pool is charged as long as a kernel keeps its memory: ${way}`, async (t) => {
    const place = await setUp(t);
    const { client } = place;
    const before = account(place.grant, 2).held;
    const stream = await client.must('stream');
    place.node.control('lose', '0'); // its kernels stand still
    await client.must(`stream-launch ${stream} ${KERNEL_US}`);
    await leave(client, await client.must('pool-make'), stream);
    t.is(pooled(t, place, 'at once'), PIECE);
    await client.must('info');
    t.is(pooled(t, place, 'when it is asked what is free'), PIECE);
    const other = await client.must('create 1');
    await client.must(`destroy ${other}`);
    await client.must('context 0');
    t.is(pooled(t, place, 'when a context of another GPU has ended'), PIECE);
    t.is((await client.ask(`alloc ${100 * MIB}`))[0], OUT_OF_MEMORY);
    t.is(pooled(t, place, 'when a request finds no free memory'), PIECE);
    t.is(books(place)?.smNs, 0, 'and all that time the kernel did not end');
    place.node.control('recover', '0');
    await client.must('sync');
    await client.must(`alloc ${100 * MIB}`);
    t.is(pooled(t, place, 'when a request needs the memory'), 0);
    t.is(account(place.grant, 2).held - before, BigInt(100 * MIB));
  });
}

test('the rest of a destroyed pool is released by the next call that reads pools back', async (t) => {
  const place = await setUp(t);
  const { client } = place;
  const looks: (() => Promise<unknown>)[] = [
    () => client.must('info'),
    async () => client.must(`pool-free ${await client.must('pool-alloc 512')}`),
    async () => client.must(`free ${await client.must('pool-alloc 512')}`),
    async () => client.must(`destroy ${await client.must('create 1')}`),
  ];
  for (const [index, look] of looks.entries()) {
    await client.must('context 0');
    const stream = await client.must('stream');
    const pool = await client.must('pool-make');
    const at = await client.must(`pool-take ${pool} ${PIECE}`);
    place.node.control('lose', '0');
    await client.must(`stream-launch ${stream} ${KERNEL_US}`);
    await client.must(`pool-destroy ${pool}`);
    await client.must(`stream-free ${stream} ${at}`);
    t.true(pooled(t, place, 'behind the kernel') >= PIECE);
    place.node.control('recover', '0');
    await client.must(`stream-sync ${stream}`);
    await look();
    await client.must('context 0');
    t.true(pooled(t, place, `look ${index}`) < PIECE);
  }
});

test('a pool destroyed with memory in it cannot be used or destroyed again', async (t) => {
  const place = await setUp(t);
  const { client } = place;
  const own = await client.must('pool-default');
  const pool = await client.must('pool-make');
  await client.must(`pool-choose ${pool}`);
  const at = await client.must(`pool-take ${pool} ${PIECE}`);
  await client.must(`pool-destroy ${pool}`);
  t.is(await client.must('pool-chosen'), own);
  t.is((await client.ask(`pool-destroy ${pool}`))[0], INVALID_VALUE);
  await client.must(`set ${at} ${PIECE} 7`);
  t.deepEqual(await client.ask(`check ${at} ${PIECE} 7`), [0, 0], 'what it gave is there');
  t.is(pooled(t, place, 'and charged'), PIECE);
  await client.must(`free ${at}`);
  t.is(pooled(t, place, 'until it is freed'), 0);
  t.is((await client.ask(`pool-destroy ${own}`))[0], INVALID_VALUE, 'a device keeps its own');
  const kept = await client.must(`pool-alloc ${PIECE}`);
  t.is((await client.ask(`pool-destroy ${own}`))[0], INVALID_VALUE, 'with memory in it, too');
  await client.must(`pool-free ${kept}`);
  await client.must(`pool-alloc ${PIECE}`);
});

test('a destroyed pool ends with the last context of its GPU', async (t) => {
  const place = await setUp(t);
  const { client } = place;
  const pool = await client.must('pool-make');
  await client.must(`pool-take ${pool} ${PIECE}`);
  await client.must(`pool-destroy ${pool}`);
  t.is(pooled(t, place, 'its piece is there'), PIECE);
  await client.must('reset 0');
  t.is(pooled(t, place, 'no context is left'), 0);
  t.is(account(place.grant, 2).held, 0n);
});

// Entry point that fails once while a pool with memory is destroyed, or while its remaining memory is read.
for (const symbol of [
  'cuMemPoolTrimTo',
  'cuMemPoolGetAttribute',
  'cuThreadExchangeStreamCaptureMode',
  'cuMemPoolDestroy',
])
  test(`if ${symbol} fails a destroyed pool is charged too long, never too short`, async (t) => {
    const place = await setUp(t, { COTENANT_SIM_FAULTS: `${symbol}=999@2x3` });
    const { client } = place;
    const pool = await client.must('pool-make');
    const at = await client.must(`pool-take ${pool} ${PIECE}`);
    const [destroyed] = await client.ask(`pool-destroy ${pool}`);
    t.is(destroyed, 0);
    const covered = () => t.true(Number(account(place.grant, 2).pool) >= (books(place)?.pool ?? PIECE));
    covered();
    await client.must(`pool-free ${at}`);
    await client.must('sync'); // it is freed in stream order
    for (let look = 0; look < 5; look++) {
      covered();
      await client.must('info');
    }
    t.is(pooled(t, place, 'in the end'), 0);
  });

// The rule that the simulated driver keeps: NVIDIA's CUDA 3.2 reference manual says of cuCtxPushCurrent that "the
// context must be floating, i.e. not attached to any thread". CUDA 4.0 lifted that with cuCtxPushCurrent_v2.
test('stream-ordered allocation works on a created stream, and is charged', async (t) => {
  const place = await setUp(t);
  const { client } = place;
  const stream = await client.must('stream');
  const at = await client.must(`stream-alloc ${stream} ${PIECE}`);
  t.is(pooled(t, place, 'on a stream of the current context'), PIECE);
  await client.must(`stream-free ${stream} ${at}`);
  await client.must(`stream-sync ${stream}`);
  t.is((await client.ask(`stream-alloc ${stream} ${257 * MIB}`))[0], OUT_OF_MEMORY);
});

test('the simulated driver pushes an attached context only by the second form', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const client = await readyClient(t, node);
  t.is((await client.ask('push-again 1'))[0], INVALID_VALUE);
  t.is((await client.ask('push-again 2'))[0], 0);
});

// Requests to pools near a full grant. NVIDIA's CUDA Programming Guide, "Stream Ordered Memory Allocator": a pool serves
// requests from memory that it keeps, and asks the system for more only if that is not enough. How much more at a time
// is not documented: 32 MiB on an H100 (test/gpu/observed/h100-580.159.04.json, step rounding.pools), and here a granule,
// too.
import test, { type ExecutionContext } from 'ava';
import { type Client, OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { type GrantFiles, MIB, makeGrant } from '../../../support/product/grant.ts';
import { account } from '../../../support/product/ledger-row.ts';

const CONTEXT = 104;
const EVERYTHING = 2 ** 53;
const STEPS = { granule: ',pool-step=2Mi', '32 MiB': '' };

type Place = { readonly node: SimulatedNode; readonly grant: GrantFiles; readonly client: Client };

/** A program whose default pool keeps everything, in a grant of so many MiB beside its context. */
async function setUp(t: ExecutionContext, mib: number, gpu = `t4${STEPS.granule}`): Promise<Place> {
  const node = await startNode(t, '--gpu', gpu);
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: (CONTEXT + mib) * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  await client.must(`pool-keep ${EVERYTHING}`);
  return { node, grant, client };
}

const onGpu = ({ node }: Place) => (node.usage().clients[0]?.gpus[0]?.bytes ?? Number.NaN) / MIB - CONTEXT;
const most = ({ node }: Place) => (node.usage().clients[0]?.gpus[0]?.peak ?? Number.NaN) / MIB - CONTEXT;
const inPools = ({ node }: Place) => (node.usage().clients[0]?.gpus[0]?.pool ?? Number.NaN) / MIB;

for (const [step, option] of Object.entries(STEPS)) {
  test(`a pool that keeps enough serves a request in a full grant, steps of a ${step}`, async (t) => {
    const place = await setUp(t, 1944, `t4${option}`);
    const { client, grant } = place;
    const whole = await client.must(`pool-alloc ${1848 * MIB}`);
    await client.must(`pool-free ${whole}`);
    await client.must(`pool-alloc ${924 * MIB}`);
    const before = [inPools(place), account(grant).held];
    const second = await client.must(`pool-alloc ${924 * MIB}`);
    t.deepEqual([inPools(place), account(grant).held], before, 'without a new charge');
    for (let round = 0; round < 3; round++) {
      await client.must(`pool-free ${second}`);
      t.is(await client.must(`pool-alloc ${924 * MIB}`), second, 'the same piece again: it was not trimmed');
    }
    t.deepEqual([inPools(place), account(grant).held], before);
    t.is((await client.ask(`pool-alloc ${924 * MIB}`))[0], OUT_OF_MEMORY);
  });

  test(`four processes with pools do not pass their grant, steps of a ${step}`, async (t) => {
    const { node, grant, client } = await setUp(t, 2048 - CONTEXT, `t4${option}`);
    const clients = [client];
    while (clients.length < 4) clients.push(await readyClient(t, node, { preload: grant.cuda }));
    const used = () => (node.usage().gpus[0]?.usedBytes ?? Number.NaN) / MIB;
    for (const each of clients) await each.must(`pool-alloc ${8 * MIB}`);
    await Promise.all(
      clients.map(async (each) => {
        while ((await each.ask(`pool-alloc ${30 * MIB}`))[0] === 0) t.true(used() <= 2048);
      }),
    );
    const last = await Promise.all(clients.map((each) => each.ask(`pool-alloc ${2 * MIB}`)));
    t.true(used() <= 2048, `${used()} MiB`);
    t.true(used() > 2048 - 34, 'and fill it');
    t.true(last.every(([result]) => result === 0 || result === OUT_OF_MEMORY));
  });

  test(`a first request near a full grant does not pass it, steps of a ${step}`, async (t) => {
    const place = await setUp(t, 1000, `t4${option}`);
    const { client } = place;
    const held = await client.must(`alloc ${990 * MIB}`);
    const [result] = await client.ask(`pool-alloc ${2 * MIB}`);
    t.is(result, step === 'granule' ? 0 : OUT_OF_MEMORY, 'as far as it fits');
    t.is(onGpu(place), step === 'granule' ? 992 : 990);
    t.is(most(place), step === 'granule' ? 992 : 990 + 32, 'for the length of the call it holds one step');
    await client.must(`alloc ${4 * MIB}`);
    await client.must(`free ${held}`);
    await client.must(`alloc ${994 * MIB}`);
    t.is((await client.ask(`pool-alloc ${2 * MIB}`))[0], OUT_OF_MEMORY);
    t.is(most(place), step === 'granule' ? 1000 : 990 + 32, 'but once only: then the step is known');
  });
}

test('a pool whose unused memory is in pieces does not pass its grant', async (t) => {
  const place = await setUp(t, 1000);
  const { client, grant } = place;
  const pieces = [];
  for (const mib of [400, 100, 400]) pieces.push(await client.must(`pool-alloc ${mib * MIB}`));
  await client.must(`pool-free ${pieces[0]}`);
  await client.must(`pool-free ${pieces[2]}`);
  await client.must('sync'); // they are freed in stream order
  t.is(inPools(place), 900, 'it keeps all');
  const at = await client.must(`pool-alloc ${700 * MIB}`);
  t.is(onGpu(place), 800, 'the pieces had to go');
  t.is(Number(account(grant).pool), 800 * MIB);
  t.is((await client.ask(`pool-alloc ${300 * MIB}`))[0], OUT_OF_MEMORY);
  await client.must(`pool-free ${at}`);
  await client.must(`pool-alloc ${700 * MIB}`);
});

// CU_STREAM_LEGACY is 1 and names what NULL names in these entry points, CU_STREAM_PER_THREAD is 2.
for (const [streams, freed, asked] of [
  ['the null stream', 0, 0],
  ['the legacy stream by both handles', 1, 0],
  ['the stream of its thread', 2, 2],
] as const) {
  test(`a freed piece serves a request before the GPU reaches its free: ${streams}`, async (t) => {
    const place = await setUp(t, 1000);
    const { client, grant, node } = place;
    const at = await client.must(`pool-alloc ${700 * MIB} ${asked}`);
    node.control('lose', '0'); // its kernels stand still
    await client.must(`stream-launch ${freed} 1000`);
    await client.must(`pool-free ${at} ${freed}`);
    t.is(await client.must(`pool-alloc ${700 * MIB} ${asked}`), at, 'with seven tenths of the grant in use');
    t.is(Number(account(grant).pool), 700 * MIB);
    t.is((await client.ask(`pool-alloc ${700 * MIB} ${asked}`))[0], OUT_OF_MEMORY);
    node.control('recover', '0');
    await client.must('sync');
  });
}

test('a program cannot allocate uncharged from one pool more than can be known', async (t) => {
  const place = await setUp(t, 1024);
  const { client, grant } = place;
  const results = new Set<number>();
  for (let count = 0; count < 300; count++) {
    const [result, pool] = await client.ask('pool-make');
    if (result === 0) results.add((await client.ask(`pool-take ${pool} ${2 * MIB}`))[0] ?? -1);
  }
  t.deepEqual([...results], [0, OUT_OF_MEMORY]);
  t.is(Number(account(grant).pool), inPools(place) * MIB, 'all of it is charged');
});

// Modules near a full grant. NVIDIA's CUDA Driver API, cuModuleLoadData: CUDA_ERROR_OUT_OF_MEMORY if the module does
// not fit. The simulated driver takes memory for what a module has beyond 8 MiB.
import test, { type ExecutionContext } from 'ava';
import { type Client, OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { startNode } from '../../../support/native/node.ts';
import { SANITIZED } from '../../../support/native/random-programs.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';
import { account } from '../../../support/product/ledger-row.ts';

const CONTEXT = 104;
const FREE = 8;
const load = (client: Client, mib: number) => client.ask(`module ${(FREE + mib) * MIB}`);

/** A program in a grant of 1000 MiB beside its context, that has allocated so many. */
async function startProgram(t: ExecutionContext, allocated: number) {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: (CONTEXT + 1000) * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const block = await client.must(`alloc ${allocated * MIB}`);
  const charged = () => Number(account(grant).held) / MIB - CONTEXT;
  const code = () => (node.usage().clients.find(({ pid }) => pid === client.pid)?.gpus[0]?.code ?? 0) / MIB;
  return { node, client, block, charged, code };
}

test('a module beyond a full grant is out of memory, and loads once there is room', async (t) => {
  const { client, block, charged, code } = await startProgram(t, 1000);
  t.is((await load(client, 60))[0], OUT_OF_MEMORY);
  t.deepEqual([charged(), code()], [1000, 0], 'nothing is left of it');
  t.is((await load(client, 0))[0], 0, 'one that takes nothing beyond its context loads');
  await client.must(`free ${block}`);
  t.is((await load(client, 60))[0], 0);
  t.is(code(), 60);
});

test('modules that fit near a full grant load, and are charged until they are unloaded', async (t) => {
  const { client, charged, code } = await startProgram(t, 900);
  const [result, module] = await load(client, 60);
  t.is(result, 0);
  t.deepEqual([charged(), code()], [960, 60]);
  t.is((await load(client, 60))[0], OUT_OF_MEMORY);
  t.is((await load(client, 40))[0], 0, 'to the last granule');
  t.deepEqual([charged(), code()], [1000, 100]);
  await client.must(`unload ${module}`);
  t.deepEqual([charged(), code()], [940, 40]);
  await client.must(`alloc ${60 * MIB}`);
});

test('a module with more options than any program needs is charged like others', async (t) => {
  const { client, charged, code } = await startProgram(t, 900);
  const [result, module] = await client.ask(`module ${(FREE + 60) * MIB} 65`);
  t.is(result, 0);
  t.deepEqual([charged(), code()], [960, 60]);
  t.is((await client.ask(`module ${(FREE + 60) * MIB} 100`))[0], OUT_OF_MEMORY);
  await client.must(`unload ${module}`);
  t.is(charged(), 900);
});

test('the charge of modules goes with their context', async (t) => {
  const { client, charged } = await startProgram(t, 780);
  const other = await client.must('create 0');
  t.is((await load(client, 60))[0], 0);
  t.is(charged(), 780 + CONTEXT + 60);
  await client.must(`destroy ${other}`);
  await client.must('context 0');
  t.is(charged(), 780);
});

test('a module that fits is not refused for what others allocate and free meanwhile', async (t) => {
  const { node, client, charged } = await startProgram(t, 900);
  const other = await readyClient(t, node);
  let working = true;
  const neighbor = (async () => {
    while (working) await other.must(`free ${await other.must(`alloc ${512 * MIB}`)}`);
  })();
  for (let turn = 0; turn < (SANITIZED ? 8 : 40); turn++) {
    const [result, module] = await load(client, 30);
    t.is(result, 0, `turn ${turn}`);
    await client.must(`unload ${module}`);
  }
  working = false;
  await neighbor;
  t.is(charged(), 900);
});

// CUDA 3.2's reference manual, cuCtxAttach and cuCtxDetach: the context ends with its last use.
test('a context of the first form is charged until its last use is detached', async (t) => {
  const { client, charged } = await startProgram(t, 100);
  const context = await client.must('create-first 0');
  t.is(charged(), 100 + CONTEXT);
  await client.must('attach');
  await client.must(`detach ${context}`);
  t.is(charged(), 100 + CONTEXT, 'one use is left');
  await client.must(`detach ${context}`);
  t.is(charged(), 100);
});

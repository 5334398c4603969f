// Memory shared between processes or APIs: imported, opened by IPC, or pointed to in another process's pool. Its owner
// alone is charged, in the driver's count and in the ledger.
import test, { type ExecutionContext } from 'ava';
import { type Client, OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { allowFabric, eventually, type Kind, type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';
import { account, charged } from '../../../support/product/ledger-row.ts';

const [OPAQUE_FD, DMABUF_FD] = [1, 9];
const ROUNDS = 20;

const booked = (node: SimulatedNode, client: Client, kind: Kind | 'bytes') =>
  node.usage().clients.find(({ pid }) => pid === client.pid)?.gpus[0]?.[kind] ?? -1;

async function inGrant(t: ExecutionContext, env: Record<string, string> = {}, memoryBytes = 512 * MIB) {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes }]);
  const client = await readyClient(t, node, { preload: grant.cuda, env });
  return { node, grant, client };
}

/** Two processes in a grant each, as two containers on one GPU. */
async function twoContainers(t: ExecutionContext, gpu = 't4') {
  const node = await startNode(t, '--gpu', gpu);
  allowFabric(node);
  const [ours, theirs] = [0, 1].map(() => makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB }]));
  if (!ours || !theirs) throw new Error('two grants');
  const owner = await readyClient(t, node, { preload: ours.cuda });
  const other = await readyClient(t, node, { preload: theirs.cuda });
  return { node, ours, theirs, owner, other };
}

// ---- memory of another interface ----

test('memory of another API is charged from its import to its end, within the grant', async (t) => {
  const { node, grant, client } = await inGrant(t);
  const before = account(grant);
  t.is((await client.ask(`external ${(512 - 104 + 1) * MIB}`))[0], OUT_OF_MEMORY);
  t.is(booked(node, client, 'external'), 0, 'the driver was not asked');
  const memory = await client.must(`external ${33 * MIB}`);
  t.is(booked(node, client, 'external'), 34 * MIB);
  t.is(account(grant).held - before.held, BigInt(34 * MIB));
  t.is((await client.ask(`external ${(512 - 104 - 33) * MIB}`))[0], OUT_OF_MEMORY, 'beside what is held');
  const at = await client.must(`external-buffer ${memory} ${33 * MIB}`);
  const chain = await client.must(`external-chain ${memory} 1024 1024`);
  await client.must(`set ${at} ${33 * MIB} 6`);
  t.deepEqual(await client.ask(`check ${at} ${33 * MIB} 6`), [0, 0]);
  t.is((await client.ask(`external-chain ${memory} 10000 10000`))[0], 1, 'larger than the import');
  t.is(account(grant).held - before.held, BigInt(34 * MIB), 'views cost nothing');
  await client.must(`free ${at}`);
  await client.must(`chain-destroy ${chain}`);
  t.is(account(grant).held - before.held, BigInt(34 * MIB), 'and their end gives nothing back');
  await client.must(`external-destroy ${memory}`);
  t.deepEqual(charged(account(grant)), charged(before));
  t.is(booked(node, client, 'external'), 0);
  t.not((await client.ask(`external-destroy ${memory}`))[0], 0);
  t.deepEqual(charged(account(grant)), charged(before));
});

test('a failed import leaves no charge, one that fails to end keeps all of it', async (t) => {
  const faults = `cuImportExternalMemory=999@1x${ROUNDS},cuDestroyExternalMemory=719@1x${ROUNDS}`;
  const { node, grant, client } = await inGrant(t, { COTENANT_SIM_FAULTS: faults });
  const before = account(grant);
  for (let round = 0; round < ROUNDS; round++) {
    t.is((await client.ask(`external ${16 * MIB}`))[0], 999);
    t.deepEqual(account(grant), before);
  }
  const memory = await client.must(`external ${16 * MIB}`);
  const taken = account(grant);
  t.is(taken.held, BigInt(booked(node, client, 'bytes')));
  for (let round = 0; round < ROUNDS; round++) {
    t.is((await client.ask(`external-destroy ${memory}`))[0], 719);
    t.deepEqual(account(grant), taken);
  }
  await client.must(`external-destroy ${memory}`);
  t.deepEqual(charged(account(grant)), charged(before));
});

test('imports end with their context', async (t) => {
  const { node, grant, client } = await inGrant(t);
  const before = charged(account(grant));
  const second = await client.must('create 0');
  const memory = await client.must(`external ${16 * MIB}`);
  await client.must(`external-buffer ${memory} ${16 * MIB}`);
  await client.must(`destroy ${second}`);
  t.deepEqual(charged(account(grant)), before);
  t.is(booked(node, client, 'external'), 0);
});

test('physical memory imported as external memory is charged to its owner alone', async (t) => {
  const { node, ours, theirs, owner, other } = await twoContainers(t);
  const before = [charged(account(ours)), charged(account(theirs))];
  const [, at = 0, handle = 0] = await owner.ask(`vmm ${32 * MIB}`);
  const mine = account(ours);
  await owner.must(`set ${at} ${32 * MIB} 9`);
  const fd = await owner.must(`export ${handle}`);
  for (const type of [OPAQUE_FD, DMABUF_FD]) {
    for (const importer of [owner, other]) {
      const memory = await importer.must(`external-from ${owner.pid} ${fd} ${32 * MIB} ${type}`);
      const view = await importer.must(`external-buffer ${memory} ${32 * MIB}`);
      t.deepEqual(await importer.ask(`check ${view} ${32 * MIB} 9`), [0, 0], 'the same bytes');
      t.deepEqual(charged(account(ours)), charged(mine));
      t.deepEqual(charged(account(theirs)), before[1]);
      t.is(booked(node, owner, 'vmm'), 32 * MIB);
      t.is(booked(node, other, 'vmm') + booked(node, other, 'external') + booked(node, owner, 'external'), 0);
      await importer.must(`free ${view}`);
      await importer.must(`external-destroy ${memory}`);
    }
  }
  t.deepEqual(charged(account(ours)), charged(mine), 'nor does it get anything back');
  await owner.must(`close ${fd}`); // it would keep the memory
  await owner.must(`unmap ${at} ${32 * MIB}`);
  await owner.must(`unhandle ${handle}`);
  t.deepEqual(charged(account(ours)), before[0]);
  t.is(booked(node, owner, 'vmm') + booked(node, other, 'vmm'), 0, 'no process holds it');
});

test('physical memory that another process imports is charged to its owner once', async (t) => {
  const { node, ours, theirs, owner, other } = await twoContainers(t);
  const before = charged(account(theirs));
  const [, , handle] = await owner.ask(`vmm ${32 * MIB}`);
  const fd = await owner.must(`export ${handle}`);
  const first = await other.must(`import-from ${owner.pid} ${fd}`);
  const second = await other.must(`import-from ${owner.pid} ${fd}`);
  t.deepEqual(charged(account(theirs)), before);
  t.is(booked(node, owner, 'vmm'), 32 * MIB);
  for (const imported of [first, second]) await other.must(`unhandle ${imported}`);
  t.deepEqual(charged(account(theirs)), before);
  t.is(account(ours).held, BigInt(booked(node, owner, 'bytes')));
});

// ---- IPC ----

for (const form of ['new', 'old']) {
  test(`memory opened by IPC (${form} form) is charged to its owner once`, async (t) => {
    const { node, ours, theirs, owner, other } = await twoContainers(t);
    const before = charged(account(theirs));
    const at = await owner.must(`alloc ${48 * MIB}`);
    await owner.must(`set ${at} ${48 * MIB} 3`);
    const mine = account(ours);
    const [, ...handle] = await owner.ask(`ipc-get ${at}`);
    t.deepEqual((await owner.ask(`ipc-open ${form} ${handle.join(' ')}`))[0], 201, 'not in the process that shared it');
    const opened = await other.must(`ipc-open ${form} ${handle.join(' ')}`);
    t.is(await other.must(`ipc-open ${form} ${handle.join(' ')}`), opened, 'the same place again');
    t.deepEqual(await other.ask(`check ${opened} ${48 * MIB} 3`), [0, 0]);
    await other.must(`set ${opened} ${MIB} 4`);
    t.deepEqual(await owner.ask(`check ${at} ${MIB} 4`), [0, 0], 'the same bytes');
    t.is((await other.ask(`free ${opened}`))[0], 1);
    const alone = () => {
      t.deepEqual(charged(account(theirs)), before);
      t.deepEqual(charged(account(ours)), charged(mine));
      t.is(booked(node, owner, 'linear'), 48 * MIB);
      t.is(booked(node, other, 'linear'), 0);
    };
    alone();
    await other.must(`ipc-close ${opened}`);
    t.deepEqual(await other.ask(`check ${opened} 1 4`), [0, 0], 'it was opened twice');
    await other.must(`ipc-close ${opened}`);
    t.is((await other.ask(`check ${opened} 1 4`))[0], 1, 'closed');
    t.not((await other.ask(`ipc-close ${opened}`))[0], 0);
    alone();
    await owner.must(`free ${at}`);
    t.is(account(ours).held, BigInt(booked(node, owner, 'bytes')));
    t.is(booked(node, owner, 'linear'), 0);
  });
}

test('IPC shares small allocations by their offset, and linear memory only', async (t) => {
  const { owner, other } = await twoContainers(t);
  await owner.must('alloc 4096');
  const at = await owner.must('alloc 4096');
  await owner.must(`set ${at} 4096 8`);
  const [, ...handle] = await owner.ask(`ipc-get ${at}`);
  const opened = await other.must(`ipc-open new ${handle.join(' ')}`);
  t.deepEqual(await other.ask(`check ${opened} 4096 8`), [0, 0]);
  for (const form of ['managed', 'pool-alloc', 'vmm']) {
    const [result, pointer] = await owner.ask(`${form} ${4 * MIB}`);
    t.is(result, 0);
    t.is((await owner.ask(`ipc-get ${pointer}`))[0], 1, form);
  }
});

test('shared memory of a dead owner counts for the process that has it open', async (t) => {
  const { node, theirs, owner, other } = await twoContainers(t);
  const before = charged(account(theirs));
  const at = await owner.must(`alloc ${16 * MIB}`);
  const [, ...handle] = await owner.ask(`ipc-get ${at}`);
  const opened = await other.must(`ipc-open new ${handle.join(' ')}`);
  await owner.kill();
  await eventually(() => (booked(node, other, 'linear') === 16 * MIB ? true : undefined), 'the driver has them swap');
  t.deepEqual(charged(account(theirs)), before, 'the driver alone knows: a residual, which the agent finds');
  await other.must(`ipc-close ${opened}`);
  t.is(booked(node, other, 'linear'), 0);
});

test('memory opened by IPC is closed with the context that opened it', async (t) => {
  const { node, ours, owner, other } = await twoContainers(t);
  const at = await owner.must(`alloc ${16 * MIB}`);
  const mine = charged(account(ours));
  const [, ...handle] = await owner.ask(`ipc-get ${at}`);
  await other.must(`ipc-open new ${handle.join(' ')}`);
  await other.must('reset 0');
  t.is(booked(node, other, 'bytes'), 0);
  t.deepEqual(charged(account(ours)), mine);
  t.is(booked(node, owner, 'linear'), 16 * MIB);
});

// ---- pools ----

/** How a pool is exported and imported; UCX (cuda_ipc_md.c) and RMM do it by fabric handles, too. */
const POOL_FORMS: Record<string, (owner: Client) => Promise<Pooled>> = {
  'a descriptor': async (owner) => {
    const [result, pool, at, fd, ...words] = await owner.ask(`pool-share ${24 * MIB}`);
    return { result, pool, at, open: (other) => other.ask(`pool-open ${owner.pid} ${fd} ${words.join(' ')}`) };
  },
  'a fabric handle': async (owner) => {
    const [result, pool, at, ...words] = await owner.ask(`pool-share-fabric ${24 * MIB}`);
    return { result, pool, at, open: (other) => other.ask(`pool-open-fabric ${words.join(' ')}`) };
  },
};
type Pooled = Readonly<Record<'result' | 'pool' | 'at', number | undefined>> & {
  readonly open: (other: Client) => Promise<readonly number[]>;
};

for (const [form, share] of Object.entries(POOL_FORMS)) {
  test(`a pointer into another process's pool costs its importer nothing: ${form}`, async (t) => {
    const { node, ours, theirs, owner, other } = await twoContainers(t, 'h100');
    const before = [charged(account(ours)), charged(account(theirs))];
    const { result, pool, at, open } = await share(owner);
    t.is(result, 0);
    await owner.must(`set ${at} ${24 * MIB} 5`);
    const mine = account(ours);
    t.is(mine.held, BigInt(booked(node, owner, 'bytes')));
    t.is(mine.pool, BigInt(32 * MIB), 'in steps');
    const end = ['pool-free', 'free'];
    for (const command of end) {
      const [opened, pointer, imported] = await open(other);
      t.is(opened, 0);
      t.deepEqual(await other.ask(`check ${pointer} ${24 * MIB} 5`), [0, 0], 'the same bytes');
      t.not((await other.ask(`ipc-close ${pointer}`))[0], 0, 'not opened by IPC');
      t.deepEqual(charged(account(theirs)), before[1]);
      t.is(booked(node, other, 'pool'), 0);
      await other.must(`${command} ${pointer}`);
      t.is((await other.ask(`check ${pointer} 1 5`))[0], 1, command);
      await other.must(`pool-destroy ${imported}`);
      t.deepEqual(charged(account(theirs)), before[1]);
      t.deepEqual(charged(account(ours)), charged(mine));
    }
    await owner.must(`pool-free ${at}`);
    await owner.must('sync'); // it is freed in stream order
    await owner.must(`pool-destroy ${pool}`);
    t.deepEqual(charged(account(ours)), before[0]);
    t.is(booked(node, owner, 'pool'), 0);
  });
}

// NVIDIA's guide (Stream-Ordered Memory Allocator) has the import freed first. A process that frees in its pool first keeps
// the memory by the import, in the driver's count alone.
for (const [first, then, residual] of [
  ['imported', 'own', 0],
  ['own', 'imported', 32 * MIB],
] as const) {
  test(`a pool imported by its own process is charged once, ${first} memory freed first`, async (t) => {
    const { node, grant, client } = await inGrant(t);
    const unseen = () => booked(node, client, 'bytes') - Number(account(grant).held);
    const before = charged(account(grant));
    const [, pool, at, fd, ...words] = await client.ask(`pool-share ${24 * MIB}`);
    const [opened, pointer, imported] = await client.ask(`pool-open ${client.pid} ${fd} ${words.join(' ')}`);
    t.is(opened, 0);
    t.is(account(grant).pool, BigInt(32 * MIB), 'in steps');
    t.is(unseen(), 0);
    const parts = { imported: [pointer, imported], own: [at, pool] };
    const free = async ([memory, from]: readonly (number | undefined)[]) => {
      await client.must(`pool-free ${memory}`);
      await client.must('sync');
      await client.must(`pool-destroy ${from}`);
    };
    await free(parts[first]);
    t.is(unseen(), residual, 'a residual, which the agent finds');
    await free(parts[then]);
    t.is(unseen(), 0);
    t.deepEqual(charged(account(grant)), before);
  });
}

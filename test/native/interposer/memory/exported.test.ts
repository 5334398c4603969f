// Memory that a process exported and then gave up, while another process of its container may have it open. NVIDIA's
// CUDA driver API reference, cuMemRelease: memory is freed when all mappings are unmapped and all references to the
// handle, "including its shareable counterparts", are released. So its charge outlasts its owner's references.
import { closeSync, openSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { loadNative } from '../../../../src/agent/os/addon.ts';
import { type Client, OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { allowFabric, eventually, startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';

const SHARED = 64 * MIB;
const LEFT = 100 * MIB;
const CONTEXT = 104 * MIB;
/** CU_MEM_HANDLE_TYPE_FABRIC */
const FABRIC = 8;

/** `processes` of one container with a context each, and room for `LEFT` beside them. */
async function container(t: ExecutionContext, processes: number) {
  const node = await startNode(t, '--gpu', `h100,context=${CONTEXT / MIB}Mi`);
  allowFabric(node);
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: processes * CONTEXT + LEFT }]);
  const clients: Client[] = [];
  for (let k = 0; k < processes; k++) clients.push(await readyClient(t, node, { preload: grant.cuda }));
  const [owner, other, third] = clients;
  if (!owner) throw new Error('no process');
  return { node, grant, owner, other: other ?? owner, third: third ?? owner };
}

const free = async (client: Client) => (await client.ask('info'))[1];

type Measured = ReturnType<ReturnType<typeof loadNative>['readLedger']>['slots'][number];

/** What the agent does with the driver's count for each process. */
function measuring(t: ExecutionContext, folder: string) {
  const native = loadNative();
  const file = openSync(join(folder, 'ledger'), 'r');
  const page = openSync(join(folder, 'limits'), 'r+');
  t.teardown(() => {
    closeSync(file);
    closeSync(page);
  });
  return (bytesOf: (slot: Measured) => number) => {
    const entries = native.readLedger(file, 64, 1).slots.flatMap((slot) =>
      slot.gpus.map(({ signature, heldBytes }, gpu) => ({
        slot: slot.index,
        gpu,
        stamp: slot.stamp,
        residualBytes: bytesOf(slot) - heldBytes,
        releasedBytes: 0,
        signature,
        deadStamp: 0n,
      })),
    );
    native.writeFeedback(page, 1, entries);
  };
}

type Shared = { readonly giveUp: () => Promise<void>; readonly close: () => Promise<void> };
const FORMS: Record<string, (owner: Client, other: Client) => Promise<Shared>> = {
  'a descriptor': async (owner, other) => {
    const [, at = 0, handle = 0] = await owner.ask(`vmm ${SHARED}`);
    const file = await owner.must(`export ${handle}`);
    const imported = await other.must(`import-from ${owner.pid} ${file}`);
    return {
      async giveUp() {
        await owner.must(`unmap ${at} ${SHARED}`);
        await owner.must(`unhandle ${handle}`);
        await owner.must(`close ${file}`);
      },
      close: async () => void (await other.must(`unhandle ${imported}`)),
    };
  },
  'a fabric handle': async (owner, other) => {
    const [, at = 0, handle = 0] = await owner.ask(`vmm ${SHARED} ${FABRIC}`);
    const [, ...exported] = await owner.ask(`export-fabric ${handle}`);
    const imported = await other.must(`import-fabric ${exported.join(' ')}`);
    return {
      async giveUp() {
        await owner.must(`unmap ${at} ${SHARED}`);
        await owner.must(`unhandle ${handle}`);
      },
      close: async () => void (await other.must(`unhandle ${imported}`)),
    };
  },
  IPC: (owner, other) => byIpc(owner, other, 0),
  // As UCX does (src/uct/cuda/cuda_ipc/cuda_ipc_md.c), which opens the allocation from its first address on.
  'IPC of an address inside': (owner, other) => byIpc(owner, other, SHARED / 2),
};

async function byIpc(owner: Client, other: Client, offset: number): Promise<Shared> {
  const at = await owner.must(`alloc ${SHARED}`);
  await owner.must(`set ${at} ${SHARED} 7`);
  const [, ...handle] = await owner.ask(`ipc-get ${at + offset}`);
  const opened = await other.must(`ipc-open new ${handle.join(' ')}`);
  await other.must(`check ${opened} ${SHARED} 7`);
  return {
    giveUp: async () => void (await owner.must(`free ${at}`)),
    close: async () => void (await other.must(`ipc-close ${opened}`)),
  };
}

for (const [form, share] of Object.entries(FORMS)) {
  test(`what its owner gave up and a consumer has by ${form} is charged`, async (t) => {
    const { node, owner, other } = await container(t, 2);
    const { giveUp } = await share(owner, other);
    await giveUp();
    t.is(await free(owner), LEFT - SHARED);
    t.is((await owner.ask(`alloc ${SHARED}`))[0], OUT_OF_MEMORY);
    t.is((await other.ask(`alloc ${SHARED}`))[0], OUT_OF_MEMORY, 'nor can the consumer take as much');
    await owner.must(`alloc ${LEFT - SHARED}`);
    const held = node.usage().clients.reduce((sum, client) => sum + (client.gpus[0]?.bytes ?? 0), 0);
    t.is(held, 2 * CONTEXT + LEFT, 'the grant is full by the driver as well');
  });

  test(`what a dead owner had shared by ${form} is charged beside its consumer`, async (t) => {
    const { owner, other, third } = await container(t, 3);
    await share(owner, other);
    await owner.must(`alloc ${10 * MIB}`);
    await owner.kill();
    t.is(await free(third), CONTEXT + LEFT - SHARED, 'what it had not shared is free');
    t.is((await third.ask(`alloc ${CONTEXT + LEFT - SHARED + 2 * MIB}`))[0], OUT_OF_MEMORY);
    await third.must(`alloc ${CONTEXT + LEFT - SHARED}`);
  });

  test(`what was shared by ${form} is free at once where no process is left to have it`, async (t) => {
    const { node, grant, owner, other } = await container(t, 2);
    const { giveUp } = await share(owner, other);
    await other.kill();
    await giveUp();
    t.is(await free(owner), CONTEXT + LEFT);
    await share(owner, await readyClient(t, node, { preload: grant.cuda }));
    await owner.kill();
  });

  test(`the agent's measurement of its owner ends the charge of what was shared by ${form}`, async (t) => {
    const { grant, owner, other } = await container(t, 2);
    const { giveUp } = await share(owner, other);
    await giveUp();
    t.is(await free(owner), LEFT - SHARED);
    // The driver counts it for the consumer, as the agent finds.
    measuring(t, grant.folder)(({ pid }) => (pid === owner.pid ? CONTEXT : CONTEXT + SHARED));
    t.is(await free(owner), LEFT - SHARED, 'counted once, for the consumer');
    t.is((await owner.ask(`alloc ${SHARED}`))[0], OUT_OF_MEMORY);
    await owner.must(`alloc ${LEFT - SHARED}`);
  });
}

test('exported memory is charged as long as its descriptor is open, in one process', async (t) => {
  const { owner } = await container(t, 1);
  const [, at = 0, handle = 0] = await owner.ask(`vmm ${SHARED}`);
  const file = await owner.must(`export ${handle}`);
  await owner.must(`unmap ${at} ${SHARED}`);
  await owner.must(`unhandle ${handle}`);
  t.is(await free(owner), LEFT - SHARED);
  t.is((await owner.ask(`alloc ${SHARED}`))[0], OUT_OF_MEMORY);
  await owner.must(`close ${file}`);
  t.is(await free(owner), LEFT);
  await owner.must(`alloc ${LEFT}`);
});

// NVIDIA's cuda.core, VirtualMemoryFabricBufferDescriptor: the handle keeps nothing; an import does, whatever becomes of
// its exporter.
test('what a process imports of its own by a fabric handle stays charged', async (t) => {
  const { node, owner } = await container(t, 1);
  const make = async (bytes: number) => {
    const [, at = 0, handle = 0] = await owner.ask(`vmm ${bytes} ${FABRIC}`);
    const [, ...exported] = await owner.ask(`export-fabric ${handle}`);
    t.notDeepEqual(await owner.ask(`export-fabric ${handle}`), [0, ...exported], 'a second handle of it');
    const giveUp = async () => {
      await owner.must(`unmap ${at} ${bytes}`);
      await owner.must(`unhandle ${handle}`);
    };
    return { exported: exported.join(' '), giveUp };
  };
  const memory = await make(SHARED);
  for (let k = 0; k < 100; k++) await (await make(2 * MIB)).giveUp();
  t.is(await free(owner), LEFT - SHARED, 'the handles of memory that is gone keep nothing');
  const imported = await owner.must(`import-fabric ${memory.exported}`);
  await memory.giveUp();
  t.is(await free(owner), LEFT - SHARED);
  t.is((await owner.ask(`alloc ${LEFT - SHARED + 2 * MIB}`))[0], OUT_OF_MEMORY);
  await owner.must(`unhandle ${imported}`);
  t.is(await free(owner), LEFT);
  t.is(node.usage().gpus[0]?.usedBytes, CONTEXT, 'the driver has it back as well');
  t.not((await owner.ask(`import-fabric ${memory.exported}`))[0], 0);
  await owner.must(`alloc ${LEFT}`);
});

test('memory given up to another container by a fabric handle is free at once', async (t) => {
  const { node, owner } = await container(t, 1);
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: CONTEXT + LEFT }]);
  const stranger = await readyClient(t, node, { preload: grant.cuda });
  const shared = await FORMS['a fabric handle']?.(owner, stranger);
  t.is(await free(owner), LEFT - SHARED);
  t.is(await free(stranger), LEFT, 'charged once');
  await shared?.giveUp();
  t.is(await free(owner), LEFT);
});

// The bytes name the memory, and NVIDIA promises nothing of them: another process may export its import by others, which
// their first exporter does not know.
test('memory that comes back by other bytes is charged until the agent counts it', async (t) => {
  const { node, grant, owner, other } = await container(t, 2);
  const [, at = 0, handle = 0] = await owner.ask(`vmm ${SHARED} ${FABRIC}`);
  const [, ...exported] = await owner.ask(`export-fabric ${handle}`);
  const imported = await other.must(`import-fabric ${exported.join(' ')}`);
  const [result, ...again] = await other.ask(`export-fabric ${imported}`);
  t.is(result, 0);
  t.notDeepEqual(again, exported);
  const back = await owner.must(`import-fabric ${again.join(' ')}`);
  t.is(await free(owner), LEFT - SHARED, 'charged once');
  await other.must(`unhandle ${imported}`);
  await owner.must(`unmap ${at} ${SHARED}`);
  await owner.must(`unhandle ${handle}`);
  t.is(node.usage().gpus[0]?.usedBytes, 2 * CONTEXT + SHARED, 'the driver has it by the last import');
  t.is(await free(owner), LEFT - SHARED);
  t.is((await owner.ask(`alloc ${LEFT - SHARED + 2 * MIB}`))[0], OUT_OF_MEMORY);
  const measure = measuring(t, grant.folder);
  const measured = ({ pid }: Measured) => (pid === owner.pid ? CONTEXT + SHARED : CONTEXT);
  measure(measured);
  await owner.ask('info'); // the charge of what was given up ends with that measurement
  measure(measured);
  t.is(await free(owner), LEFT - SHARED, 'the driver says so');
  await owner.must(`unhandle ${back}`);
  t.is(node.usage().gpus[0]?.usedBytes, 2 * CONTEXT);
});

test('a program that starts again finds nothing of what the one before it exported', async (t) => {
  const { node, grant, owner } = await container(t, 1);
  for (let round = 0; round < 3; round++) {
    const program = round === 0 ? owner : await readyClient(t, node, { preload: grant.cuda });
    const [result, , handle] = await program.ask(`vmm ${LEFT}`);
    t.is(result, 0, `round ${round}`);
    await program.must(`export ${handle}`);
    await program.kill();
    await eventually(() => (node.usage().gpus[0]?.usedBytes === 0 ? true : undefined), 'the driver has freed it');
  }
});

test('hundreds of exports that were given up stay charged, and become free', async (t) => {
  const { owner, other } = await container(t, 2);
  for (let k = 0; k < 200; k++) {
    const [result, at, handle] = await owner.ask(`vmm ${2 * MIB}`);
    if (result !== 0) {
      t.true(k >= LEFT / (2 * MIB), 'the grant is full of what was given up');
      break;
    }
    const file = await owner.must(`export ${handle}`);
    await owner.must(`unmap ${at} ${2 * MIB}`);
    await owner.must(`unhandle ${handle}`);
    await owner.must(`close ${file}`);
  }
  t.is(await free(owner), 0);
  await other.kill();
  t.is(await free(owner), LEFT + CONTEXT);
});

// Processes that fork, clone, exec, exit, use threads and signals, or close the library while they use CUDA. The charge
// must stay right, and nothing may hang or crash.
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { testUnless } from '../../../support/gate.ts';
import { OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import {
  BUILD,
  EMULATED,
  environment,
  eventually,
  type SimulatedNode,
  startNode,
  temporaryFolder,
} from '../../../support/native/node.ts';
import { type GrantFiles, MIB, makeGrant } from '../../../support/product/grant.ts';

/** Offset of slots_used in struct cot_ledger_header (native/shared-memory/ledger.h). */
const SLOTS_USED_AT = 20;
const NOT_INITIALIZED = 3;

async function setUp(t: ExecutionContext, memoryBytes: number): Promise<{ node: SimulatedNode; grant: GrantFiles }> {
  const node = await startNode(t, '--gpu', 't4');
  return { node, grant: makeGrant(t, node, [{ gpu: 0, memoryBytes }]) };
}

/** Runs one scenario to its end, with the interposer if there is a `grant`: its numbers and its exit code. */
function live(
  node: SimulatedNode,
  grant: GrantFiles | undefined,
  ...args: string[]
): { numbers: number[]; code: number | null } {
  const env = environment({ LD_LIBRARY_PATH: node.lib }, grant?.cuda);
  const { stdout, stderr, status, signal } = spawnSync(join(BUILD, 'tests/process_scenarios'), args, {
    env,
    encoding: 'utf8',
    timeout: 60_000,
  });
  if (signal !== null) throw new Error(`${args.join(' ')}: ended by ${signal}: ${stderr}`);
  return { numbers: stdout.trim().split(' ').map(Number), code: status };
}

for (const way of ['fork', 'clone']) {
  test(`a child made by ${way} gets the driver's results, its parent's charge stays`, async (t) => {
    const { node, grant } = await setUp(t, 200 * MIB);
    const client = await readyClient(t, node, { preload: grant.cuda });
    const before = await client.ask('info');
    const [result, child = 0] = await client.ask(way);
    t.is(result, NOT_INITIALIZED);
    t.deepEqual(await client.ask('info'), before);
    process.kill(child, 'SIGKILL');
  });
}

test('after an exec the new program starts without charge, in the same slot', async (t) => {
  const { node, grant } = await setUp(t, 300 * MIB);
  const client = await readyClient(t, node, { preload: grant.cuda });
  for (let image = 0; image < 10; image += 1) {
    t.is((await client.ask(`alloc ${190 * MIB}`))[0], 0, `image ${image}`);
    t.is((await client.ask(`alloc ${10 * MIB}`))[0], OUT_OF_MEMORY);
    await client.must('exec');
    await client.must('init');
    await client.must('context 0');
  }
  // QEMU gives each program a time of its own at which its process started.
  if (!EMULATED) t.is(readFileSync(join(grant.folder, 'ledger')).readUInt32LE(SLOTS_USED_AT), 1);
});

const otherSpace = ['unshare', '--user', '--pid', '--fork', '--kill-child'];
const { status: unshared, stderr: whyNot } = spawnSync('unshare', [...otherSpace.slice(1), 'true'], {
  encoding: 'utf8',
});
for (const [where, within] of [
  ['of the same PID namespace', []],
  ['of another PID namespace', otherSpace],
] as const) {
  const reason = within.length > 0 && unshared !== 0 ? `no namespaces can be made here: ${whyNot?.trim()}` : undefined;
  testUnless(reason)(`closed descriptors do not release a charge: neighbor ${where}`, async (t) => {
    const { node, grant } = await setUp(t, 500 * MIB);
    const neighbor = await readyClient(t, node, { preload: grant.cuda, within });
    const client = await readyClient(t, node, { preload: grant.cuda });
    await client.must(`alloc ${200 * MIB}`);
    const [, child = 0] = await client.ask('fork');
    const endChild = () => spawnSync('kill', ['-9', String(child)]);
    t.teardown(endChild);
    await client.must('close-all');
    for (let round = 0; round < 3; round += 1)
      t.is((await neighbor.ask(`alloc ${200 * MIB}`))[0], OUT_OF_MEMORY, 'it lives');
    await client.kill();
    // So does a real driver: test/gpu/observed, nvml.zombies/killedWithForkedChild.
    t.is((await neighbor.ask(`alloc ${200 * MIB}`))[0], OUT_OF_MEMORY, 'its child keeps the memory');
    endChild();
    await eventually(
      async () => ((await neighbor.ask(`alloc ${200 * MIB}`))[0] === 0 ? true : undefined),
      'it is free after the child',
    );
  });
}

test('a process that closed all its descriptors still reaps a dead one', async (t) => {
  const { node, grant } = await setUp(t, 500 * MIB);
  const [first, second] = [
    await readyClient(t, node, { preload: grant.cuda }),
    await readyClient(t, node, { preload: grant.cuda }),
  ];
  await first.must(`alloc ${200 * MIB}`);
  await second.must('close-all');
  await first.kill();
  // Its driver has lost the node with its descriptors; whether the grant suffices is asked before.
  t.not((await second.ask(`alloc ${200 * MIB}`))[0], OUT_OF_MEMORY);
});

test('threads that allocate and free at once leave the charge as it was', async (t) => {
  const { node, grant } = await setUp(t, 150 * MIB);
  const { numbers, code } = live(node, grant, 'threads', '16', '2000');
  const [failures, before, after, refused = 0] = numbers;
  t.is(code, 0);
  t.is(failures, 0);
  t.is(after, before);
  t.true(refused > 0, 'they were in want');
});

for (const beside of ['behind the interposer', 'by the simulated driver alone']) {
  test(`memory of a context that another thread ends meanwhile is released: ${beside}`, async (t) => {
    const { node, grant } = await setUp(t, 400 * MIB);
    const { numbers, code } = live(node, beside.startsWith('behind') ? grant : undefined, 'ended', '3000');
    const [late = 0, failures, before, after] = numbers;
    t.is(code, 0);
    t.is(failures, 0);
    t.is(after, before);
    t.true(late > 0, 'some came too late');
  });
}

test('signals in the middle of calls change no result', async (t) => {
  const { node, grant } = await setUp(t, 120 * MIB);
  const { numbers, code } = live(node, grant, 'signals', '20000');
  const [failures, before, after, seen = 0] = numbers;
  t.is(code, 0);
  t.is(failures, 0);
  t.is(after, before);
  t.true(seen > 50, `${seen} signals`);
});

test('memory can be freed and queried while a program exits, its exit code stays', async (t) => {
  const { node, grant } = await setUp(t, 200 * MIB);
  const { numbers, code } = live(node, grant, 'exit');
  const [result, before = 0, after = 0] = numbers;
  t.deepEqual([code, result, after - before], [9, 0, 32 * MIB]);
});

test('a program that closes the library can still call what it looked up in it', async (t) => {
  const { node, grant } = await setUp(t, 200 * MIB);
  for (const library of ['libcuda.so.1', join(grant.folder, 'libcotenant.so')])
    t.deepEqual(live(node, grant, 'unload', library), { numbers: [0, 0], code: 0 }, library);
  const alone = temporaryFolder(t);
  const env = environment({ LD_LIBRARY_PATH: alone });
  const opened = spawnSync(join(BUILD, 'tests/process_scenarios'), ['unload', join(BUILD, 'libcotenant.so')], {
    env,
    encoding: 'utf8',
  });
  t.deepEqual([opened.status, opened.stdout], [0, '100 100\n'], 'opened by its path, where there is no driver');
});

// The driver's own memory limits for cgroups, as the simulated driver of version 615 has them after NVIDIA's documents:
// they hold for every process of the group, with or without the interposer. Not tested on NVIDIA's driver.
import { execFileSync } from 'node:child_process';
import { chmodSync, mkdirSync, rmdirSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { unifiedMount } from '../../../../src/agent/os/cgroup.ts';
import { testUnless } from '../../../support/gate.ts';
import { OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { BUILD, eventually, type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { MIB } from '../../../support/product/grant.ts';

const NONE = { result: 0, softBytes: 0, usedBytes: 0, hardBytes: null };
const NO_PERMISSION = 4;
const NOT_FOUND = 6;
const INVALID_ARGUMENT = 2;
const FUNCTION_NOT_FOUND = 13;

const mount = unifiedMount();

function reason(): string | undefined {
  if (process.getuid?.() !== 0) return 'it needs to be root to make groups';
  if (mount === undefined) return 'there is no unified cgroup hierarchy';
  return undefined;
}

let made = 0;

/** A cgroup that is removed with the test, once its processes have ended. */
function group(t: ExecutionContext, below = mount ?? ''): string {
  made += 1;
  const path = join(below, `limits-${process.pid}-${made}`);
  mkdirSync(path);
  t.teardown(() =>
    eventually(() => {
      try {
        rmdirSync(path);
        return true;
      } catch {
        return undefined;
      }
    }, `${path} is empty`),
  );
  return path;
}

type Answer = { result: number; softBytes?: number; usedBytes?: number; hardBytes?: number | null };

function limits(node: SimulatedNode, commands: readonly string[], uid = 0): Answer[] {
  const library = join(node.lib, 'libnvidia-ml.so.1');
  const options = { input: commands.map((line) => `${line}\n`).join(''), encoding: 'utf8', uid } as const;
  const text = execFileSync(join(BUILD, 'cotenant-limits'), ['--library', library], options);
  return text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Answer);
}

async function clientIn(t: ExecutionContext, node: SimulatedNode, folder: string) {
  const within = ['sh', '-c', `echo 0 > ${folder}/cgroup.procs && exec "$@"`, 'sh'];
  return readyClient(t, node, { within });
}

testUnless(reason())('the processes of a cgroup share its limit and see it as the size of the GPU', async (t) => {
  const node = await startNode(t, '--gpu', 'l4', '--driver', '615.71.09');
  const uuid = node.uuid(0);
  const folder = group(t);
  const one = await clientIn(t, node, folder);
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  const hard = 2 * context + 64 * MIB;
  t.deepEqual(limits(node, [`get ${uuid} ${folder}`, `set ${uuid} 0 ${hard} ${folder}`, `get ${uuid} ${folder}`]), [
    NONE,
    { result: 0 },
    { result: 0, softBytes: 0, usedBytes: context, hardBytes: hard },
  ]);
  const [, free, total] = await one.ask('info');
  t.deepEqual([free, total], [hard - context, hard]);
  const two = await clientIn(t, node, folder);
  await two.must(`alloc ${32 * MIB}`);
  t.is((await one.ask(`alloc ${34 * MIB}`))[0], OUT_OF_MEMORY);
  await one.must(`alloc ${32 * MIB}`);
  t.is((await two.ask(`alloc ${2 * MIB}`))[0], OUT_OF_MEMORY);
  t.is(limits(node, [`get ${uuid} ${folder}`])[0]?.usedBytes, hard);
  // A process outside the group is not limited, and managed memory is not counted.
  const other = await readyClient(t, node);
  await other.must(`alloc ${1024 * MIB}`);
  await two.must(`managed ${64 * MIB}`);
  await two.end();
  await one.must(`alloc ${32 * MIB}`);
  t.deepEqual(limits(node, [`set ${uuid} 0 max ${folder}`, `get ${uuid} ${folder}`]), [{ result: 0 }, NONE]);
  await one.must(`alloc ${256 * MIB}`);
});

testUnless(reason())('the nearest cgroup above a process counts; a limit below its usage frees nothing', async (t) => {
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'l4', '--driver', '615.71.09');
  const uuid = node.uuid(0);
  const outer = group(t);
  const inner = group(t, outer);
  const client = await clientIn(t, node, inner);
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  await client.must(`alloc ${64 * MIB}`);
  limits(node, [`set ${uuid} 0 ${context} ${outer}`]);
  t.is((await client.ask(`alloc ${2 * MIB}`))[0], OUT_OF_MEMORY, 'by the outer one');
  limits(node, [`set ${uuid} 0 ${context + 66 * MIB} ${inner}`]);
  await client.must(`alloc ${2 * MIB}`);
  t.is((await client.ask(`alloc ${2 * MIB}`))[0], OUT_OF_MEMORY);
  t.deepEqual(limits(node, [`get ${node.uuid(1)} ${inner}`]), [NONE], 'of another GPU');
});

testUnless(reason())('only root sets limits, only of cgroups, on a driver that supports them', async (t) => {
  const node = await startNode(t, '--gpu', 'l4', '--driver', '615.71.09');
  const uuid = node.uuid(0);
  const folder = group(t);
  chmodSync(node.folder, 0o755);
  t.deepEqual(limits(node, [`set ${uuid} 0 1048576 ${folder}`, `get ${uuid} ${folder}`], 65534), [
    { result: NO_PERMISSION },
    NONE,
  ]);
  t.deepEqual(
    limits(node, [`set ${uuid} 0 1 ${folder}/none`, `set ${uuid} 0 1 ${node.folder}`, `set ${uuid} 2 1 ${folder}`]),
    [{ result: NOT_FOUND }, { result: INVALID_ARGUMENT }, { result: INVALID_ARGUMENT }],
  );
  const old = await startNode(t, '--gpu', 'l4');
  t.deepEqual(limits(old, [`set ${old.uuid(0)} 0 1 ${folder}`]), [{ result: FUNCTION_NOT_FOUND }]);
});

test('unknown commands are refused', async (t) => {
  const node = await startNode(t, '--gpu', 'l4', '--driver', '615.71.09');
  for (const line of ['', 'get', 'get x', 'set x 1 2', 'set x 1 -2 /', 'put x /', ' x /'])
    t.throws(() => limits(node, [line]), { message: /want get UUID FOLDER/ }, line);
});

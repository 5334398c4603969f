// Programs of others, unmodified, on the simulated node: NVIDIA's Python driver bindings, nvidia-ml-py,
// gpustat and nvitop; outside a grant they see the GPU, inside one the slice.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { readyClient } from '../../support/native/client.ts';
import { BUILD, eventually, type SimulatedNode, startNode } from '../../support/native/node.ts';
import { type RunningAgent, runTenant, startAgent } from '../../support/product/agent.ts';
import { MIB } from '../../support/product/grant.ts';
import { pythonClients } from '../../support/toolchains/python.ts';

const clients = pythonClients();
const TOTAL = 24_570 * MIB; // of the simulated L4
const SLICE = 3072 * MIB;

/** Skips loudly where the packages cannot be had. */
const real = (title: string, implementation: (t: ExecutionContext, bin: string) => Promise<void>) => {
  if (!clients.ok) test.skip(`${title} (${clients.reason})`, () => {});
  else {
    test(title, async (t) => {
      t.timeout(120_000);
      await implementation(t, clients.bin);
    });
  }
};

/** Runs a program to its end; its output, its complaints and its code. */
async function complete(
  node: SimulatedNode,
  command: readonly string[],
): Promise<{ out: string; code: number | null }> {
  const [file = '', ...args] = command;
  const child = spawn(file, args, {
    env: { PATH: process.env.PATH ?? '', LD_LIBRARY_PATH: node.lib, HOME: node.folder, TERM: 'xterm', COLUMNS: '120' },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const parts: string[] = [];
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (part: Buffer) => parts.push(part.toString()));
  const [code] = (await once(child, 'close')) as [number | null];
  return { out: parts.join(''), code };
}

/** The same inside a grant of 3 GiB. */
async function inGrant(
  t: ExecutionContext,
  node: SimulatedNode,
  agent: RunningAgent,
  command: readonly string[],
): Promise<{ out: string; code: number | null }> {
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '3Gi', '--quiet'], ['env', 'TERM=xterm', ...command]);
  const lines: string[] = [];
  for (;;) {
    const line = await tenant.line().catch(() => undefined);
    if (line === undefined) break;
    lines.push(line);
  }
  const { code } = await tenant.ended;
  return { out: [...lines, ...tenant.output].join('\n'), code };
}

const script = (name: string) => join(import.meta.dirname, name);

type Driver = {
  gpus: number;
  name: string;
  total: number;
  info: [number, number];
  same: boolean;
  milliseconds: number;
  big: string;
  after: [number, number];
};

real("NVIDIA's Python driver bindings allocate, copy and launch on the simulated GPU", async (t, bin) => {
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'l4');
  const { out, code } = await complete(node, [join(bin, 'python'), script('driver.py'), String(TOTAL)]);
  t.is(code, 0, out);
  const answer = JSON.parse(out) as Driver;
  t.is(answer.gpus, 2);
  t.is(answer.name, 'NVIDIA L4');
  t.is(answer.info[1], answer.total);
  t.true(answer.total > 20_000 * MIB);
  t.true(answer.same);
  t.true(answer.milliseconds >= 2, '20 kernels of 100 us');
  t.is(answer.big, 'CUDA_ERROR_OUT_OF_MEMORY', 'more than the GPU has');
  t.is(node.usage().gpus[0]?.usedBytes, 0, 'and nothing is left behind');
});

real('the same program in a grant sees its share and is refused more', async (t, bin) => {
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'l4');
  const agent = await startAgent(t, node);
  const program = [join(bin, 'python'), script('driver.py')];
  const within = await inGrant(t, node, agent, [...program, String(2048 * MIB)]);
  t.is(within.code, 0, within.out);
  const first = JSON.parse(within.out) as Driver;
  t.is(first.gpus, 1);
  t.is(first.total, SLICE);
  t.is(first.info[1], SLICE);
  t.true(first.same);
  t.is(first.big, 'CUDA_SUCCESS');
  t.true(first.info[0] - first.after[0] >= 2050 * MIB, 'what it took is gone from its slice');
  const beyond = await inGrant(t, node, agent, [...program, String(SLICE)]);
  const second = JSON.parse(beyond.out) as Driver;
  t.is(second.big, 'CUDA_ERROR_OUT_OF_MEMORY');
  t.true(second.same);
});

type Gpu = {
  count: number;
  name: string;
  uuid: string;
  memory: [number, number, number];
  second: [number, number, number, number];
  processes: [number, number][];
  second_form: number[];
  /** Here and below: the text of the error where there is nothing to list. */
  detail: number[] | string;
  busy: number[] | string;
  busy_second: number[] | string;
  accounted: [number, number][];
  samples: string;
};

real('nvidia-ml-py shows the GPU outside a grant and the slice inside', async (t, bin) => {
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'l4');
  const agent = await startAgent(t, node);
  await agent.measured(2);
  const holder = await readyClient(t, node);
  await holder.must(`alloc ${1000 * MIB}`);
  const held = node.usage().clients.find((entry) => entry.pid === holder.pid)?.gpus[0]?.bytes ?? 0;
  const program = [join(bin, 'python'), script('nvml.py')];

  const outside = await complete(node, program);
  t.is(outside.code, 0, outside.out);
  const gpu = JSON.parse(outside.out) as Gpu;
  t.is(gpu.count, 2);
  t.is(gpu.uuid, node.uuid(0));
  t.is(gpu.second[0], node.usage().gpus[0]?.totalBytes ?? 0);
  t.is(gpu.second[2], held);
  t.is(gpu.memory[1], gpu.second[1] + gpu.second[2], 'the first form counts what the driver keeps as used');
  t.deepEqual(gpu.processes, [[holder.pid, held]]);

  const inside = await inGrant(t, node, agent, program);
  t.is(inside.code, 0, inside.out);
  const slice = JSON.parse(inside.out) as Gpu;
  t.is(slice.count, 1);
  t.is(slice.memory[0], SLICE);
  t.is(slice.second[0], SLICE);
  t.deepEqual(slice.processes, [], "another tenant's process is not its business");
  t.deepEqual([gpu.accounted, slice.accounted], [[[holder.pid, held]], []]);
  t.deepEqual([gpu.samples, slice.samples], ['some', 'Not Supported']);
});

type Counters = {
  readonly supported: boolean;
  readonly metrics: Readonly<Record<string, number | null>>;
  readonly refused?: string;
};

real("nvidia-ml-py reads a GPU's counters, and is refused by a GPU without them", async (t, bin) => {
  const node = await startNode(t, '--gpu', 'h100');
  node.control('activity', '0', 'tensor', '30');
  const holder = await readyClient(t, node);
  await holder.must('grid 66'); // half of its SMs
  const program = [join(bin, 'python'), script('gpm.py')];
  void holder.ask('spin 120000 5000').catch(() => {}); // it is killed at it
  const { out, code } = await complete(node, program);
  t.is(code, 0, out);
  const { supported, metrics } = JSON.parse(out) as Counters;
  t.true(supported);
  const [graphics, sm, occupancy, tensor, dram, fp32] = [1, 2, 3, 5, 10, 12].map((id) => metrics[id]);
  t.true(Number(graphics) > 20 && Number(graphics) <= 100, `${graphics} % of the time`);
  t.true(Math.abs(Number(sm) - Number(graphics) / 2) < 0.01, `${sm} % of the SMs`);
  t.true(Math.abs(Number(tensor) - Number(graphics) * 0.3) < 0.01, `${tensor} % of the tensor cores`);
  t.deepEqual([occupancy, dram, fp32], [null, null, null]);

  const older = await complete(await startNode(t, '--gpu', 'l4'), program);
  t.is(older.code, 0, older.out);
  t.deepEqual(JSON.parse(older.out), { supported: false, metrics: {}, refused: 'Not Supported' });
});

type Stat = {
  gpus: {
    name: string;
    'memory.total': number;
    'memory.used': number;
    processes: { pid: number; gpu_memory_usage: number }[];
  }[];
};

real('gpustat prints the GPUs, and in a grant the slice with its own process only', async (t, bin) => {
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'l4');
  const agent = await startAgent(t, node);
  await agent.measured(2);
  const other = await readyClient(t, node);
  await other.must(`alloc ${1000 * MIB}`);
  const outside = await complete(node, [join(bin, 'python'), join(bin, 'gpustat'), '--json']);
  t.is(outside.code, 0, outside.out);
  const gpus = (JSON.parse(outside.out) as Stat).gpus;
  t.is(gpus.length, 2);
  t.deepEqual(
    gpus[0]?.processes.map((entry) => entry.pid),
    [other.pid],
  );
  t.regex((await complete(node, [join(bin, 'python'), join(bin, 'gpustat')])).out, /NVIDIA L4/);

  const inside = await inGrant(t, node, agent, [join(bin, 'python'), join(bin, 'gpustat'), '--json']);
  t.is(inside.code, 0, inside.out);
  const [slice, ...more] = (JSON.parse(inside.out) as Stat).gpus;
  t.is(more.length, 0);
  t.is(slice?.['memory.total'], 3072);
  t.deepEqual(slice?.processes, []);
});

real('nvitop prints the GPUs, and in a grant the slice', async (t, bin) => {
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'l4');
  const agent = await startAgent(t, node);
  await agent.measured(2);
  const holder = await readyClient(t, node);
  await holder.must(`alloc ${1000 * MIB}`);
  const outside = await complete(node, [join(bin, 'python'), join(bin, 'nvitop'), '--once']);
  t.is(outside.code, 0, outside.out);
  t.regex(outside.out, /│ +0 +L4 /);
  t.regex(outside.out, / 1200MiB \/ 22\.49GiB /);
  t.true(outside.out.includes(String(holder.pid)));
  const inside = await inGrant(t, node, agent, [join(bin, 'python'), join(bin, 'nvitop'), '--once']);
  t.is(inside.code, 0, inside.out);
  t.regex(inside.out, / 0B \/ 3072MiB /);
  t.notRegex(inside.out, /│ +1 +L4 /);
  t.false(inside.out.includes(String(holder.pid)));
});

real("inside a grant a second program sees the first one's use, as in a container", async (t, bin) => {
  const node = await startNode(t, '--gpu', 'h100');
  const agent = await startAgent(t, node, { settings: { intervalMs: 200 } });
  const stranger = await readyClient(t, node);
  const client = join(BUILD, 'tests/client');
  const python = join(bin, 'python');
  const tools = [
    `${python} ${script('nvml.py')}`,
    `${python} ${join(bin, 'gpustat')} --json | tr -d '\\n'; echo`,
    `${python} ${join(bin, 'nvitop')} --once | grep -c "$first "`,
    `${python} ${join(bin, 'nvitop')} --once | grep -c "${stranger.pid} "`,
  ];
  const look = `read -r go; { ${tools.join('; ')}; } >&4`;
  const work = `printf 'init\\ncontext 0\\nalloc ${500 * MIB}\\nspin 120000 5000\\n'`;
  const tenant = runTenant(
    t,
    node,
    agent,
    ['--gpu-memory', '3Gi', '--name', 'pair'],
    [
      '/bin/sh',
      '-c',
      `exec 4>&1; mkfifo "$0"; ${client} <"$0" >/dev/null & first=$!; exec 3>"$0"; rm "$0"; ${work} >&3; ${look}; kill -9 $first`,
      join(node.folder, 'fifo'),
    ],
  );
  void stranger.ask('spin 120000 5000').catch(() => {}); // it is killed at it
  const first = await eventually(() => {
    const found = node.usage().clients.find((entry) => entry.command === 'client' && entry.pid !== stranger.pid);
    const gpu = found?.gpus[0];
    return found && gpu && gpu.bytes > 500 * MIB && gpu.smNs > 1e9 ? { pid: found.pid, bytes: gpu.bytes } : undefined;
  }, 'the first one holds memory and is busy');
  tenant.write('go');
  const slice = JSON.parse(await tenant.line()) as Gpu;
  t.is(slice.memory[1], first.bytes);
  t.deepEqual(slice.processes, [[first.pid, first.bytes]]);
  for (const pids of [slice.second_form, slice.detail, slice.busy, slice.busy_second]) t.deepEqual(pids, [first.pid]);
  t.deepEqual(slice.accounted, [[first.pid, first.bytes]]);
  t.is(slice.samples, 'Not Supported');
  const [stat] = (JSON.parse(await tenant.line()) as Stat).gpus;
  t.deepEqual(
    stat?.processes.map((entry) => [entry.pid, entry.gpu_memory_usage]),
    [[first.pid, Math.floor(first.bytes / MIB)]],
  );
  t.is(await tenant.line(), '1', 'nvitop lists it');
  t.is(await tenant.line(), '0', 'and no other process');
});

// What the agent does when it cannot see, and when it cannot write: what it does not see is not gone, and what fails
// for one grant is no matter of the others'.
import { mkdirSync, readdirSync, readFileSync, rmdirSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import type { Grant } from '../../../../src/agent/grants/grant.ts';
import { ask } from '../../../../src/cli/lib/agent-client.ts';
import { OUT_OF_MEMORY } from '../../../support/native/client.ts';
import { gpuOf } from '../../../support/native/listed-processes.ts';
import { BUILD, eventually, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { actedOn, type RunningAgent, runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');
/** The preload is what brings the interposer in: without it a program reaches the driver directly. */
const DODGE = ['env', '-u', 'LD_PRELOAD'];
/** Takes the unified hierarchy away from what it starts; needs no rights where making groups needs rights. */
const NO_GROUPS =
  process.getuid?.() === 0 ? ['unshare', '--mount', '/bin/sh', '-c', 'umount -l -a -t cgroup2; exec "$@"', 'sh'] : [];

/** Waits for so many samples that began from now on. */
async function samples(agent: RunningAgent, count: number): Promise<void> {
  let last = Date.now();
  for (let seen = 0; seen < count; seen++) {
    last = await eventually(async () => {
      const atMs = (await agent.snapshot())?.atMs ?? 0;
      return atMs > last ? atMs : undefined;
    }, 'another sample');
  }
}

const grantsOf = (agent: RunningAgent): string[] => readdirSync(join(agent.state, 'grants'));

const heldOf = (agent: RunningAgent, id: string): number | undefined =>
  (JSON.parse(readFileSync(join(agent.state, 'grants', id, 'grant.json'), 'utf8')) as Grant).gpus[0]?.heldBytes;

/** Nothing can be written under this name while a folder has it. Returns what makes an end of that. */
function block(path: string): () => void {
  mkdirSync(path, { recursive: true });
  return () => rmdirSync(path);
}

test('a process on a GPU that is out of sight keeps the grant of its ended owner', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100, urgentIntervalMs: 100 } });
  // It has a session of its own, and lives on without those that started it.
  const script = `mkfifo "$0"; (setsid ${CLIENT} <>"$0" >/dev/null &); exec 3>"$0"; while read -r line; do echo "$line" >&3; done`;
  const fifo = join(temporaryFolder(t), 'orders');
  const command = ['/bin/sh', '-c', script, fifo];
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'left'], command, { prefix: NO_GROUPS });
  for (const line of ['init', 'context 0', `alloc ${200 * MIB}`]) tenant.write(line);
  const holder = async () => {
    const container = (await agent.snapshot())?.containers.find(({ usedBytes }) => usedBytes >= 200 * MIB);
    return container?.processes[0]?.pid;
  };
  const pid = await eventually(holder, 'it holds memory');
  const end = () => node.usage().clients.some((one) => one.pid === pid && one.alive) && process.kill(pid, 'SIGKILL');
  t.teardown(end);
  tenant.child.kill('SIGKILL');
  await tenant.ended;

  node.control('lose', '0');
  await eventually(async () => (await agent.snapshot())?.devices[0]?.gpu.healthy === false || undefined, 'it is lost');
  await samples(agent, 6);
  t.is(grantsOf(agent).length, 1);
  node.control('recover', '0');
  t.is(await eventually(holder, 'it is seen again'), pid);
  end();
  await eventually(() => grantsOf(agent).length === 0 || undefined, 'the grant ends with its last process');
});

test('a GPU out of sight cancels no stop in progress and counts as no released memory', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node, {
    settings: {
      intervalMs: 100,
      urgentIntervalMs: 100,
      'enforcement.hardSamples': 1000,
      // Half of it is from the closed gate to the stop, in which the GPU is lost, however busy the machine is.
      'enforcement.softSeconds': 30,
    },
  });
  const rogue = runTenant(t, node, agent, ['--gpu-memory', '256Mi', '--name', 'rogue'], [...DODGE, CLIENT]);
  for (const command of ['init', 'context 0', `alloc ${512 * MIB}`]) await tell(rogue, command);
  const done = () => actedOn(agent.audit()).map(({ action }) => action);
  await eventually(() => done().includes('close-gate') || undefined, 'its gate is closed', 60_000);
  node.control('lose', '0');
  await eventually(async () => (await agent.snapshot())?.devices[0]?.gpu.healthy === false || undefined, 'it is lost');
  await samples(agent, 6);
  t.deepEqual(done(), ['warn', 'close-gate']);
  node.control('recover', '0');
  t.is((await rogue.ended).code, 143);
  t.deepEqual(done().slice(0, 3), ['warn', 'close-gate', 'terminate']);
});

test("when one grant's record cannot be written, other stops and grants still work", async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 't4');
  const settings = { intervalMs: 100, urgentIntervalMs: 100, silenceMs: 4000 };
  const agent = await startAgent(t, node, { settings });
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '2Gi', '--name', 'shrunk'], [CLIENT]);
  for (const command of ['init', 'context 0', `alloc ${500 * MIB}`]) t.is((await tell(tenant, command))[0], 0);
  const [, more] = await tell(tenant, `alloc ${800 * MIB}`);
  const id = await eventually(async () => (await agent.snapshot())?.containers[0]?.grantId, 'it is seen');
  t.is((await ask(agent.state, 'PATCH', `/v1/grants/${id}`, { memoryBytes: 512 * MIB })).status, 200);
  const held = await eventually(() => {
    const bytes = heldOf(agent, id) ?? 0;
    return bytes < 2048 * MIB ? bytes : undefined;
  }, 'it comes down to what is held');
  const unblock = block(join(agent.state, 'grants', id, 'grant.json.new'));
  t.is((await tell(tenant, `free ${more}`))[0], 0);
  const problems = () =>
    agent.log.filter((line) => /cannot save the amount that the container released: EISDIR/.test(line));
  await eventually(() => problems().length > 0 || undefined, 'it is said');
  t.is(heldOf(agent, id), held);

  const rogue = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'rogue'], [...DODGE, CLIENT]);
  for (const command of ['init', 'context 0', `alloc ${2000 * MIB}`]) await tell(rogue, command);
  t.is((await rogue.ended).code, 137);
  const labels = { pod: 'rogue', reason: 'bypass', result: 'released' };
  await eventually(
    async () => (await agent.metric('cotenant_container_kills_total', labels)) === 1 || undefined,
    'the stop is counted',
  );
  // Longer than samples may be away before no pod gets a grant any more.
  const stopped = Date.now();
  await eventually(
    async () => ((await agent.snapshot())?.atMs ?? 0) > stopped + settings.silenceMs + 500 || undefined,
    'samples go on',
  );
  const next = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'next'], [CLIENT]);
  t.is((await tell(next, 'init'))[0], 0);
  t.is(problems().length, 1, 'what lasts is said once');

  unblock();
  await eventually(() => (heldOf(agent, id) ?? held) < held || undefined, 'it is written down once it can be');
  t.deepEqual(
    agent.audit().filter(({ pod }) => pod === 'shrunk'),
    [],
  );
});

test('a grant that cannot be written down keeps the size that it has', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100 } });
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '512Mi', '--name', 'one'], [CLIENT]);
  for (const command of ['init', 'context 0']) t.is((await tell(tenant, command))[0], 0);
  const id = await eventually(async () => (await agent.snapshot())?.containers[0]?.grantId, 'it is seen');
  // Its last step fails, when the page has been written.
  const path = join(agent.state, 'grants', id, 'grant.json');
  const kept = readFileSync(path, 'utf8');
  rmSync(path);
  const unblock = block(path);
  t.is((await ask(agent.state, 'PATCH', `/v1/grants/${id}`, { memoryBytes: 2048 * MIB })).status, 500);
  unblock();
  writeFileSync(path, kept);
  t.is((await tell(tenant, `alloc ${1024 * MIB}`))[0], OUT_OF_MEMORY);
  await samples(agent, 2);
  t.is((await agent.snapshot())?.containers[0]?.limitBytes, 512 * MIB);
  t.is((await ask(agent.state, 'PATCH', `/v1/grants/${id}`, { memoryBytes: 2048 * MIB })).status, 200);
  t.is((await tell(tenant, `alloc ${1024 * MIB}`))[0], 0);
});

test('a grant whose page cannot be written is not recorded with another size', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node);
  runTenant(t, node, agent, ['--gpu-memory', '512Mi', '--name', 'one'], ['sleep', '600']);
  const id = await eventually(async () => (await agent.snapshot())?.containers[0]?.grantId, 'it is seen');
  const folder = join(agent.state, 'grants', id);
  const kept = readFileSync(join(folder, 'grant.json'), 'utf8');
  truncateSync(join(folder, 'limits'), 100);
  t.is((await ask(agent.state, 'PATCH', `/v1/grants/${id}`, { memoryBytes: 2048 * MIB })).status, 500);
  t.is(readFileSync(join(folder, 'grant.json'), 'utf8'), kept);
});

test('measurements are used although they cannot be saved, and are saved once possible', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const state = join(temporaryFolder(t), 'state');
  const unblock = block(join(state, 'profiles.json.new'));
  const agent = await startAgent(t, node, { state, settings: { intervalMs: 100 } });
  const problems = () => agent.log.filter((line) => /cannot store GPU profiles for the next agent: EISDIR/.test(line));
  await eventually(() => problems().length > 0 || undefined, 'it is said');
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '512Mi', '--name', 'one'], [CLIENT]);
  t.is((await tell(tenant, 'init'))[0], 0);
  await samples(agent, 5);
  t.is(problems().length, 1);
  t.is(agent.child.exitCode, null);
  unblock();
  await agent.measured(1);
});

test('process-list entries without a process are counted; the GPU is still reported', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 't4');
  const { library, raw } = gpuOf(t);
  const entries = Buffer.alloc(2 * 24);
  entries.writeBigUInt64LE(BigInt(700 * MIB), 8);
  entries.writeUInt32LE(process.pid, 24);
  entries.writeBigUInt64LE(BigInt(512 * MIB), 32);
  raw('_v3', 0, 2, entries);
  const agent = await startAgent(t, node, { library, settings: { intervalMs: 100, calibrate: false } });
  const counted = (reason: string) => agent.metric('cotenant_exporter_attribution_failures_total', { reason });
  await eventually(async () => ((await counted('no_pid')) ?? 0) > 1 || undefined, 'the entry without a pid');
  t.is(await agent.metric('cotenant_device_processes', { type: 'compute' }), 1);
  t.is(await counted('memory_not_available'), 0);
});

test('an unknown error of any driver call ends no agent; the metrics report it', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 't4');
  const settings = { intervalMs: 100, urgentIntervalMs: 100, calibrate: false };
  const begin = (faults: readonly string[]) =>
    startAgent(t, node, { settings, env: { COTENANT_SIM_FAULTS: faults.join(',') } });
  const errors = (agent: RunningAgent, call: string) =>
    agent.metric('cotenant_exporter_nvml_errors_total', { call, code: '999' });

  const blind = await begin(['nvmlInit_v2=999']);
  await eventually(async () => ((await errors(blind, 'nvmlInit_v2')) ?? 0) >= 2 || undefined, 'asked again', 60_000);
  t.is(await blind.metric('cotenant_up', {}), 0);
  t.true(blind.log.some((line) => line.endsWith('NVML does not start: Unknown Error (999)')));
  t.is(blind.child.exitCode, null);
  await blind.stop();

  // Each after it has answered for a while. Utilization is read once a second.
  const calls = [
    'nvmlDeviceGetMemoryInfo_v2',
    'nvmlDeviceGetComputeRunningProcesses_v3',
    'nvmlDeviceGetGraphicsRunningProcesses_v3',
    'nvmlDeviceGetProcessesUtilizationInfo',
    'nvmlDeviceGetUtilizationRates',
  ];
  const after = (call: string, index: number) => (call.endsWith('UtilizationInfo') ? 4 : 20 + 20 * index);
  const agent = await begin(calls.map((call, index) => `${call}=999@${after(call, index)}x2`));
  for (const call of calls)
    await eventually(async () => (await errors(agent, call)) === 2 || undefined, `${call} has failed`, 60_000);
  await eventually(async () => (await agent.metric('cotenant_up')) === 1 || undefined, 'all of it is reported again');
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'after'], [CLIENT]);
  for (const line of ['init', 'context 0', `alloc ${300 * MIB}`]) t.is((await tell(tenant, line))[0], 0, line);
  await eventually(
    async () =>
      ((await agent.metric('cotenant_container_memory_used_bytes', { pod: 'after' })) ?? 0) > 300 * MIB || undefined,
    'the users of the GPU are reported',
  );
  t.is(agent.child.exitCode, null);
});

test("use of a GPU outside the grant is foreign use under the grant's names; no stop", async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 't4', '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100, urgentIntervalMs: 100, calibrate: false } });
  const command = [...DODGE, '-u', 'CUDA_VISIBLE_DEVICES', CLIENT];
  const flags = ['--gpu-memory', '256Mi', '--name', 'stray'];
  const tenant = runTenant(t, node, agent, flags, command);
  const container = await eventually(async () => (await agent.snapshot())?.containers[0], 'its grant');
  const elsewhere = 1 - (container.gpuIndex ?? Number.NaN);
  const other = node.uuid(elsewhere);
  for (const line of ['init', `context ${elsewhere}`, `alloc ${512 * MIB}`]) await tell(tenant, line);
  const labels = { namespace: container.namespace, pod: 'stray', gpu_uuid: other };
  // A sample may fall between the context and the allocation.
  await eventually(
    async () => ((await agent.metric('cotenant_foreign_memory_used_bytes', labels)) ?? 0) >= 512 * MIB || undefined,
    'the context and the allocation are shown',
  );
  await samples(agent, 6);
  t.is(await agent.metric('cotenant_device_memory_unattributed_bytes', { gpu_uuid: other }), 0);
  t.deepEqual(agent.audit(), []);
  t.is(await agent.metric('cotenant_container_memory_used_bytes', { pod: 'stray' }), 0);
  await tell(tenant, 'spin 300 100');
  await eventually(
    async () => ((await agent.metric('cotenant_foreign_sm_seconds_total', labels)) ?? 0) > 0 || undefined,
    'its compute time, too',
  );
});

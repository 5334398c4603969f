// Drivers from 418 on, whose libraries lack what came later: the agent starts, publishes what they tell, holds grants
// by it, and names what they have not.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import test from 'ava';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const SETTINGS = { intervalMs: 100, urgentIntervalMs: 100, calibrate: false, processMetrics: true };
const CLIENT = join(BUILD, 'tests/client');
const LIST = 'nvmlDeviceGetComputeRunningProcesses';
const MPS_LIST = 'nvmlDeviceGetMPSComputeRunningProcesses';
const MIG = 'nvmlDeviceGetMigMode';
const ROWS = 'nvmlDeviceGetRemappedRows';
const COUNTERS = 'nvmlGpmQueryDeviceSupport';

/** Of each driver: the newest form of its list of processes, whether reserved memory is reported apart, and what it is
 * said not to have. */
const DRIVERS: readonly [driver: string, list: string, reserved: boolean, absent: readonly string[]][] = [
  ['418.226.00', LIST, false, [MPS_LIST, 'nvmlDeviceGetMigDeviceHandleByIndex', ROWS, COUNTERS]],
  ['450.248.02', LIST, false, [MPS_LIST, COUNTERS]],
  ['470.256.02', `${LIST}_v2`, false, [COUNTERS]],
  ['510.108.03', `${LIST}_v3`, true, [COUNTERS]],
  ['530.41.03', `${LIST}_v3`, true, []],
  ['535.86.10', `${LIST}_v3`, true, []],
  ['550.54.15', `${LIST}_v3`, true, []],
];

for (const [driver, list, reserved, absent] of DRIVERS) {
  test(`a node with driver ${driver}`, async (t) => {
    t.timeout(120_000);
    const node = await startNode(t, '--gpu', 'a100', '--driver', driver);
    const symbols = execFileSync('nm', ['-D', '--defined-only', join(node.lib, 'libnvidia-ml.so.1')], {
      encoding: 'utf8',
    }).split('\n');
    const lists = symbols.flatMap((line) => line.split(' ').filter((name) => name.startsWith(LIST)));
    t.is(lists.toSorted().at(-1), list, 'what this library has');

    const agent = await startAgent(t, node, { settings: SETTINGS });
    t.is(await agent.metric('cotenant_up'), 1);
    const tenant = async (name: string, mib: number, prefix: readonly string[] = []) => {
      const started = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', name], [...prefix, CLIENT]);
      await tell(started, 'init');
      await tell(started, 'context 0');
      t.is((await tell(started, `alloc ${mib * MIB}`))[0], 0);
      return started;
    };
    const names = ['one', 'two', 'three'];
    const tenants = await Promise.all(names.map((name, index) => tenant(name, (index + 1) * 100)));
    const books = node.usage();
    const held = books.clients.filter(({ command }) => command === 'client');
    const ofProcess = async (pid: number) => agent.metric('cotenant_process_memory_used_bytes', { pid: String(pid) });
    t.is(held.length, names.length);
    for (const { pid, gpus } of held)
      await eventually(async () => (await ofProcess(pid)) === gpus[0]?.bytes || undefined, `what ${pid} holds`);
    const gpu = books.gpus[0];
    t.is(await agent.metric('cotenant_device_memory_total_bytes'), gpu?.totalBytes);
    t.is(await agent.metric('cotenant_device_memory_reserved_bytes'), reserved ? gpu?.reservedBytes : undefined);
    const busy = tenants[0] && tell(tenants[0], 'spin 3000 500');
    const sm = () => agent.metric('cotenant_container_sm_seconds_total', { pod: 'one' });
    await eventually(async () => ((await sm()) ?? 0) > 0 || undefined, 'its use of the SMs');
    await busy;
    const rogue = await tenant('rogue', 1500, ['env', '-u', 'LD_PRELOAD']);
    t.is((await rogue.ended).code, 137, 'who goes past the interposer is stopped');
    t.deepEqual(
      agent.audit().flatMap(({ action, pod }) => (action === 'kill' ? [pod] : [])),
      ['rogue'],
    );
    t.is(await agent.metric('cotenant_exporter_nvml_errors_total', { code: '13' }), undefined);
    const said = agent.log.filter((line) => line.includes(' does not have nvml'));
    t.is(said.length, absent.length > 0 ? 1 : 0, said.join('\n'));
    for (const name of absent) t.true(said[0]?.includes(name), `${name}: ${said[0]}`);
    for (const name of [MIG, LIST, 'nvmlDeviceGetMemoryInfo'].filter((one) => !absent.includes(one)))
      t.notRegex(said[0] ?? '', new RegExp(`${name}(_v\\d)?\\b`), 'what it has in another form is not missed');
  });
}

test('grants fill the GPU of a driver that does not report its reserve', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 't4', '--driver', '470.256.02');
  const agent = await startAgent(t, node, { settings: { ...SETTINGS, calibrate: true } });
  const reserved = () => agent.metric('cotenant_device_memory_reserved_bytes');
  const gpu = node.usage().gpus[0];
  await eventually(async () => (await reserved()) === gpu?.reservedBytes || undefined, 'the calibrated reserve');
  t.is(await agent.metric('cotenant_device_memory_used_bytes'), 0, 'the reserve is not used as well');
  const half = node.usable(0) / MIB / 2;
  const fill = async (name: string) => {
    const tenant = runTenant(t, node, agent, ['--gpu-memory', `${half}Mi`, '--name', name], [CLIENT]);
    await tell(tenant, 'init');
    await tell(tenant, 'context 0');
    const [free = 0] = (await tell(tenant, 'info')).slice(1);
    t.is(free, half * MIB - (gpu?.contextBytes ?? 0), name);
    t.is((await tell(tenant, `alloc ${free}`))[0], 0, `${name} gets all of its grant`);
  };
  await fill('first');
  await fill('second');
});

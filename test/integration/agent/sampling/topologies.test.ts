// Machines on which the driver does not tell everything: the agent starts on each, says what is missing, and makes up
// nothing.
import { spawn } from 'node:child_process';
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import test from 'ava';
import { unseenProcesses } from '../../../../src/agent/os/pid-namespace.ts';
import { namespacesReason, testUnless } from '../../../support/gate.ts';
import { eventually, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { runTenant, startAgent } from '../../../support/product/agent.ts';
import { mainOf } from '../../../support/product/image.ts';
import { OWN_NAMESPACES } from '../lifecycle/soak-offenders.ts';

const all = (result: number, ...names: readonly string[]) => names.map((name) => `${name}=${result}`).join(',');
const inForms = (name: string) => [name, `${name}_v2`, `${name}_v3`];
const NOT_SUPPORTED = 3;

const MACHINES = [
  {
    what: 'unified memory without a size',
    faults: all(NOT_SUPPORTED, 'nvmlDeviceGetMemoryInfo', 'nvmlDeviceGetMemoryInfo_v2'),
    says: /the driver does not report its memory size: nothing can be granted on it$/,
    refused: /the driver does not report how much memory GPU-\S+ has/,
    absent: ['cotenant_device_memory_total_bytes', 'cotenant_device_memory_used_bytes'],
    there: ['cotenant_device_processes', 'cotenant_device_utilization_ratio'],
  },
  {
    what: 'a vGPU guest without process data',
    faults: all(
      NOT_SUPPORTED,
      ...['Compute', 'Graphics', 'MPSCompute'].flatMap((kind) => inForms(`nvmlDeviceGet${kind}RunningProcesses`)),
      'nvmlDeviceGetProcessUtilization',
      'nvmlDeviceGetProcessesUtilizationInfo',
    ),
    says: /the driver does not report its processes: .* only the interposer enforces limits; utilization by process: .* not detected$/,
    refused: undefined,
    absent: [
      'cotenant_device_processes',
      'cotenant_device_containers',
      'cotenant_device_memory_unattributed_bytes',
      'cotenant_container_memory_used_bytes',
      'cotenant_container_processes',
      'cotenant_container_memory_over_limit',
      'cotenant_container_sm_utilization_ratio',
      'cotenant_container_sm_seconds_total',
      'hami_container_device_utilization_ratio',
    ],
    there: ['cotenant_device_memory_total_bytes', 'cotenant_device_memory_used_bytes'],
  },
  {
    what: "GPU passthrough without the host's devices",
    faults: all(
      NOT_SUPPORTED,
      'nvmlDeviceGetTotalEccErrors',
      'nvmlDeviceGetRemappedRows',
      'nvmlDeviceGetRetiredPages',
      'nvmlDeviceGetRetiredPagesPendingStatus',
      'nvmlDeviceGetFieldValues',
      'nvmlDeviceGetEnforcedPowerLimit',
    ),
    says: /the driver does not report its memory errors: they are not counted; its power limit; its PCIe and NVLink traffic$/,
    refused: undefined,
    absent: [
      'cotenant_device_ecc_errors_total',
      'cotenant_device_ecc_lifetime_errors_total',
      'cotenant_device_power_limit_watts',
      'cotenant_device_pcie_receive_bytes_total',
    ],
    there: ['cotenant_device_memory_total_bytes', 'cotenant_device_processes', 'cotenant_device_utilization_ratio'],
  },
] as const;

for (const { what, faults, says, refused, absent, there } of MACHINES) {
  test(`${what}: the agent logs the missing data`, async (t) => {
    t.timeout(180_000);
    const node = await startNode(t, '--gpu', 'l4');
    const agent = await startAgent(t, node, {
      settings: { intervalMs: 100, calibrate: false, compatibilityMetrics: 'hami' },
      env: { COTENANT_SIM_FAULTS: faults },
    });
    await eventually(async () => ((await agent.snapshot())?.devices.length ?? 0) > 0 || undefined, 'the GPU is seen');
    const round = (await agent.snapshot())?.atMs ?? 0;
    await eventually(async () => ((await agent.snapshot())?.atMs ?? 0) > round + 2000 || undefined, 'some samples');
    const missing = () => agent.log.filter((line) => /the driver does not report/.test(line));
    await eventually(() => missing().length > 0 || undefined, 'it is said');
    t.regex(missing()[0] ?? '', says);
    await eventually(
      async () => (await agent.metric('cotenant_up')) === 1 || undefined,
      'the page tells of the samples',
    );
    t.is(missing().length, 1, 'it is said once, and nothing else');
    for (const name of absent) t.is(await agent.metric(name), undefined, name);
    for (const name of there) t.not(await agent.metric(name), undefined, name);

    if (!refused) {
      const there = runTenant(t, node, agent, ['--gpu-memory', '64Mi', '--name', 'there'], ['sleep', '1000']);
      const limit = () => agent.metric('cotenant_container_memory_limit_bytes');
      await eventually(async () => (await limit()) === 64 * 2 ** 20 || undefined, 'a tenant is there');
      for (const name of absent) t.is(await agent.metric(name), undefined, `${name}, with a tenant`);
      there.child.kill('SIGTERM');
      await there.ended;
    }
    const tenant = runTenant(t, node, agent, ['--gpu-memory', '64Mi', '--name', 'new'], ['true']);
    t.is((await tenant.ended).code, refused ? 125 : 0);
    if (refused) t.regex(tenant.output.join('\n'), refused);
    t.deepEqual(agent.audit(), []);
  });
}

testUnless(namespacesReason())(
  'in its own PID namespace the agent logs that it does not see other processes',
  async (t) => {
    const state = join(temporaryFolder(t), 'state');
    const settings = ['--set', `stateFolder=${state}`, '--set', 'port=0', '--set', 'nvmlLibrary=/nowhere'];
    const [file = '', ...args] = [...OWN_NAMESPACES, process.execPath, mainOf(), 'agent', ...settings];
    const child = spawn(file, args, { stdio: ['ignore', 'inherit', 'pipe'] });
    t.teardown(() => child.kill('SIGKILL'));
    let said: string | undefined;
    for await (const line of createInterface({ input: child.stderr })) {
      if (line.includes('PID namespace')) said = line;
      if (said !== undefined || line.includes('metrics on')) break;
    }
    t.regex(said ?? '', /: NVML does not list processes outside of it, .* set hostPID: true, /);
    t.not(unseenProcesses(statSync('/proc/self/ns/ipc').ino), undefined, 'another number');
    t.is(unseenProcesses(4026531836), undefined, 'the first one has the same number everywhere');
  },
);

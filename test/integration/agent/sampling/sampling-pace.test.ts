// How often the sampler makes which calls of NVML. What they cost an H100's driver: process lists and memory
// microseconds, utilization by process 1.4 ms, the energy 2.4 ms, each maximum of a clock 0.8 ms (step nvml.cost of
// test/gpu/probe).
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import test from 'ava';
import { BUILD, environment, startNode } from '../../../support/native/node.ts';
import { countNvmlCalls } from '../../../support/native/nvml-calls.ts';

const ROUNDS = 60;
const INTERVAL_MS = 50;

test('costly NVML calls do not follow a short sampling interval', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const { library, env, read } = countNvmlCalls(t, node);
  const args = ['--interval-ms', String(INTERVAL_MS), '--library', library];
  const began = performance.now();
  const child = spawn(join(BUILD, 'cotenant-sampler'), args, {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: environment(env),
  });
  t.teardown(() => child.kill('SIGKILL'));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const gpus: { maxSmMhz?: number; energyMillijoules?: number; hasProcessUtilization?: boolean }[] = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    const { value } = await lines.next();
    gpus.push(JSON.parse(String(value)).gpus[0]);
  }
  const seconds = (performance.now() - began) / 1000;
  const calls = read();
  const of = (name: string) => calls.get(name) ?? 0;
  for (const list of ['Compute', 'Graphics', 'MPSCompute'])
    t.true(of(`nvmlDeviceGet${list}RunningProcesses_v3`) >= ROUNDS, list);
  t.true(of('nvmlDeviceGetMemoryInfo_v2') >= ROUNDS);
  const utilization = of('nvmlDeviceGetProcessesUtilizationInfo');
  t.true(utilization >= 2 && utilization <= seconds / 0.9 + 1, `${utilization} in ${seconds} s`);
  t.is(of('nvmlDeviceGetProcessUtilization'), 0, 'one of the two forms is enough');
  const energy = of('nvmlDeviceGetTotalEnergyConsumption');
  t.true(energy >= 1 && energy <= seconds / 4.5 + 1, `${energy} in ${seconds} s`);
  t.is(of('nvmlDeviceGetMaxClockInfo'), 2, 'once for each of two clocks');
  node.control('lose', '0');
  const isHealthy = async () => JSON.parse(String((await lines.next()).value)).gpus[0].healthy;
  while (await isHealthy());
  node.control('recover', '0');
  while (!(await isHealthy()));
  t.is(read().get('nvmlDeviceGetMaxClockInfo'), 4, 'and once more of a GPU that is back');
  for (const field of ['maxSmMhz', 'energyMillijoules', 'hasProcessUtilization'] as const)
    t.true(
      gpus.slice(1).every((gpu) => gpu[field] !== undefined),
      `${field} stays in every sample`,
    );
});

// A node without Kubernetes in the guest: simulated GPUs, the agent, and a tenant that bypasses the interposer.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { MOUNT, until } from './groups.ts';
import { HOME } from './report.ts';

const BUILD = join(HOME, 'native/build');
const MAIN = join(HOME, 'src/cli/main.ts');
const GIB = 2 ** 30;

export async function stopsRogueRun(): Promise<void> {
  const [folder, state] = ['/tmp/gpu', '/tmp/state'];
  mkdirSync(folder);
  const lib = join(folder, 'lib');
  const simulator = spawn(join(BUILD, 'cotenant-simulator'), ['serve', '--dir', folder, '--gpu', 'l4'], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  await until(() => existsSync(join(folder, 'node.sock')), 'the simulated node listens');
  const settings = {
    stateFolder: state,
    port: 0,
    nvmlLibrary: join(lib, 'libnvidia-ml.so.1'),
    cudaLibrary: join(lib, 'libcuda.so.1'),
  };
  const flags = Object.entries(settings).flatMap(([name, value]) => ['--set', `${name}=${value}`]);
  const agent = spawn(process.execPath, [MAIN, 'agent', ...flags], { stdio: ['ignore', 'ignore', 'pipe'] });
  let log = '';
  agent.stderr.on('data', (part: Buffer) => {
    log += part.toString();
  });
  await until(() => existsSync(join(state, 'agent.sock')) || agent.exitCode !== null, 'the agent listens', 120_000);
  assert.equal(agent.exitCode, null, log);
  const takes = `(echo init; echo context 0; echo alloc ${3 * GIB}; sleep 600) | ${BUILD}/tests/client`;
  const tenant = spawn(
    process.execPath,
    [MAIN, 'run', '--state', state, '-m', '1Gi', '--name', 'rogue', '--', 'env', '-u', 'LD_PRELOAD', 'sh', '-c', takes],
    { env: { ...process.env, LD_LIBRARY_PATH: lib }, stdio: ['ignore', 'pipe', 'pipe'] },
  );
  let said = '';
  for (const stream of [tenant.stdout, tenant.stderr]) {
    stream.on('data', (part: Buffer) => {
      said += part.toString();
    });
  }
  await until(
    () => readdirSync(MOUNT).some((name) => name.startsWith('cotenant-')) || tenant.exitCode !== null,
    'its group',
  );
  assert.equal(tenant.exitCode, null, said);
  const [code] = (await once(tenant, 'exit')) as [number | null];
  assert.equal(code, 137, said);
  assert.match(said, /stopped by the agent: local\/rogue\/\S+ exceeds its GPU memory grant/);
  const lines = readFileSync(join(state, 'audit.log'), 'utf8').trim().split('\n');
  const stop = lines
    .map((line) => JSON.parse(line) as { action: string; result: string; processes: { result: string }[] })
    .find(({ action }) => action === 'kill');
  assert.equal(stop?.result, 'sent');
  assert.ok((stop?.processes.length ?? 0) >= 3, 'the shells and the client, of which only the client holds memory');
  assert.deepEqual(
    readdirSync(MOUNT).filter((name) => name.startsWith('cotenant-')),
    [],
  );
  for (const child of [agent, simulator]) {
    child.kill('SIGTERM');
    if (child.exitCode === null) await once(child, 'exit');
  }
}

// Slices in containers of nerdctl, on a real containerd and a simulated GPU: by CDI, which nerdctl reads since 2.1.0 (its
// docs/config.md, cdi_spec_dirs), and by amount.
import { join } from 'node:path';
import { IMAGE } from '../../support/engines/engines.ts';
import { CLIENT, makeImage } from '../../support/engines/image.ts';
import { startMachine, talk, talkByWrapper } from '../../support/engines/machine.ts';
import { nerdctl, startNerdctl } from '../../support/engines/nerdctl.ts';
import { testUnless } from '../../support/gate.ts';
import { eventually } from '../../support/native/node.ts';
import { containersOf, cotenant } from '../../support/product/cli.ts';
import { MIB } from '../../support/product/grant.ts';

const found = nerdctl();
const parts = found.ok ? found : { program: '', root: '' };
const test = testUnless(found.ok ? undefined : `nerdctl cannot run here: ${found.reason}`);

test('a slice by CDI is limited, shown, changed while it runs, and kept by a new agent', async (t) => {
  t.timeout(240_000);
  const machine = await startMachine(t, 'l4');
  await machine.write('slices: [{ name: small, memory: 1Gi, cores: 25 }]', 'small');
  const engine = await startNerdctl(t, parts, makeImage(t), machine.cdi);
  const flags = ['run', '-i', '--rm', ...engine.runFlags, '--device', 'cotenant.io/slice=small', IMAGE, CLIENT];
  const container = talk(t, join(engine.bin, 'nerdctl'), flags);
  for (const command of ['init', 'context 0']) t.is((await container.tell(command))[0], 0, container.errors.join('\n'));
  t.deepEqual(await container.tell('total 0'), [0, 1024 * MIB]);
  t.is((await container.tell(`alloc ${256 * MIB}`))[0], 0);
  t.is((await container.tell(`alloc ${1024 * MIB}`))[0], 2, 'CUDA_ERROR_OUT_OF_MEMORY');
  const [shown] = await eventually(async () => {
    const list = await containersOf(machine.agent(), 'small');
    return list.some(({ usedBytes }) => usedBytes > 256 * MIB) ? list : undefined;
  }, 'the agent attributes its memory');
  t.is(shown?.fence, 'interposer');
  await machine.write('slices: [{ name: small, memory: 2Gi, cores: 25 }]', 'small');
  await eventually(
    async () => (await container.tell('total 0'))[1] === 2048 * MIB || undefined,
    'it grows without a restart',
  );
  await machine.agent().stop('SIGKILL');
  await machine.restart();
  await eventually(async () => (await machine.slices()).some(({ inUse }) => inUse) || undefined, 'found again');
  t.is((await container.tell(`alloc ${1024 * MIB}`))[0], 0);
  container.child.stdin?.end();
  t.is(await container.ended, 0);
  await eventually(async () => (await machine.slices())[0]?.inUse === false || undefined, 'the slice is free');

  // As options, for a nerdctl that reads no CDI files.
  const printed = cotenant('slices', 'small', '--flags', 'nerdctl', '--state', machine.agent().state);
  t.is(printed.code, 0, printed.err);
  const options = [...printed.out.trim().split(' '), ...engine.runFlags];
  const byOptions = talk(t, join(engine.bin, 'nerdctl'), ['run', '-i', '--rm', ...options, IMAGE, CLIENT]);
  for (const command of ['init', 'context 0']) t.is((await byOptions.tell(command))[0], 0, byOptions.errors.join('\n'));
  t.deepEqual(await byOptions.tell('total 0'), [0, 2048 * MIB]);
});

test('a share by amount ends with its container, and a cheat is stopped', async (t) => {
  t.timeout(240_000);
  const machine = await startMachine(t, 'l4');
  const engine = await startNerdctl(t, parts, makeImage(t), machine.cdi);
  const run = (...args: readonly string[]) =>
    talkByWrapper(t, machine, engine.bin, ['nerdctl', 'run', '-m', '2Gi', '--gpu-cores', '25', ...args]);
  const others = ['--rm', ...engine.runFlags];
  const limited = run('-i', ...others, '--name', 'one', IMAGE, CLIENT);
  for (const command of ['init', 'context 0']) t.is((await limited.tell(command))[0], 0, limited.errors.join('\n'));
  t.deepEqual(await limited.tell('total 0'), [0, 2048 * MIB]);
  t.is((await containersOf(machine.agent(), 'one')).length, 1);
  limited.child.stdin?.end();
  t.is(await limited.ended, 0);
  t.is(await run(...others, IMAGE, '/bin/sh', '-c', 'exit 7').ended, 7);
  t.deepEqual(await machine.slices(), [], 'every share ended with its container');

  const lookup = '/usr/lib/cotenant/driver/libcuda.so.1';
  const cheat = run('-i', ...others, '--name', 'cheat', IMAGE, CLIENT, lookup);
  for (const command of ['init', 'context 0']) t.is((await cheat.tell(command))[0], 0, cheat.errors.join('\n'));
  t.is((await cheat.tell(`alloc ${3072 * MIB}`))[0], 0, 'nothing in its way refuses it');
  t.is(await cheat.ended, 137);
  const stopped = machine.agent().audit();
  t.true(stopped.some(({ pod, action }) => pod === 'cheat' && action === 'kill'));
});

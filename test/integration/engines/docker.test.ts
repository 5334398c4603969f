// Slices in containers of Docker and containerd, on real daemons and a simulated GPU. Debian's Docker is older than
// CDI, as is its `ctr`: here both get their slices as flags of the command line. Docker's route by CDI is held by
// test/unit/cli/engines.test.ts up to its command line, since no Docker with CDI is in Debian 12.
import { join } from 'node:path';
import { dockerPackages, IMAGE, startDocker } from '../../support/engines/engines.ts';
import { CLIENT, makeImage } from '../../support/engines/image.ts';
import { startMachine, talk, talkByWrapper } from '../../support/engines/machine.ts';
import { testUnless } from '../../support/gate.ts';
import { eventually } from '../../support/native/node.ts';
import { containersOf, cotenant } from '../../support/product/cli.ts';
import { MIB } from '../../support/product/grant.ts';

const found = dockerPackages();
const root = found.ok ? found.root : '';
const test = testUnless(found.ok ? undefined : `Docker cannot run here: ${found.reason}`);

test('Docker: a share by amount, the same by cGPU’s variables, and the exit status', async (t) => {
  t.timeout(240_000);
  const machine = await startMachine(t, 'l4');
  const engine = await startDocker(t, root, makeImage(t));
  const run = (...args: readonly string[]) => talkByWrapper(t, machine, engine.bin, ['docker', 'run', ...args]);
  const [own, others] = [
    ['-m', '1Gi', '--gpu-cores', '25'],
    ['--rm', '--network', 'none'],
  ];

  const limited = run(...own, '-i', ...others, '--name', 'limited', IMAGE, CLIENT);
  for (const command of ['init', 'context 0']) t.is((await limited.tell(command))[0], 0, limited.errors.join('\n'));
  t.deepEqual(await limited.tell('total 0'), [0, 1024 * MIB]);
  t.is((await limited.tell(`alloc ${1024 * MIB}`))[0], 2);
  const [shown] = await eventually(async () => {
    const list = await containersOf(machine.agent(), 'limited');
    return list.some(({ processes }) => processes.length > 0) ? list : undefined;
  }, 'the agent attributes its process');
  t.is(shown?.fence, 'interposer');
  limited.child.stdin?.end();
  t.is(await limited.ended, 0);

  // The L4 of the simulator has 22 whole GiB: 3 of 22 units are floor(22600 * 3 / 22) MiB.
  const cgpu = ['-e', 'ALIYUN_COM_GPU_MEM_CONTAINER=3', '-e', 'ALIYUN_COM_GPU_MEM_DEV=22'];
  const byVariables = run('-i', ...cgpu, ...others, IMAGE, CLIENT);
  t.is((await byVariables.tell('init'))[0], 0, byVariables.errors.join('\n'));
  const usableMib = machine.node.usable(0) / MIB;
  const units = Math.floor(usableMib / 1024);
  t.deepEqual(await byVariables.tell('total 0'), [0, Math.floor((usableMib * 3) / units) * MIB]);
  byVariables.child.stdin?.end();
  await byVariables.ended;

  t.is(await run(...own, ...others, IMAGE, '/bin/sh', '-c', 'exit 7').ended, 7);
  t.deepEqual(await machine.slices(), [], 'every share ended with its container');
});

test('Docker: a cheat is stopped, and a killed agent finds the container again', async (t) => {
  t.timeout(240_000);
  const machine = await startMachine(t, 'l4');
  const engine = await startDocker(t, root, makeImage(t));
  const own = ['docker', 'run', '-m', '1Gi', '-i', '--rm', '--network', 'none', '--name', 'cheat'];
  const lookup = '/usr/lib/cotenant/driver/libcuda.so.1';
  const cheat = talkByWrapper(t, machine, engine.bin, [...own, IMAGE, CLIENT, lookup]);
  for (const command of ['init', 'context 0']) t.is((await cheat.tell(command))[0], 0, cheat.errors.join('\n'));
  await machine.agent().stop('SIGKILL');
  await machine.restart();
  t.is((await cheat.tell(`alloc ${3072 * MIB}`))[0], 0);
  t.is(await cheat.ended, 137);
  t.true(
    machine
      .agent()
      .audit()
      .some(({ pod, action }) => pod === 'cheat' && action === 'kill'),
  );
});

test('containerd: ctr run with the flags of a slice, and a change while it runs', async (t) => {
  t.timeout(240_000);
  const machine = await startMachine(t, 'l4');
  await machine.write('slices: [{ name: small, memory: 1Gi }]', 'small');
  const image = makeImage(t);
  const engine = await startDocker(t, root, image);
  const state = ['--state', machine.agent().state];
  const printed = cotenant('slices', 'small', '--flags', 'ctr', ...state);
  t.is(printed.code, 0, printed.err);
  const flags = printed.out.trim().split(' ');
  const container = talk(t, join(engine.bin, 'ctr'), [
    ...['run', '--rm', ...flags, '--rootfs', image.rootfs, 'cotenant-ctr', CLIENT],
  ]);
  for (const command of ['init', 'context 0']) t.is((await container.tell(command))[0], 0, container.errors.join('\n'));
  t.deepEqual(await container.tell('total 0'), [0, 1024 * MIB]);
  const refused = cotenant('set', 'small', '-m', '2Gi', ...state);
  t.is(refused.code, 1);
  t.regex(refused.err, /slice small is what .*slices\.yaml says: change it there/);
  await machine.write('slices: [{ name: small, memory: 2Gi }]', 'small');
  await eventually(
    async () => ((await container.tell('total 0'))[1] === 2048 * MIB ? true : undefined),
    'it grows without a restart',
  );
  const table = cotenant('slices', ...state);
  t.regex(table.out, /^cotenant\.io\/slice=small +GPU-\S+ +2048 +- +in use$/m);
  container.child.stdin?.end();
  t.is(await container.ended, 0);
});

// Slices in containers of Podman, on real containers and a simulated GPU: CDI's own path, as its SPEC.md has it.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { IMAGE, podmanPackages, startPodman } from '../../support/engines/engines.ts';
import { CLIENT, makeImage } from '../../support/engines/image.ts';
import { startMachine, talk, talkByWrapper } from '../../support/engines/machine.ts';
import { testUnless } from '../../support/gate.ts';
import { eventually } from '../../support/native/node.ts';
import { containersOf } from '../../support/product/cli.ts';
import { MIB } from '../../support/product/grant.ts';

const found = podmanPackages();
const root = found.ok ? found.root : '';
const test = testUnless(found.ok ? undefined : `Podman cannot run here: ${found.reason}`);

const SMALL = 'slices: [{ name: small, memory: 1Gi, cores: 25 }]';

test('a container with a slice has its memory, and is named in tables and metrics', async (t) => {
  t.timeout(180_000);
  const machine = await startMachine(t, 'l4');
  await machine.write(SMALL, 'small');
  const podman = startPodman(t, root, makeImage(t), machine.cdi);
  const flags = ['run', '-i', '--rm', '--device', 'cotenant.io/slice=small', IMAGE, CLIENT];
  const container = talk(t, join(podman.bin, 'podman'), flags);
  t.deepEqual(await container.tell('init'), [0, 0]);
  t.deepEqual(await container.tell('context 0'), [0, 0]);
  t.deepEqual(await container.tell('total 0'), [0, 1024 * MIB]);
  t.is((await container.tell(`alloc ${256 * MIB}`))[0], 0);
  t.is((await container.tell(`alloc ${1024 * MIB}`))[0], 2, 'CUDA_ERROR_OUT_OF_MEMORY');
  const [shown] = await eventually(async () => {
    const list = await containersOf(machine.agent(), 'small');
    return list.some(({ usedBytes }) => usedBytes > 256 * MIB) ? list : undefined;
  }, 'the agent attributes its memory');
  t.is(shown?.fence, 'interposer');
  t.is(shown?.bypassBytes, 0);
  t.true((await machine.slices())[0]?.inUse);
  container.child.stdin?.end();
  t.is(await container.ended, 0);
  await eventually(async () => (await machine.slices())[0]?.inUse === false || undefined, 'the slice is free');
  t.is((await machine.slices())[0]?.device, 'small');
});

test('a container that calls the real driver is stopped', async (t) => {
  t.timeout(180_000);
  const machine = await startMachine(t, 'l4');
  await machine.write(SMALL, 'small');
  const podman = startPodman(t, root, makeImage(t), machine.cdi);
  const flags = ['run', '-i', '--rm', '--device', 'cotenant.io/slice=small', IMAGE, CLIENT];
  const cheat = talk(t, join(podman.bin, 'podman'), [...flags, '/usr/lib/cotenant/driver/libcuda.so.1']);
  for (const command of ['init', 'context 0']) t.is((await cheat.tell(command))[0], 0);
  t.is((await cheat.tell(`alloc ${3072 * MIB}`))[0], 0, 'nothing in its way refuses it');
  t.is(await cheat.ended, 137);
  t.true(
    machine
      .agent()
      .audit()
      .some(({ pod, action }) => pod === 'small' && action === 'kill'),
  );
});

test('a share by amount lasts as long as its container, also a detached one', async (t) => {
  t.timeout(180_000);
  const machine = await startMachine(t, 'l4');
  const podman = startPodman(t, root, makeImage(t), machine.cdi);
  const env = ['podman', 'run', '-m', '2Gi', '--gpu-cores', '25'];
  const container = talkByWrapper(t, machine, podman.bin, [...env, '-i', '--rm', '--name', 'one', IMAGE, CLIENT]);
  for (const command of ['init', 'context 0']) t.is((await container.tell(command))[0], 0);
  t.deepEqual(await container.tell('total 0'), [0, 2048 * MIB]);
  t.is((await containersOf(machine.agent(), 'one')).length, 1);
  container.child.stdin?.end();
  t.is(await container.ended, 0);
  t.deepEqual(await machine.slices(), []);

  const failing = talkByWrapper(t, machine, podman.bin, [...env, '--rm', IMAGE, '/bin/sh', '-c', 'exit 42']);
  t.is(await failing.ended, 42);
  const detached = talkByWrapper(t, machine, podman.bin, [...env, '-d', '--name', 'two', IMAGE, '/bin/sleep', '600']);
  t.is(await detached.ended, 0);
  // The agent ends without a chance to write anything, and finds the container again.
  await machine.agent().stop('SIGKILL');
  await machine.restart();
  await eventually(async () => (await machine.agent().snapshot())?.containers.length === 1 || undefined, 'adopted');
  t.true((await machine.slices())[0]?.inUse);
  const much = talkByWrapper(t, machine, podman.bin, ['podman', 'run', '-m', '22Gi', '--rm', IMAGE, '/bin/sh']);
  t.is(await much.ended, 125, 'beyond what the two grants leave');
  t.regex(much.errors.join('\n'), /no grant: .* but 22528 MiB are requested/);
  podman.run('rm', '--force', '--time', '0', 'two');
  await eventually(async () => (await machine.slices()).length === 0 || undefined, 'the grant ends');
  t.false(existsSync(join(machine.cdi, 'cotenant.io-slice.json')));
});

test('a changed slices file gives other slices, and running containers keep theirs', async (t) => {
  t.timeout(180_000);
  const machine = await startMachine(t, 'l4', 'a10');
  await machine.write('slices: [{ name: pair, memory: 1Gi, count: 2, gpu: 1 }]', 'pair-1', 'pair-2');
  const podman = startPodman(t, root, makeImage(t), machine.cdi);
  const flags = ['run', '-i', '--rm', '--device', 'cotenant.io/slice=pair-2', IMAGE, CLIENT];
  const container = talk(t, join(podman.bin, 'podman'), flags);
  for (const command of ['init', 'context 0']) t.is((await container.tell(command))[0], 0);
  await machine.write('slices: [{ name: pair, memory: 2Gi, count: 2, gpu: 1 }]', 'pair-1', 'pair-2');
  await eventually(
    async () => ((await container.tell('total 0'))[1] === 2048 * MIB ? true : undefined),
    'it grows without a restart',
  );
  await machine.write('slices: []');
  await eventually(async () => (await machine.slices()).length === 1 || undefined, 'the free slice ends');
  const [kept] = await machine.slices();
  t.like(kept, { device: 'pair-2', inUse: true });
  t.is(kept?.gpus[0]?.gpuUuid, machine.node.uuid(1));
  t.notRegex(
    existsSync(join(machine.cdi, 'cotenant.io-slice.json'))
      ? readFileSync(join(machine.cdi, 'cotenant.io-slice.json'), 'utf8')
      : '',
    /pair/,
    'no new container gets it',
  );
  t.is((await container.tell(`alloc ${1536 * MIB}`))[0], 0);
  container.child.stdin?.end();
  await container.ended;
  await eventually(async () => (await machine.slices()).length === 0 || undefined, 'and with the container this one');
});

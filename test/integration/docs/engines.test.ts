// The pages on Docker, Podman and containerd, followed command by command: a simulated GPU stands for the driver, a
// stand-in writes what nvidia-ctk would, and folders of the machine are folders of the test. Blocks of `shell` are for
// engines that are not in Debian 12.
import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { blocks, readPage } from '../../support/docs.ts';
import { dockerPackages, IMAGE, podmanPackages, startDocker, startPodman } from '../../support/engines/engines.ts';
import { makeImage, type TestImage, writeNvidiaSpec } from '../../support/engines/image.ts';
import { nerdctl, startNerdctl } from '../../support/engines/nerdctl.ts';
import { testUnless } from '../../support/gate.ts';
import { startNode, temporaryFolder } from '../../support/native/node.ts';
import { MAIN } from '../../support/product/cli.ts';
import { MIB } from '../../support/product/grant.ts';

const PAGE_IMAGE = 'nvidia/cuda:13.0.0-base-ubuntu24.04';
const [docker, podman] = [dockerPackages(), podmanPackages()];

/** Where CDI files are, for `start`, which makes the engine and returns the folder of its program. */
type Start = (image: TestImage, cdi: string) => Promise<string>;

/** Runs the commands of a page. Each run of nvidia-smi must show 4 GiB; returns how many did. */
async function follow(
  t: ExecutionContext,
  page: string,
  start: Start,
  replace: (text: string, image: TestImage) => string,
) {
  const node = await startNode(t, '--gpu', 'l4');
  const folder = temporaryFolder(t);
  const at = (name: string) => join(folder, name);
  for (const name of ['bin', 'etc-cdi', 'run-cdi', 'log', 'state']) mkdirSync(at(name));
  copyFileSync(join(writeNvidiaSpec(t, node, 1), 'nvidia.json'), at('spec.json'));
  const image = makeImage(t);
  const engine = await start(image, at('run-cdi'));
  const program = (name: string, text: string) =>
    writeFileSync(at(`bin/${name}`), `#!/bin/sh\n${text}\n`, { mode: 0o755 });
  program('nvidia-ctk', `[ "$1 $2" = "cdi generate" ] && cp ${at('spec.json')} "\${3#--output=}"`);
  const settings = [
    `stateFolder=${at('state')}`,
    'port=0',
    `nvmlLibrary=${join(node.lib, 'libnvidia-ml.so.1')}`,
    `cudaLibrary=${join(node.lib, 'libcuda.so.1')}`,
    'canary=false',
    'intervalMs=200',
    `slices.file=${at('etc')}/slices.yaml`,
    `slices.cdiFolders=${at('etc-cdi')},${at('run-cdi')}`,
  ];
  const agent = `${MAIN} agent ${settings.map((one) => `--set ${one}`).join(' ')}`;
  program(
    'cotenant',
    `if [ "$1" = agent ]; then exec ${process.execPath} ${agent}; fi\nexec ${process.execPath} ${MAIN} "$@"`,
  );
  const commands = blocks(readPage(page), 'sh').join('\n');
  const here = replace(commands, image)
    .replaceAll(PAGE_IMAGE, IMAGE)
    .replaceAll('/etc/cdi', at('etc-cdi'))
    .replaceAll('/etc/cotenant', at('etc'))
    .replaceAll('/var/log', at('log'))
    // A person types more slowly than this test.
    .replace('.log &\n', '.log &\nuntil cotenant slices >/dev/null 2>&1; do sleep 0.1; done\n')
    .replaceAll('sleep 3\n', 'until cotenant slices | grep -q free; do sleep 0.1; done\n');
  const script = `set -eu\ntrap 'kill $(jobs -p)' EXIT\n${here}`;
  const { status, stdout, stderr } = spawnSync('bash', ['-c', script], {
    encoding: 'utf8',
    timeout: 200_000,
    env: { ...process.env, PATH: `${at('bin')}:${engine}:${process.env.PATH}`, COTENANT_STATE: at('state') },
  });
  t.is(status, 0, `${script}\n${stdout}\n${stderr}`);
  t.regex(stdout, /^cotenant\.io\/slice=small +GPU-\S+ +4096 +25% +free$/m);
  return stdout.split('\n').filter((line) => line === `0 ${4096 * MIB}`).length;
}

testUnless(podman.ok ? undefined : podman.reason)('the page on Podman can be followed', async (t) => {
  t.timeout(240_000);
  const root = podman.ok ? podman.root : '';
  const start: Start = async (image, cdi) => startPodman(t, root, image, cdi).bin;
  t.is(await follow(t, 'docs/use/podman.md', start, (text) => text), 2, 'by amount, and by slice');
});

testUnless(docker.ok ? undefined : docker.reason)('the page on Docker can be followed', async (t) => {
  t.timeout(240_000);
  const root = docker.ok ? docker.root : '';
  const start: Start = async (image) => (await startDocker(t, root, image)).bin;
  t.is(await follow(t, 'docs/use/docker.md', start, (text) => text), 2, 'by amount, and by the options of a slice');
});

const containerd = nerdctl();
testUnless(containerd.ok ? undefined : containerd.reason)('the page on containerd can be followed', async (t) => {
  t.timeout(240_000);
  const parts = containerd.ok ? containerd : { program: '', root: '' };
  const start: Start = async (image, cdi) => (await startNerdctl(t, parts, image, cdi)).bin;
  // There is no registry here: ctr runs the image's folder. And no network is made.
  const replace = (text: string, { rootfs }: TestImage) =>
    text
      .replace(`${PAGE_IMAGE} one nvidia-smi`, `--rootfs ${rootfs} one /usr/bin/nvidia-smi`)
      .replaceAll(/(nerdctl run .*--rm)/g, '$1 --network none');
  t.is(await follow(t, 'docs/use/containerd.md', start, replace), 3, 'by amount, by slice, and by slice with ctr');
});

// Our own image, made of this checkout the way the Dockerfile says (the Node of the tests, production packages, native parts,
// sources), and the chart installed from it by a real helm.
import { execFileSync } from 'node:child_process';
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { stringify } from 'yaml';
import { eventually } from '../../support/node.ts';
import type { Bed } from './bed.ts';
import { cdiSpec } from './cards.ts';
import { NODE_NAME } from './node.ts';

const ROOT = join(import.meta.dirname, '../../..');
export const COTENANT_IMAGE = { repository: 'local.test/cotenant', tag: 'dev', pullPolicy: 'Never' };
export const NAMESPACE = 'cotenant-system';

type Lock = { packages: Record<string, { dev?: boolean; optional?: boolean }> };

/** Shared objects that a program needs, the loader included, by their paths on this machine. */
function librariesOf(program: string): string[] {
  const text = execFileSync('ldd', [program], { encoding: 'utf8' });
  return [...text.matchAll(/(?:=> )?(\/\S+) \(0x/g)].map(([, path = '']) => path);
}

export function addCotenantImage(bed: Bed): void {
  const root = join(bed.folder, 'image-cotenant');
  const put = (from: string, to: string) => {
    mkdirSync(dirname(join(root, to)), { recursive: true });
    cpSync(from, join(root, to), { recursive: true, dereference: true });
  };
  put(process.execPath, 'usr/local/bin/node');
  for (const path of librariesOf(process.execPath)) put(path, path);
  const lock = JSON.parse(readFileSync(join(ROOT, 'package-lock.json'), 'utf8')) as Lock;
  const packages = Object.entries(lock.packages).filter(
    ([path, { dev, optional }]) => path !== '' && !dev && !optional,
  );
  for (const [path] of packages) put(join(ROOT, path), join('opt/cotenant', path));
  for (const path of ['package.json', 'LICENSE', 'native/build.ts', 'src', 'webhook']) {
    put(join(ROOT, path), join('opt/cotenant', path));
  }
  const native = join(ROOT, 'native/build');
  for (const name of [
    'cotenant.node',
    'cotenant-sampler',
    'cotenant-calibrate',
    'libcotenant.so',
    'libcotenant-nvml.so',
  ]) {
    put(join(native, name), join('opt/cotenant/native/build', name));
  }
  for (const name of ['tmp', 'proc', 'sys', 'dev', 'etc', 'var/lib', 'var/run', 'run']) {
    mkdirSync(join(root, name), { recursive: true });
  }
  const { repository, tag } = COTENANT_IMAGE;
  bed.addImage(`${repository}:${tag}`, root, ['/usr/local/bin/node', '/opt/cotenant/src/cli/main.ts']);
  rmSync(root, { recursive: true });
}

/** An image of one of the programs of native/build, with a shell. */
export function addProgramImage(bed: Bed, name: string, program: string): void {
  const root = join(bed.folder, 'image-program');
  cpSync(join(bed.folder, 'image-busybox'), root, { recursive: true, verbatimSymlinks: true });
  const path = join(ROOT, 'native/build', program);
  for (const library of librariesOf(path)) {
    mkdirSync(dirname(join(root, library)), { recursive: true });
    copyFileSync(library, join(root, library));
  }
  cpSync(path, join(root, 'bin', basename(program)));
  bed.addImage(name, root, ['/bin/sh']);
  rmSync(root, { recursive: true });
}

/**
 * A simulated GPU node beside the cluster's. Its cards come into containers as CDI devices, and into those of the runtime
 * class `nvidia` when their environment asks for cards. Returns the cards' UUIDs.
 */
export async function addSimulatedCards(bed: Bed, ...cards: readonly string[]): Promise<readonly string[]> {
  const folder = join(bed.folder, 'gpu');
  mkdirSync(folder);
  const flags = cards.flatMap((card) => ['--card', card]);
  bed.namespaces.start('simulator', [
    join(ROOT, 'native/build/cotenant-simulator'),
    'serve',
    '--dir',
    folder,
    ...flags,
  ]);
  await eventually(() => existsSync(join(folder, 'node.sock')) || undefined, 'the simulated node listens');
  // Links to this checkout would lead nowhere in a container.
  for (const name of readdirSync(join(folder, 'lib'))) {
    const path = join(folder, 'lib', name);
    const library = realpathSync(path);
    rmSync(path);
    copyFileSync(library, path);
  }
  const sampler = join(ROOT, 'native/build/cotenant-sampler');
  const library = join(folder, 'lib/libnvidia-ml.so.1');
  const sample = JSON.parse(execFileSync(sampler, ['--library', library], { input: '', encoding: 'utf8' }));
  const uuids = (sample as { cards: { uuid: string }[] }).cards.map(({ uuid }) => uuid);
  mkdirSync(join(folder, 'cards'));
  for (const uuid of uuids) writeFileSync(join(folder, 'cards', uuid), '');
  writeFileSync(join(bed.folder, 'cdi/simulated.json'), JSON.stringify(cdiSpec(folder, uuids)));
  bed.apply({ apiVersion: 'node.k8s.io/v1', kind: 'RuntimeClass', metadata: { name: 'nvidia' }, handler: 'simulated' });
  bed.kubectl('label', 'node', NODE_NAME, 'nvidia.com/gpu.present=true');
  return uuids;
}

/** `helm upgrade --install` of the chart, waiting until all of it is ready; throws with helm's words. */
export function installChart(bed: Bed, helm: string, values: object): void {
  const home = join(bed.folder, 'helm');
  const env = {
    HELM_CACHE_HOME: join(home, 'cache'),
    HELM_CONFIG_HOME: join(home, 'config'),
    HELM_DATA_HOME: join(home, 'data'),
    KUBECONFIG: join(bed.folder, 'kubeconfig'),
  };
  const words = ['upgrade', '--install', 'cotenant', join(ROOT, 'charts/cotenant'), '--namespace', NAMESPACE];
  const { code, err, out } = bed.namespaces.run(
    [helm, ...words, '--create-namespace', '--wait', '--timeout', '90s', '--values', '-'],
    { env, input: stringify({ image: COTENANT_IMAGE, ...values }, { version: '1.1' }) },
  );
  if (code !== 0) throw new Error(`helm: ${err.trim() || out.trim()}`);
}

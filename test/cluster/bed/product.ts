// Installs Cotenant on a test cluster: images of this checkout, simulated GPUs, and the chart by a real helm.
import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readdirSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { eventually } from '../../support/native/node.ts';
import { firstSample } from '../../support/product/sample.ts';
import { pythonClients } from '../../support/toolchains/python.ts';
import type { Bed } from './bed.ts';
import { AUDITED_NAMESPACE } from './control-plane.ts';
import { cdiSpec, STAND_INS } from './gpus.ts';
import {
  FOREIGN_LOADER,
  foreignLoaderLayer,
  kubeSchedulerLayer,
  nodeLayer,
  ownLayer,
  PYTHON_FOLDER,
  programsLayer,
  pythonLayer,
} from './layers.ts';
import type { Ran } from './namespaces.ts';
import { hostFolder, NODE_NAME } from './node.ts';

const ROOT = join(import.meta.dirname, '../../..');
export const COTENANT_IMAGE = { repository: 'local.test/cotenant', tag: 'dev', pullPolicy: 'Never' };
export const NAMESPACE = AUDITED_NAMESPACE;
/** The scripted CUDA program of test/native/programs/scripted/client.c, with a shell. Its arguments are its first
 * commands. */
export const CLIENT_IMAGE = 'local.test/client:1';
/** In CLIENT_IMAGE: the same program, started so that no preload list applies. */
export const BYPASSING = [FOREIGN_LOADER, '/bin/client', 'libcuda.so.1'];
/** nvidia-ml-py; prints what NVML reports and exits; an argument keeps it alive for that many seconds. */
export const NVML_IMAGE = 'local.test/nvml:1';
export const KUBE_SCHEDULER_IMAGE = { repository: 'local.test/kube-scheduler', tag: 'dev', pullPolicy: 'Never' };

export function addCotenantImage(bed: Bed): void {
  const { repository, tag } = COTENANT_IMAGE;
  bed.addImage(`${repository}:${tag}`, [nodeLayer(), ownLayer(bed.folder)], {
    entrypoint: ['/usr/local/bin/node', '/opt/cotenant/src/cli/main.js'],
  });
}

/** An image of a program of native/build, with a shell. */
export function addProgramImage(bed: Bed, name: string, program: string): void {
  bed.addImage(name, [bed.busybox, programsLayer(bed.folder, program)], { entrypoint: ['/bin/sh'] });
}

/** `env`: the image's own environment, as NVIDIA's images have one. */
export function addClientImage(bed: Bed, name = CLIENT_IMAGE, env: Readonly<Record<string, string>> = {}): void {
  const layers = [bed.busybox, programsLayer(bed.folder, 'tests/client'), foreignLoaderLayer(bed.folder)];
  bed.addImage(name, layers, { entrypoint: ['/bin/client', 'libcuda.so.1'], env });
}

/** Throws if the Python client cannot be installed; `pythonClients` tells that in advance. */
export function addNvmlImage(bed: Bed): void {
  const clients = pythonClients();
  if (!clients.ok) throw new Error(clients.reason);
  const { layer, interpreter } = pythonLayer(clients.python);
  bed.addImage(NVML_IMAGE, [bed.busybox, layer], {
    entrypoint: [interpreter, join(PYTHON_FOLDER, 'gpus.py')],
    env: { PYTHONDONTWRITEBYTECODE: '1' },
  });
}

/**
 * Adds a simulated GPU node to the cluster's node. Containers get its GPUs as CDI devices, and those of the runtime
 * class `nvidia` if their environment asks for GPUs. Returns the UUIDs of the GPUs.
 */
export const addSimulatedGpus = (bed: Bed, ...gpus: readonly string[]): Promise<readonly string[]> =>
  addSimulatedNode(bed, gpus);

/** `driver`: the driver version; default: that of the simulator. */
export async function addSimulatedNode(bed: Bed, gpus: readonly string[], driver?: string): Promise<readonly string[]> {
  const folder = join(bed.folder, 'gpu');
  mkdirSync(folder);
  const flags = [...gpus.flatMap((gpu) => ['--gpu', gpu]), ...(driver === undefined ? [] : ['--driver', driver])];
  bed.namespaces.start('simulator', [
    join(ROOT, 'native/build/cotenant-simulator'),
    'serve',
    '--dir',
    folder,
    ...flags,
  ]);
  await eventually(() => existsSync(join(folder, 'node.sock')) || undefined, 'the simulated node listens');
  // Links to this checkout would be broken in a container.
  for (const name of readdirSync(join(folder, 'lib'))) {
    const path = join(folder, 'lib', name);
    const library = realpathSync(path);
    rmSync(path);
    copyFileSync(library, path);
  }
  const sampler = join(ROOT, 'native/build/cotenant-sampler');
  const library = join(folder, 'lib/libnvidia-ml.so.1');
  const sample = firstSample(execFileSync(sampler, ['--library', library], { input: '', encoding: 'utf8' }));
  const uuids = sample.gpus.map(({ uuid }) => uuid);
  mkdirSync(join(folder, 'gpus'));
  for (const uuid of uuids) writeFileSync(join(folder, 'gpus', uuid), '');
  mkdirSync(join(folder, 'driver'));
  for (const name of STAND_INS) writeFileSync(join(folder, 'driver', name), '');
  const specification = join(hostFolder(bed.folder, '/etc/cdi'), 'simulated.json');
  writeFileSync(specification, JSON.stringify(cdiSpec(folder, uuids)));
  bed.apply({ apiVersion: 'node.k8s.io/v1', kind: 'RuntimeClass', metadata: { name: 'nvidia' }, handler: 'simulated' });
  bed.kubectl('label', 'node', NODE_NAME, 'nvidia.com/gpu.present=true');
  return uuids;
}

/** The kube-scheduler that was built for the cluster, from the folder `bin`. */
export function addKubeSchedulerImage(bed: Bed, bin: string): void {
  const { repository, tag } = KUBE_SCHEDULER_IMAGE;
  bed.addImage(`${repository}:${tag}`, [kubeSchedulerLayer(bin)], { entrypoint: ['/usr/local/bin/kube-scheduler'] });
}

/** Chart value for a component that is not installed. */
export const OFF = { enabled: false };

function runHelm(bed: Bed, helm: string, args: readonly string[], input = ''): Ran {
  const home = join(bed.folder, 'helm');
  const env = {
    HELM_CACHE_HOME: join(home, 'cache'),
    HELM_CONFIG_HOME: join(home, 'config'),
    HELM_DATA_HOME: join(home, 'data'),
    KUBECONFIG: join(bed.folder, 'kubeconfig'),
  };
  return bed.namespaces.run([helm, ...args, '--namespace', NAMESPACE], { env, input });
}

/**
 * `helm upgrade --install` of the chart; waits until all of it is ready; throws with helm's message. helm's watcher,
 * the default, fails where a workload is ready with all others and no longer when it is read once more; the other
 * strategy asks again.
 */
export function installChart(bed: Bed, helm: string, values: object): void {
  const args = ['upgrade', '--install', 'cotenant', join(ROOT, 'charts/cotenant'), '--create-namespace'];
  const input = stringify({ image: COTENANT_IMAGE, ...values }, { version: '1.1' });
  const { code, err, out } = runHelm(
    bed,
    helm,
    [...args, '--wait=legacy', '--timeout', '300s', '--values', '-'],
    input,
  );
  if (code !== 0) throw new Error(`helm: ${err.trim() || out.trim()}\n${stateOfRelease(bed)}`);
}

/** What kubectl says of the release's pods, their Events and the last lines of their logs. */
function stateOfRelease(bed: Bed): string {
  const own = ['-n', NAMESPACE];
  const asked = [
    ['get', 'pods', '-o', 'wide'],
    ['get', 'events', '--sort-by=.lastTimestamp'],
    ['logs', '-l', `app.kubernetes.io/instance=cotenant`, '--all-containers', '--prefix', '--tail=20'],
  ];
  return asked
    .map((args) => bed.kubectl(...own, ...args))
    .map(({ out, err }) => `${out}${err}`)
    .join('\n');
}

/** `helm uninstall`; returns its result even if it fails. */
export function uninstallChart(bed: Bed, helm: string): Ran {
  return runHelm(bed, helm, ['uninstall', 'cotenant', '--timeout', '300s']);
}

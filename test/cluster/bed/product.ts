// Installs Cotenant on a test cluster: images of this checkout, simulated GPUs, and the chart by a real helm.
import { once } from 'node:events';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { stringify } from 'yaml';
import { pythonClients } from '../../support/toolchains/python.ts';
import type { Bed } from './bed.ts';
import { AUDITED_NAMESPACE } from './control-plane.ts';
import { eventually } from './eventually.ts';
import { completeFolder } from './gpu-folder.ts';
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
/** A checkout with its programs built, and the tag of its image. */
export type Release = { readonly checkout: string; readonly tag: string };
const THIS: Release = { checkout: ROOT, tag: COTENANT_IMAGE.tag };
export const NAMESPACE = AUDITED_NAMESPACE;
/** The scripted CUDA program of test/native/programs/scripted/client.c, with a shell. Its arguments are its first
 * commands. */
export const CLIENT_IMAGE = 'local.test/client:1';
/** In CLIENT_IMAGE: the same program, started so that no preload list applies. */
export const BYPASSING = [FOREIGN_LOADER, '/bin/client', 'libcuda.so.1'];
/** nvidia-ml-py; prints what NVML reports and exits; an argument keeps it alive for that many seconds. */
export const NVML_IMAGE = 'local.test/nvml:1';
export const KUBE_SCHEDULER_IMAGE = { repository: 'local.test/kube-scheduler', tag: 'dev', pullPolicy: 'Never' };

export function addCotenantImage(bed: Bed, { checkout, tag }: Release = THIS): void {
  const layers = [nodeLayer(checkout), ownLayer(bed.folder, checkout)];
  bed.addImage(`${COTENANT_IMAGE.repository}:${tag}`, layers, {
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
  const { uuids, specification } = completeFolder(folder, join(ROOT, 'native/build'));
  writeFileSync(join(hostFolder(bed.folder, '/etc/cdi'), 'simulated.json'), JSON.stringify(specification));
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

const helmEnvironment = (bed: Bed): Readonly<Record<string, string>> => {
  const home = join(bed.folder, 'helm');
  return {
    HELM_CACHE_HOME: join(home, 'cache'),
    HELM_CONFIG_HOME: join(home, 'config'),
    HELM_DATA_HOME: join(home, 'data'),
    KUBECONFIG: join(bed.folder, 'kubeconfig'),
  };
};
const runHelm = (bed: Bed, helm: string, args: readonly string[], input = ''): Ran =>
  bed.namespaces.run([helm, ...args, '--namespace', NAMESPACE], { env: helmEnvironment(bed), input });
const WAITS = ['--wait=legacy', '--timeout', '300s'];

function chartArguments(values: object, { checkout, tag }: Release): { args: readonly string[]; input: string } {
  const args = ['upgrade', '--install', 'cotenant', join(checkout, 'charts/cotenant'), '--create-namespace'];
  const input = stringify({ image: { ...COTENANT_IMAGE, tag }, ...values }, { version: '1.1' });
  return { args: [...args, ...WAITS, '--values', '-'], input };
}

/**
 * `helm upgrade --install` of the chart; waits until all of it is ready; throws with helm's message. helm's watcher,
 * the default, fails where a workload is ready with all others and no longer when it is read once more; the other
 * strategy asks again.
 */
export function installChart(bed: Bed, helm: string, values: object): void {
  const { args, input } = chartArguments(values, THIS);
  const { code, err, out } = runHelm(bed, helm, args, input);
  if (code !== 0) throw new Error(`helm: ${err.trim() || out.trim()}\n${stateOfRelease(bed)}`);
}

/** The same of a release, while the rest of the test goes on. */
export function upgradeChart(bed: Bed, helm: string, values: object, release: Release = THIS): Promise<void> {
  const { args, input } = chartArguments(values, release);
  return helmMeanwhile(bed, helm, args, input);
}

/** `helm rollback` to a revision, counted from 1, likewise. */
export const rollBack = (bed: Bed, helm: string, revision: number): Promise<void> =>
  helmMeanwhile(bed, helm, ['rollback', 'cotenant', String(revision), ...WAITS]);

async function helmMeanwhile(bed: Bed, helm: string, args: readonly string[], input = ''): Promise<void> {
  const variables = Object.entries(helmEnvironment(bed)).map(([name, value]) => `${name}=${value}`);
  const child = bed.namespaces.talk(['env', ...variables, helm, ...args, '--namespace', NAMESPACE]);
  child.stdin.end(input);
  const said = text(child.stdout);
  const [code] = (await once(child, 'close')) as [number | null];
  if (code !== 0) throw new Error(`helm: ${await said}\n${stateOfRelease(bed)}`);
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

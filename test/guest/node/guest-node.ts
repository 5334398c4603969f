// A second node of a test cluster in an emulated machine that has version 2 of cgroups only: a real kubelet with its
// defaults, containerd, runc and simulated GPUs. The control plane and the chart's other pods stay outside.
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Bed } from '../../cluster/bed/bed.ts';
import { kubeletKubeconfigOf } from '../../cluster/bed/control-plane.ts';
import { eventually } from '../../cluster/bed/eventually.ts';
import { importerInto } from '../../cluster/bed/images.ts';
import { lastWords, type Ran } from '../../cluster/bed/namespaces.ts';
import { HOME } from '../inside/report.ts';
import { machineCommand } from '../machine.ts';
import type { GuestTools } from '../tools.ts';
import { diskInitrd, fillDisk, GPU_FOLDER, type NodePrograms, packDisk } from './disk.ts';
import { CONTROL_PORT, GUEST_NETWORK, GUEST_NODE, NETWORK_SCRIPT, networkDevices } from './network.ts';

/** Until something is done in the guest: about twenty times what it takes outside. */
export const GUEST_WAIT_MS = 480_000;
/** Until QEMU is ended from outside, should the guest not have ended it. */
const RESET_MS = 10_000;
const MEMORY_MIB = 6144;
/** Imports images; the kubelet's plugins of containerd are not needed for it. */
const IMPORTER = `disabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.cri.v1.runtime', 'io.containerd.cri.v1.images', 'io.containerd.nri.v1.nri']
`;

export type GuestNode = {
  /** Runs a program in the guest to its end. */
  run(command: readonly string[], input?: string, limitMs?: number): Ran;
  /** Runs a script in the guest; throws with its output when it fails. */
  script(text: string): string;
  /** Restarts the machine at once, and resolves when its kubelet is ready again. */
  reboot(): Promise<void>;
  /** UUIDs of the GPUs. */
  readonly uuids: readonly string[];
};

/** Imports what `images` adds to the bed that it gets, in a folder that becomes the root of the guest's containerd. */
async function importImages(bed: Bed, packages: string, root: string, images: (bed: Bed) => void): Promise<void> {
  const at = (name: string) => join(bed.folder, 'guest', name);
  const socket = at('containerd.sock');
  const settings = `version = 3
root = ${JSON.stringify(join(root, 'var/lib/containerd'))}
state = ${JSON.stringify(at('state'))}
${IMPORTER}[grpc]
  address = ${JSON.stringify(socket)}
[plugins.'io.containerd.internal.v1.opt']
  path = ${JSON.stringify(at('opt'))}
`;
  writeFileSync(at('importer.toml'), settings);
  bed.namespaces.start('importer', [join(packages, 'usr/bin/containerd'), '-c', at('importer.toml')]);
  const ctr = join(packages, 'usr/bin/ctr');
  const answers = () => existsSync(socket) && bed.namespaces.run([ctr, '-a', socket, 'version']).code === 0;
  await eventually(answers, 'containerd answers that imports the images');
  images({ ...bed, addImage: importerInto(bed.namespaces, bed.folder, packages, socket) });
  await bed.namespaces.stop('importer', 'SIGTERM');
}

/** Whether the kubelet reports that its node is ready, and has reported since then. */
function isReady(bed: Bed, sinceMs: number): boolean {
  const ready = '{.status.conditions[?(@.type=="Ready")].status}';
  const lease = ['get', 'lease', GUEST_NODE, '-n', 'kube-node-lease', '-o', 'jsonpath={.spec.renewTime}'];
  return (
    bed.kubectl('get', 'node', GUEST_NODE, '-o', `jsonpath=${ready}`).out === 'True' &&
    Date.parse(bed.kubectl(...lease).out) > sinceMs
  );
}

function control(bed: Bed, command: readonly string[], input = '', limitMs = GUEST_WAIT_MS): Ran {
  const url = `http://${GUEST_NETWORK.node}:${CONTROL_PORT}/`;
  const asked = JSON.stringify({ command, input });
  const limit = ['--max-time', String(limitMs / 1000)];
  const { code, out, err } = bed.namespaces.run(['curl', '-sS', ...limit, '--data-binary', '@-', url], {
    input: asked,
  });
  return code === 0 ? (JSON.parse(out) as Ran) : { code: null, out, err };
}

/**
 * Starts the node and waits until it is ready. `gpus`: models of its simulated GPUs. `images`: adds its images to a bed.
 * The bed's `nodes` have to name the node. It ends with the bed.
 */
export async function startGuestNode(
  bed: Bed,
  tools: Extract<GuestTools, { ok: true }>,
  programs: NodePrograms,
  gpus: readonly string[],
  images: (bed: Bed) => void,
): Promise<GuestNode> {
  const folder = join(bed.folder, 'guest');
  const [root, disk, initrd] = ['root', 'disk.img', 'initrd'].map((name) => join(folder, name)) as [
    string,
    string,
    string,
  ];
  mkdirSync(root, { recursive: true });
  await importImages(bed, programs.packages, root, images);
  fillDisk(root, tools, programs, join(bed.folder, kubeletKubeconfigOf(GUEST_NODE)));
  packDisk(root, disk);
  writeFileSync(initrd, diskInitrd(tools));

  bed.namespaces.script(NETWORK_SCRIPT);
  const drive = ['-drive', `file=${disk},if=none,id=disk0,format=raw,cache=unsafe`];
  const devices = [...drive, '-device', 'virtio-blk-pci,drive=disk0', ...networkDevices()];
  const command = machineCommand(tools, { initrd, memoryMib: MEMORY_MIB, processors: 2, devices });
  bed.namespaces.start('guest', command);
  const run: GuestNode['run'] = (argv, input, limitMs) => control(bed, argv, input, limitMs);
  const script: GuestNode['script'] = (text) => {
    const { code, out, err } = run(['sh', '-eu', '-c', text]);
    if (code !== 0) throw new Error(`the guest: ${err.trim()}`);
    return out;
  };
  const start = (name: string, argv: readonly string[]) =>
    script(`setsid ${argv.join(' ')} > /var/log/${name}.log 2>&1 < /dev/null &`);
  const untilDone = (text: string, what: string) =>
    eventually(() => run(['sh', '-c', text]).code === 0, what, GUEST_WAIT_MS).catch((error: unknown) => {
      throw new Error(`${(error as Error).message}\n${lastWords(bed.folder, 'guest')}`);
    });

  /** Starts the programs of a node that has booted, and waits until the kubelet reports that it is ready. */
  const startNode = async (): Promise<readonly string[]> => {
    const since = Date.now();
    await untilDone('true', 'the guest answers');
    start('containerd', ['containerd']);
    const models = gpus.flatMap((gpu) => ['--gpu', gpu]);
    script(`rm -rf ${GPU_FOLDER} && mkdir -p ${GPU_FOLDER}`);
    start('simulator', [`${HOME}/native/build/cotenant-simulator`, 'serve', '--dir', GPU_FOLDER, ...models]);
    await untilDone(`test -e ${GPU_FOLDER}/node.sock`, 'the simulated node listens');
    const uuids = JSON.parse(script(`node ${HOME}/test/guest/inside/simulated-node.ts ${GPU_FOLDER}`)) as string[];
    await untilDone('ctr version', 'containerd answers');
    const configuration = ['--kubeconfig', '/etc/kubernetes/kubeconfig', '--config', '/etc/kubernetes/kubelet.yaml'];
    const names = ['--hostname-override', GUEST_NODE, '--node-ip', GUEST_NETWORK.node];
    start('kubelet', ['kubelet', ...configuration, ...names]);
    await eventually(
      () => isReady(bed, since),
      'the kubelet of the guest reports that its node is ready',
      GUEST_WAIT_MS,
    ).catch((error: unknown) => {
      throw new Error(`${(error as Error).message}\n${run(['tail', '-n', '20', '/var/log/kubelet.log']).out}`);
    });
    return uuids;
  };
  const uuids = await startNode();
  bed.apply({ apiVersion: 'node.k8s.io/v1', kind: 'RuntimeClass', metadata: { name: 'nvidia' }, handler: 'simulated' });
  bed.kubectl('label', 'node', GUEST_NODE, 'nvidia.com/gpu.present=true');
  return {
    run,
    script,
    uuids,
    async reboot() {
      // As a reset does: no program ends by itself, and QEMU ends in place of a restart.
      run(['sh', '-c', 'sync; echo b > /proc/sysrq-trigger'], '', RESET_MS);
      await bed.namespaces.stop('guest', 'SIGKILL');
      bed.namespaces.startAgain('guest');
      await startNode();
    },
  };
}

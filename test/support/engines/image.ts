// An image for container engines without a registry: the scripted client and the C library of this machine. And what
// NVIDIA's toolkit would write for the simulated node: a CDI specification with its GPUs.
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, realpathSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { BUILD, type SimulatedNode, type Teardown, temporaryFolder } from '../native/node.ts';

export const CLIENT = '/client';
/** Programs of this machine that the image has, too. */
const PROGRAMS = ['/bin/sh', '/bin/sleep', '/bin/cat'];

export type TestImage = { readonly tar: string; readonly rootfs: string };

export function makeImage(t: Teardown): TestImage {
  const folder = temporaryFolder(t);
  const rootfs = join(folder, 'rootfs');
  for (const name of ['proc', 'sys', 'dev', 'tmp', 'etc', 'usr/lib/x86_64-linux-gnu'])
    mkdirSync(join(rootfs, name), { recursive: true });
  const put = (from: string, to: string) => {
    mkdirSync(dirname(join(rootfs, to)), { recursive: true });
    copyFileSync(realpathSync(from), join(rootfs, to));
  };
  put(join(BUILD, 'tests/client'), CLIENT);
  // In place of NVIDIA's: the bytes of the first GPU that a program sees.
  mkdirSync(join(rootfs, 'usr/bin'));
  const script = `#!/bin/sh\nprintf 'init\\ncontext 0\\ntotal 0\\n' | ${CLIENT}\n`;
  writeFileSync(join(rootfs, 'usr/bin/nvidia-smi'), script, { mode: 0o755 });
  const objects = PROGRAMS.flatMap((program) => {
    put(program, program);
    return [...execFileSync('ldd', [program], { encoding: 'utf8' }).matchAll(/(\/\S+) \(/g)].map(
      ([, path]) => path ?? '',
    );
  });
  // libdl and libpthread are parts of the C library, which the interposer may name.
  const libc = '/lib/x86_64-linux-gnu';
  for (const path of new Set([
    ...objects,
    ...['libdl.so.2', 'libpthread.so.0', 'libm.so.6'].map((name) => join(libc, name)),
  ]))
    put(path, path);
  const tar = join(folder, 'image.tar');
  execFileSync('tar', ['-C', rootfs, '-cf', tar, '.']);
  return { tar, rootfs };
}

/** Writes NVIDIA's specification for the node into a folder of its own, which it returns. */
export function writeNvidiaSpec(t: Teardown, node: SimulatedNode, gpus: number): string {
  const folder = join(temporaryFolder(t), 'cdi');
  const files = join(temporaryFolder(t), 'gpus');
  mkdirSync(folder);
  mkdirSync(files);
  const options = ['ro', 'nosuid', 'nodev', 'rbind', 'rprivate'];
  const mount = (hostPath: string, containerPath: string) => ({ hostPath, containerPath, options });
  const libraries = ['libcuda.so.1', 'libnvidia-ml.so.1'].map((name) =>
    mount(realpathSync(join(node.lib, name)), `/usr/lib/x86_64-linux-gnu/${name}`),
  );
  const devices = Array.from({ length: gpus }, (_, gpu) => {
    const file = join(files, node.uuid(gpu));
    writeFileSync(file, '');
    // In place of the GPU's own node one that every machine has.
    const deviceNodes = [{ path: '/dev/full' }];
    // The simulated driver shows the GPUs of which the container has such a file.
    const mounts = [mount(file, `/usr/local/simulated/gpus/${node.uuid(gpu)}`)];
    return { name: node.uuid(gpu), containerEdits: { deviceNodes, mounts } };
  });
  const containerEdits = {
    env: ['NVIDIA_VISIBLE_DEVICES=void'],
    mounts: [...libraries, mount(join(node.folder, 'node.sock'), '/usr/local/simulated/node.sock')],
  };
  const spec = { cdiVersion: '0.5.0', kind: 'nvidia.com/gpu', containerEdits, devices };
  writeFileSync(join(folder, 'nvidia.json'), JSON.stringify(spec));
  return folder;
}

// The files of the guest: sources and native parts of this checkout, the Node.js of the tests, packages that the agent
// needs, a shell, and an /init that mounts what a cgroup v2 node has and runs the checks.
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { interposerFiles } from '../support/native/node.ts';
import { createArchive } from './initramfs.ts';
import { HOME, UNSHARE } from './inside/report.ts';

const ROOT = join(import.meta.dirname, '../..');
const NATIVE = [
  'cotenant.node',
  'cotenant-arbitrate',
  'cotenant-calibrate',
  'cotenant-canary',
  'cotenant-limits',
  'cotenant-sampler',
  'cotenant-simulator',
];
const LIBRARIES = [...interposerFiles(), 'simulated', 'tests/client'];
/** Large packages that are not needed without a cluster. */
const UNUSED = /^node_modules\/@kubernetes\//;

const INIT = `#!/bin/busybox sh
export PATH=/bin HOME=/ COTENANT_BUILD=${HOME}/native/build
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
node ${HOME}/test/guest/inside/main.ts 2>&1
poweroff -f
`;

/** Shared objects that a program needs, including the loader. */
function librariesOf(program: string): string[] {
  const text = execFileSync('ldd', [program], { encoding: 'utf8' });
  return [...text.matchAll(/(?:=> )?(\/\S+) \(0x/g)].map(([, path = '']) => path);
}

type Lock = { packages: Record<string, { dev?: boolean; optional?: boolean }> };

export function guestFiles(busybox: string): Buffer {
  const archive = createArchive();
  const built = join(ROOT, 'native/build');
  const unshare = execFileSync('sh', ['-c', 'command -v unshare'], { encoding: 'utf8' }).trim();
  const programs = [process.execPath, unshare, ...[...NATIVE, 'tests/client'].map((name) => join(built, name))];
  for (const path of new Set(programs.flatMap(librariesOf))) archive.put(path, path);
  archive.put(process.execPath, '/bin/node');
  archive.put(unshare, UNSHARE);
  archive.put(busybox, '/bin/busybox');
  const applets = execFileSync(busybox, ['--list'], { encoding: 'utf8' }).split('\n').filter(Boolean);
  for (const name of applets.filter((one) => one !== 'busybox')) archive.link(`/bin/${name}`, 'busybox');
  for (const name of [...NATIVE, ...LIBRARIES]) archive.put(join(built, name), join(HOME, 'native/build', name));
  for (const path of ['package.json', 'src', 'native/build.ts', 'test/guest/inside']) {
    archive.put(join(ROOT, path), join(HOME, path));
  }
  const lock = JSON.parse(readFileSync(join(ROOT, 'package-lock.json'), 'utf8')) as Lock;
  for (const [path, { dev, optional }] of Object.entries(lock.packages)) {
    if (path === '' || dev || UNUSED.test(path) || (optional && !existsSync(join(ROOT, path)))) continue;
    archive.put(join(ROOT, path), join(HOME, path));
  }
  for (const name of ['proc', 'sys', 'dev', 'tmp']) archive.folder(`/${name}`);
  archive.write('/init', INIT);
  return archive.end();
}

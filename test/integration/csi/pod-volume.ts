// What the scenarios of inside.ts have in common: one volume of a pod with two containers, and functions to look at it.
import { spawnSync } from 'node:child_process';
import {
  closeSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { basename, join, relative } from 'node:path';
import { engineName } from '../../../src/agent/grants/engine-files.ts';
import { libraries, openRegistry } from '../../../src/agent/grants/registry.ts';
import {
  ledgerPath,
  mountVolume,
  pagePath,
  podVolumes,
  type VolumePlan,
  withWritable,
} from '../../../src/agent/kubelet/csi/volume.ts';
import { loadNative } from '../../../src/agent/os/addon.ts';
import { OTHER_ENGINES, SAME_AGAIN } from '../../support/native/engines.ts';
import { loggerTo } from '../../support/product/logger.ts';

export const folder = process.argv[3] ?? '';
export const native = loadNative();
export const target = join(folder, 'pods/a pod\\of ours/mount');
export const LIBRARIES = libraries();
export const plan: VolumePlan = {
  target,
  containers: ['main', 'side-car'],
  ledgerBytes: 100_000,
  libraries: LIBRARIES,
};

/** What became of it: `done`, the name of the error's number, or its text. */
export function outcome(work: () => unknown): string {
  try {
    work();
    return 'done';
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? (error as Error).message;
  }
}

export function message(work: () => unknown): string {
  try {
    work();
    return 'done';
  } catch (error) {
    return (error as Error).message;
  }
}

/** The volume as the agent leaves it, with pages and ledgers in it. */
export function publish(of: VolumePlan = plan): void {
  mountVolume(native, of);
  withWritable(native, of.target, () => {
    for (const name of of.containers) writeFileSync(pagePath(of.target, name), '');
  });
  for (const name of of.containers) writeFileSync(ledgerPath(of.target, name), '');
}

export const openForWriting = (path: string) => closeSync(openSync(path, 'r+'));

function mount(...args: string[]): void {
  const { status, stderr } = spawnSync('mount', args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(stderr);
}

/** A bind of it that says of itself that it is writable. */
export function bind(path: string, name: string): string {
  const to = join(folder, name);
  if (statSync(path).isDirectory()) mkdirSync(to);
  else writeFileSync(to, '');
  mount('--bind', path, to);
  mount('-o', 'remount,bind,rw', to);
  return to;
}

/** Mounts in this folder, each with the options of its file system. */
export const mounts = () =>
  readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .map((line) => line.split(' '))
    .filter((words) => words[4]?.startsWith(folder))
    .map((words) => [words[4]?.slice(folder.length + 1) ?? '', words[5] ?? '', words.at(-1) ?? ''] as const);

/** Whether nothing can be made in it, tried. */
export const isSealed = () => outcome(() => writeFileSync(join(target, 'tried'), '')) === 'EROFS';

export function tree(): Record<string, string> {
  const entries = readdirSync(target, { recursive: true, withFileTypes: true });
  return Object.fromEntries(
    entries.map((entry) => {
      const path = join(entry.parentPath, entry.name);
      const { mode, size } = statSync(path);
      return [
        relative(target, path),
        entry.isDirectory() ? (mode & 0o7777).toString(8) : `${(mode & 0o7777).toString(8)} ${size}`,
      ];
    }),
  );
}

export const numbers = () =>
  readdirSync(target, { recursive: true }).map((name) => [name, statSync(join(target, String(name))).ino]);
export const shares = ['main', 'side-car'].map((container) => ({
  namespace: 'team',
  pod: 'one',
  container,
  gpus: [
    {
      gpuUuid: 'GPU-00112233-4455-6677-8899-aabbccddeeff',
      memoryBytes: 1 << 30,
      limitBytes: 1 << 30,
      coresPercent: 0,
    },
  ],
  isolateMemory: true,
  owner: { podUid: '0f3a9c1e-7d52-4b8e-9a61-3c5d7e9f1b20', target, kind: 'app' as const },
}));

/** What was built, with an engine of the next number in place of the own one. */
export function nextBuild(): string {
  const build = join(folder, 'next');
  mkdirSync(build, { recursive: true });
  const next = join(OTHER_ENGINES, engineName(SAME_AGAIN));
  for (const path of [...LIBRARIES.filter((one) => !one.includes('engine')), next]) {
    rmSync(join(build, basename(path)), { force: true });
    symlinkSync(path, join(build, basename(path)));
  }
  return build;
}

/** Grants of a pod, as agents of several builds have them, one after the other. */
export function upgraded() {
  const problems: string[] = [];
  const open = (build: string, heldEngine?: number) =>
    openRegistry({
      stateFolder: join(folder, 'state'),
      native,
      volumes: podVolumes(native),
      profileOf: () => ({ contextBytes: 0, granuleBytes: 0, releasesLate: false }),
      log: loggerTo(problems, 'warn'),
      build,
      heldEngine,
    });
  /** The engines that the pages name, and those that are there. */
  const facts = () => ({
    named: plan.containers.map((name) => readFileSync(pagePath(target, name)).readUInt32LE(48)),
    engines: readdirSync(join(target, 'lib')).filter((name) => name.includes('engine')),
  });
  return { open, facts, problems };
}

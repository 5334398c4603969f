// What volume.test.ts looks at, done in a mount namespace of its own: inside.ts SCENARIO FOLDER. Prints facts as JSON;
// which of them are right is said by the test.
import { spawnSync } from 'node:child_process';
import {
  closeSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { basename, join, relative } from 'node:path';
import { engineName } from '../../../src/agent/grants/engine-files.ts';
import { libraries, openRegistry } from '../../../src/agent/grants/registry.ts';
import {
  isMounted,
  isPublished,
  ledgerPath,
  markPublished,
  mountVolume,
  pagePath,
  podVolumes,
  unmountVolume,
  type VolumePlan,
  withWritable,
} from '../../../src/agent/kubelet/csi/volume.ts';
import { BUILD_FOLDER, loadNative } from '../../../src/agent/os/addon.ts';
import { OTHER_ENGINES, SAME_AGAIN } from '../../support/native/engines.ts';
import { loggerTo } from '../../support/product/logger.ts';

const [scenario = '', folder = ''] = process.argv.slice(2);
const native = loadNative();
const target = join(folder, 'pods/a pod\\of ours/mount');
const LIBRARIES = libraries();
const plan: VolumePlan = { target, containers: ['main', 'side-car'], ledgerBytes: 100_000, libraries: LIBRARIES };

/** What became of it: `done`, the name of the error's number, or its text. */
function outcome(work: () => unknown): string {
  try {
    work();
    return 'done';
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? (error as Error).message;
  }
}

function message(work: () => unknown): string {
  try {
    work();
    return 'done';
  } catch (error) {
    return (error as Error).message;
  }
}

/** The volume as the agent leaves it, with pages and ledgers in it. */
function publish(of: VolumePlan = plan): void {
  mountVolume(native, of);
  withWritable(native, of.target, () => {
    for (const name of of.containers) writeFileSync(pagePath(of.target, name), '');
  });
  for (const name of of.containers) writeFileSync(ledgerPath(of.target, name), '');
}

const openForWriting = (path: string) => closeSync(openSync(path, 'r+'));

function mount(...args: string[]): void {
  const { status, stderr } = spawnSync('mount', args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(stderr);
}

/** A bind of it that says of itself that it is writable. */
function bind(path: string, name: string): string {
  const to = join(folder, name);
  if (statSync(path).isDirectory()) mkdirSync(to);
  else writeFileSync(to, '');
  mount('--bind', path, to);
  mount('-o', 'remount,bind,rw', to);
  return to;
}

/** Mounts in this folder, each with the options of its file system. */
const mounts = () =>
  readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .map((line) => line.split(' '))
    .filter((words) => words[4]?.startsWith(folder))
    .map((words) => [words[4]?.slice(folder.length + 1) ?? '', words[5] ?? '', words.at(-1) ?? ''] as const);

/** Whether nothing can be made in it, tried. */
const isSealed = () => outcome(() => writeFileSync(join(target, 'tried'), '')) === 'EROFS';

function tree(): Record<string, string> {
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

const numbers = () =>
  readdirSync(target, { recursive: true }).map((name) => [name, statSync(join(target, String(name))).ino]);

/** The rest of a scenario in a process of its own, in the same namespace. */
function anotherProcess(name: string): unknown {
  const { stdout, signal } = spawnSync(process.execPath, [import.meta.filename, name, folder], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  return signal ?? JSON.parse(stdout);
}

const shares = ['main', 'side-car'].map((container) => ({
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
function nextBuild(): string {
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
function upgraded() {
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

const scenarios: Record<string, () => unknown> = {
  layout() {
    process.umask(0o077);
    publish();
    const copies = LIBRARIES.map((path) =>
      readFileSync(path).equals(readFileSync(join(target, 'lib', path.split('/').at(-1) ?? ''))),
    );
    return {
      tree: tree(),
      copies,
      preload: readFileSync(join(target, 'ld.so.preload'), 'utf8'),
      mounts: mounts(),
      sizes: Object.fromEntries(LIBRARIES.map((path) => [basename(path), statSync(path).size])),
    };
  },

  readOnly() {
    publish();
    const whole = bind(target, 'whole');
    const page = bind(pagePath(target, 'main'), 'page');
    return {
      flags: mounts()
        .filter(([path]) => path === 'whole' || path === 'page')
        .map(([, flags]) => flags.split(',')[0]),
      writes: ['lib/libcotenant.so', 'lib/limits', 'containers/main/limits', 'ld.so.preload'].map((name) =>
        outcome(() => openForWriting(join(whole, name))),
      ),
      page: outcome(() => openForWriting(page)),
      make: outcome(() => writeFileSync(join(whole, 'new'), '')),
      folder: outcome(() => mkdirSync(join(whole, 'containers/new'))),
      unlink: outcome(() => unlinkSync(join(whole, 'ld.so.preload'))),
      rename: outcome(() => renameSync(join(whole, 'ld.so.preload'), join(whole, 'x'))),
      overLedgers: outcome(() => renameSync(join(whole, 'ledgers'), join(whole, 'x'))),
      read: outcome(() => readFileSync(join(whole, 'ld.so.preload'))),
    };
  },

  bounded() {
    publish();
    const fd = openSync(ledgerPath(target, 'main'), 'r+');
    let bytes = 0;
    const full = outcome(() => {
      for (;;) bytes += writeSync(fd, Buffer.alloc(4096, 1));
    });
    const others = outcome(() => writeFileSync(ledgerPath(target, 'side-car'), Buffer.alloc(4096, 1)));
    closeSync(fd);
    writeFileSync(ledgerPath(target, 'main'), '');
    let files = 0;
    const crowded = outcome(() => {
      for (;;) writeFileSync(join(target, 'ledgers', String(files++)), '');
    });
    return { full, bytes, others, crowded, files };
  },

  update() {
    publish();
    const page = bind(pagePath(target, 'main'), 'page');
    const seen = openSync(page, 'r');
    const answer = withWritable(native, target, () => {
      const fd = openSync(pagePath(target, 'main'), 'r+');
      writeSync(fd, 'first');
      closeSync(fd);
      return 'answer';
    });
    const throwing = message(() =>
      withWritable(native, target, () => {
        throw new Error('no page today');
      }),
    );
    const facts = {
      answer,
      throwing,
      page: readFileSync(page, 'utf8'),
      held: readFileSync(seen, 'utf8'),
      sealed: isSealed(),
    };
    let fd = -1;
    const busy = message(() =>
      withWritable(native, target, () => {
        fd = openSync(pagePath(target, 'main'), 'r+');
      }),
    );
    const both = message(() =>
      withWritable(native, target, () => {
        throw new Error('no page today');
      }),
    );
    const open = isSealed();
    closeSync(fd);
    withWritable(native, target, () => {});
    return { ...facts, busy, both, open, sealedAgain: isSealed(), target };
  },

  unmount() {
    publish();
    markPublished(native, target);
    const before = [isMounted(target), isPublished(target)];
    const fd = openSync(ledgerPath(target, 'main'), 'r+'); // a process still has it open
    unmountVolume(native, target);
    unmountVolume(native, target);
    closeSync(fd);
    return {
      before,
      after: [isMounted(target), isPublished(target)],
      mounts: mounts(),
      left: readdirSync(join(target, '..')),
    };
  },

  calm() {
    publish();
    const taken: [string, boolean][] = [];
    const watched = {
      ...native,
      unmount(path: string, lazy: boolean) {
        taken.push([relative(target, path), lazy]);
        native.unmount(path, lazy);
      },
    };
    unmountVolume(watched, target);
    return taken;
  },

  stacked() {
    mountVolume(native, plan);
    mountVolume(native, { ...plan, target: `${target} 2` });
    native.mountTmpfs(target, 'size=4096', false);
    mkdirSync(join(target, 'below'));
    native.mountTmpfs(join(target, 'below'), 'size=4096', false);
    unmountVolume(native, target);
    return mounts().map(([path]) => path);
  },

  twice() {
    publish();
    withWritable(native, target, () => writeFileSync(pagePath(target, 'main'), 'page', { flag: 'r+' }));
    writeFileSync(ledgerPath(target, 'main'), 'ledger');
    const first = { numbers: numbers(), mounts: mounts() };
    mountVolume(native, plan);
    const second = { numbers: numbers(), mounts: mounts() };
    return {
      first,
      second,
      page: readFileSync(pagePath(target, 'main'), 'utf8'),
      ledger: readFileSync(ledgerPath(target, 'main'), 'utf8'),
    };
  },

  restart() {
    publish();
    markPublished(native, target);
    const first = numbers();
    const adopted = anotherProcess('adopt');
    const killed = anotherProcess('killedWhileWritable');
    const open = isSealed();
    mountVolume(native, plan);
    return { first, adopted, killed, open, sealed: isSealed(), published: isPublished(target), last: numbers() };
  },
  adopt() {
    const found = [isMounted(target), isPublished(target)];
    mountVolume(native, plan);
    return { found, numbers: numbers() };
  },
  killedWhileWritable() {
    withWritable(native, target, () => process.kill(process.pid, 'SIGKILL'));
  },

  halfMade() {
    mkdirSync(target, { recursive: true });
    native.mountTmpfs(target, 'size=10m,mode=0755', true);
    mkdirSync(join(target, 'lib'));
    writeFileSync(join(target, 'lib/libcotenant.so.new'), 'cut sho');
    const before = [isMounted(target), isPublished(target)];
    mountVolume(native, plan);
    return { before, after: [isMounted(target), isPublished(target)], tree: tree(), sealed: isSealed() };
  },

  replaced() {
    const other = { ...plan, target: join(folder, 'other') };
    publish();
    publish(other);
    const ledgers = join(target, 'ledgers/main');
    rmSync(ledgers, { recursive: true });
    symlinkSync(join(other.target, 'ledgers/main'), ledgers);
    mountVolume(native, plan);
    return { isFolder: lstatSync(ledgers).isDirectory(), others: readdirSync(join(other.target, 'ledgers/main')) };
  },

  links() {
    mkdirSync(join(folder, 'elsewhere'));
    mkdirSync(join(folder, 'pods'));
    symlinkSync(join(folder, 'elsewhere'), join(folder, 'pods/link'));
    const atLink = outcome(() => mountVolume(native, { ...plan, target: join(folder, 'pods/link') }));
    // The kubelet's own folder may well be a link.
    symlinkSync(join(folder, 'elsewhere'), join(folder, 'root'));
    const below = join(folder, 'root/mount');
    publish({ ...plan, target: below });
    const mounted = [isMounted(below), outcome(() => writeFileSync(join(below, 'x'), '')), mounts().length];
    unmountVolume(native, below);
    return { atLink, mounted, after: mounts(), link: readlinkSync(join(folder, 'root')) };
  },

  names() {
    return ['', '..', '../x', 'a/b', 'A', 'x'.repeat(64)].map((name) => [
      name,
      message(() => mountVolume(native, { ...plan, containers: ['main', name] })),
    ]);
  },

  upgrade() {
    const { open, facts, problems } = upgraded();
    const first = open(BUILD_FOLDER);
    first.createPod(shares, { inUse: false });
    const before = { ...facts(), numbers: numbers() };
    first.close();
    const second = open(nextBuild());
    const adopted = facts();
    second.renew();
    const one = facts();
    for (let turn = 0; turn < 3; turn++) second.renew();
    second.refreshProfiles();
    const seen = bind(join(target, 'lib'), 'seen');
    const path = join(seen, engineName(SAME_AGAIN));
    const tries = [
      outcome(() => openForWriting(path)),
      outcome(() => unlinkSync(path)),
      outcome(() => renameSync(path, join(seen, 'x'))),
      outcome(() => writeFileSync(join(seen, engineName(77)), '')),
    ];
    const whole = readFileSync(path).equals(readFileSync(join(OTHER_ENGINES, engineName(SAME_AGAIN))));
    const mode = (statSync(path).mode & 0o7777).toString(8);
    const all = facts();
    second.close();
    const held = open(nextBuild(), 1);
    const back = facts();
    held.close();
    return { before, adopted, one, all, back, tries, whole, mode, sealed: isSealed(), numbers: numbers(), problems };
  },

  noRoom() {
    const { open, facts, problems } = upgraded();
    const first = open(BUILD_FOLDER);
    first.createPod(shares, { inUse: false });
    first.close();
    const filler = join(target, 'lib/filler');
    withWritable(native, target, () => {
      outcome(() => {
        const fd = openSync(filler, 'w');
        try {
          for (;;) writeSync(fd, Buffer.alloc(4096, 1));
        } finally {
          closeSync(fd);
        }
      });
    });
    const second = open(nextBuild());
    for (let turn = 0; turn < 5; turn++) second.renew();
    const full = { ...facts(), lib: readdirSync(join(target, 'lib')).sort(), sealed: isSealed() };
    const behind = second.list().map((entry) => second.isBehind(entry));
    second.close();
    withWritable(native, target, () => unlinkSync(filler));
    const third = open(nextBuild());
    for (let turn = 0; turn < 2; turn++) third.renew();
    const later = { ...facts(), behind: third.list().map((entry) => third.isBehind(entry)) };
    third.close();
    const held = open(nextBuild(), 77);
    for (let turn = 0; turn < 4; turn++) held.renew();
    return { full, behind, later, held: facts(), problems };
  },

  pace() {
    const median = (work: (round: number) => void): number => {
      const times = Array.from({ length: 51 }, (_, round) => {
        const started = performance.now();
        work(round);
        return performance.now() - started;
      });
      return times.toSorted((a, b) => a - b)[25] ?? Number.NaN;
    };
    const targetOf = (round: number) => join(folder, String(round));
    const publishMs = median((round) => {
      publish({ ...plan, target: targetOf(round) });
      markPublished(native, targetOf(round));
    });
    const first = targetOf(0);
    const rewriteMs = median(() => withWritable(native, first, () => writeFileSync(pagePath(first, 'main'), 'page')));
    const unmountMs = median((round) => unmountVolume(native, targetOf(round)));
    return { publishMs, rewriteMs, unmountMs };
  },
};

console.log(JSON.stringify(scenarios[scenario]?.() ?? null));

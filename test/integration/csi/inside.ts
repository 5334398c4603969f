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
import {
  isMounted,
  isPublished,
  ledgerPath,
  markPublished,
  mountVolume,
  pagePath,
  unmountVolume,
  withWritable,
} from '../../../src/agent/kubelet/csi/volume.ts';
import { BUILD_FOLDER } from '../../../src/agent/os/addon.ts';
import { OTHER_ENGINES, OWN, SAME_AGAIN } from '../../support/native/engines.ts';
import {
  bind,
  folder,
  isSealed,
  LIBRARIES,
  message,
  mounts,
  native,
  nextBuild,
  numbers,
  openForWriting,
  outcome,
  plan,
  publish,
  shares,
  target,
  tree,
  upgraded,
} from './pod-volume.ts';

const scenario = process.argv[2] ?? '';

/** The rest of a scenario in a process of its own, in the same namespace. */
function anotherProcess(name: string): unknown {
  const { stdout, signal } = spawnSync(process.execPath, [import.meta.filename, name, folder], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  return signal ?? JSON.parse(stdout);
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
    const held = open(nextBuild(), OWN);
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

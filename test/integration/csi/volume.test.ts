// A pod's volume on a real kernel, each scenario of inside.ts in a mount namespace of its own.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { engineName } from '../../../src/agent/grants/engine-files.ts';
import { mountsOf } from '../../../src/api/csi-volume.ts';
import { quoted, readPage, rowsWith } from '../../support/docs.ts';
import { namespacesReason, testUnless } from '../../support/gate.ts';
import { OWN, SAME_AGAIN } from '../../support/native/engines.ts';
import { interposerFiles, temporaryFolder } from '../../support/native/node.ts';

const test = testUnless(namespacesReason());

function inside<T>(t: ExecutionContext, scenario: string): T {
  const program = [process.execPath, join(import.meta.dirname, 'inside.ts'), scenario, temporaryFolder(t)];
  const { status, stdout, stderr } = spawnSync('unshare', ['-m', '--propagation', 'private', ...program], {
    encoding: 'utf8',
  });
  if (status !== 0) throw new Error(`${scenario}: ${stderr}`);
  return JSON.parse(stdout) as T;
}

type Mount = readonly [path: string, flags: string, superblock: string];
type Tree = Readonly<Record<string, string>>;

const folders = ['lib', 'containers', 'containers/main', 'containers/side-car'];
const ledgers = ['ledgers', 'ledgers/main', 'ledgers/side-car'];
/** As it is mounted, before there are pages and ledgers. */
const layout = (sizes: Readonly<Record<string, number>>): Tree => ({
  ...Object.fromEntries([...folders, ...ledgers].map((path) => [path, '755'])),
  'lib/limits': '644 0',
  'lib/ledger': '644 0',
  ...Object.fromEntries(interposerFiles().map((name) => [`lib/${name}`, `755 ${sizes[name]}`])),
  'ld.so.preload': '644 63',
});

test('a volume has the layout that the webhook mounts, with modes whatever the umask', (t) => {
  type Facts = { tree: Tree; copies: boolean[]; preload: string; mounts: Mount[]; sizes: Record<string, number> };
  const facts = inside<Facts>(t, 'layout');
  const isOwn = (path: string) => /^(containers|ledgers)\/.*\/(limits|ledger)$/.test(path);
  const entries = Object.entries(facts.tree);
  t.deepEqual(Object.fromEntries(entries.filter(([path]) => !isOwn(path))), layout(facts.sizes));
  t.is(entries.filter(([path]) => isOwn(path)).length, 4);
  t.deepEqual(facts.copies, [true, true, true]);
  t.is(facts.preload, '/run/cotenant/libcotenant.so\n/run/cotenant/libcotenant-nvml.so\n');
  const parts = ['main', 'side-car'].flatMap((name) => mountsOf(name).map((mount) => String(mount.subPath)));
  t.is(parts.length, 8);
  t.deepEqual(
    parts.filter((path) => !(path in facts.tree)),
    [],
  );
  // A mount below /run/cotenant needs its place in what is mounted there.
  for (const mount of mountsOf('main').filter(({ mountPath }) => String(mountPath).startsWith('/run/cotenant/'))) {
    t.true(String(mount.mountPath).replace('/run/cotenant', 'lib') in facts.tree);
  }
});

test('the page on the volume names all that is in it', (t) => {
  const { tree } = inside<{ tree: Tree }>(t, 'layout');
  const held = new Set(
    Object.keys(tree).map((path) => path.replace(/(main|side-car)(?=$|\/)/, 'NAME').replace(/(?<=engine\.)\d+/, 'N')),
  );
  const rows = rowsWith(readPage('docs/reference/volume.md'), 'path', 'in a container', 'written');
  const documented = rows.flatMap(({ path }) => quoted(path));
  t.deepEqual(documented.toSorted(), [...held, 'published'].toSorted());
});

test('the volume is read-only and bounded; that of the ledgers is bounded and noexec', (t) => {
  const { mounts } = inside<{ mounts: Mount[] }>(t, 'layout');
  const [volume = ['', '', ''], ledger = ['', '', ''], ...rest] = mounts;
  t.deepEqual(rest, []);
  const words = (text: string) => new Set(text.split(','));
  t.true(words(volume[1]).isSupersetOf(new Set(['nosuid', 'nodev'])));
  t.regex(volume[2], /^ro,size=\d+k,nr_inodes=\d+,mode=755/);
  t.true(words(ledger[1]).isSupersetOf(new Set(['nosuid', 'nodev', 'noexec'])));
  t.regex(ledger[2], /^rw,size=320k,nr_inodes=8,mode=755/);
});

test('nothing in the volume can be written through a mount that claims to be writable', (t) => {
  const { flags, read, writes, ...others } = inside<Record<string, string> & { flags: string[]; writes: string[] }>(
    t,
    'readOnly',
  );
  t.deepEqual(flags, ['rw', 'rw']);
  t.is(read, 'done');
  t.deepEqual(writes, Array(4).fill('EROFS'));
  t.deepEqual(
    Object.entries(others).filter(([, became]) => became !== 'EROFS'),
    [],
  );
  t.is(Object.keys(others).length, 6);
});

test('ledgers end at their bounds, in bytes and in files', (t) => {
  type Facts = { full: string; bytes: number; others: string; crowded: string; files: number };
  const facts = inside<Facts>(t, 'bounded');
  t.is(facts.full, 'ENOSPC');
  t.is(facts.bytes, 5 * 64 * 1024, 'two ledgers of 100,000 bytes in pages of 64 KiB, and one more');
  t.is(facts.others, 'ENOSPC');
  t.is(facts.crowded, 'ENOSPC');
  t.true(facts.files <= 4, String(facts.files));
});

test('a page is rewritten in place; the volume is read-only again, also after an error', (t) => {
  const facts = inside<Record<string, unknown>>(t, 'update');
  t.is(facts.answer, 'answer');
  t.is(facts.throwing, 'no page today');
  t.is(facts.page, 'first', 'seen through the mount of the file alone');
  t.is(facts.held, 'first', 'and by who had it open');
  t.true(facts.sealed);
});

test('a file that stays open for writing is an error that names the volume', (t) => {
  const facts = inside<Record<string, unknown>>(t, 'update');
  const stays = `the volume at ${facts.target} stays writable: EBUSY: a file of it is open or mapped for writing`;
  t.is(facts.busy, stays);
  t.is(facts.both, `${stays}; before that: no page today`);
  t.false(facts.open);
  t.true(facts.sealedAgain);
});

test('taking a volume down leaves no mount and no folder, also while in use, and twice', (t) => {
  t.deepEqual(inside(t, 'unmount'), { before: [true, true], after: [false, false], mounts: [], left: [] });
});

test('an unused volume is taken down for good, the ledgers first', (t) => {
  t.deepEqual(inside(t, 'calm'), [
    ['ledgers', false],
    ['', false],
  ]);
});

test('mounts on mounts are taken down, and those beside them are not', (t) => {
  const left = inside<string[]>(t, 'stacked');
  t.deepEqual(
    left.map((path) => path.replace(/.*mount/, '')),
    ['\\0402', '\\0402/ledgers'],
  );
});

test('mounting again changes nothing', (t) => {
  const { first, second, page, ledger } = inside<Record<string, unknown>>(t, 'twice');
  t.deepEqual(second, first);
  t.deepEqual([page, ledger], ['page', 'ledger']);
});

test('another process finds the volume, and makes it read-only after a killed writer', (t) => {
  const facts = inside<Record<string, unknown> & { adopted: Record<string, unknown> }>(t, 'restart');
  t.deepEqual(facts.adopted, { found: [true, true], numbers: facts.first });
  t.is(facts.killed, 'SIGKILL');
  t.false(facts.open, 'the one that was killed left it writable');
  t.true(facts.sealed);
  t.true(facts.published);
});

test('a volume that was left half made is not published, and is completed', (t) => {
  const facts = inside<Record<string, unknown> & { tree: Tree }>(t, 'halfMade');
  t.deepEqual(
    [facts.before, facts.after],
    [
      [true, false],
      [true, false],
    ],
  );
  t.true(facts.sealed);
  const size = (name: string) => Number(facts.tree[`lib/${name}`]?.split(' ')[1]);
  t.deepEqual(facts.tree, layout(Object.fromEntries(interposerFiles().map((name) => [name, size(name)]))));
  t.true(size('libcotenant.so') > 100_000);
});

test("a ledger folder that became a link is made again; the link's target is untouched", (t) => {
  t.deepEqual(inside(t, 'replaced'), { isFolder: true, others: ['ledger'] });
});

test('a target that is a link is refused; a kubelet whose folder is a link is served', (t) => {
  const facts = inside<Record<string, unknown>>(t, 'links');
  t.is(facts.atLink, 'ENOTDIR');
  t.deepEqual(facts.mounted, [true, 'EROFS', 2]);
  t.deepEqual(facts.after, []);
});

test('an invalid container name is refused before anything is mounted', (t) => {
  const answers = inside<[string, string][]>(t, 'names');
  t.is(answers.length, 6);
  for (const [name, refused] of answers) t.is(refused, `${JSON.stringify(name)} is not a container name`);
});

type Engines = { readonly named: readonly number[]; readonly engines: readonly string[] };

test('a newer agent adds its engine beside the old one, then moves pages one by one', (t) => {
  type Facts = Readonly<Record<'before' | 'adopted' | 'one' | 'all' | 'back', Engines>> & {
    readonly before: { readonly numbers: [string, number][] };
    readonly tries: string[];
    readonly numbers: [string, number][];
  } & Readonly<Record<'whole' | 'mode' | 'sealed' | 'problems', unknown>>;
  const facts = inside<Facts>(t, 'upgrade');
  const old = [engineName(OWN)];
  const both = [...old, engineName(SAME_AGAIN)];
  const sorted = ({ named, engines }: Engines) => ({ named, engines: engines.toSorted() });
  t.deepEqual(sorted(facts.before), { named: [OWN, OWN], engines: old });
  t.deepEqual(sorted(facts.adopted), { named: [OWN, OWN], engines: old }, 'adopting a grant changes nothing of it');
  t.deepEqual({ ...sorted(facts.one), named: facts.one.named.toSorted() }, { named: [OWN, SAME_AGAIN], engines: both });
  t.deepEqual(sorted(facts.all), { named: [SAME_AGAIN, SAME_AGAIN], engines: both });
  t.deepEqual(sorted(facts.back), { named: [OWN, OWN], engines: both }, 'held to the old one');
  t.deepEqual(facts.tries, ['EROFS', 'EROFS', 'EROFS', 'EROFS']);
  t.deepEqual([facts.whole, facts.mode, facts.sealed], [true, '755', true]);
  const now = new Map(facts.numbers);
  for (const [name, inode] of facts.before.numbers) t.is(now.get(name), inode, `${name} is the file that it was`);
  t.deepEqual(facts.problems, [
    `interposerEngine: this build has no engine ${OWN} (it has ${SAME_AGAIN}): only grants whose folder has ${engineName(OWN)} change to it`,
  ]);
});

test('a volume without space keeps its engine; so does one pinned to an unknown engine', (t) => {
  type Facts = {
    readonly full: Engines & { readonly lib: string[]; readonly sealed: boolean };
    readonly behind: boolean[];
    readonly later: Engines & { readonly behind: boolean[] };
    readonly held: Engines;
    readonly problems: string[];
  };
  const { full, behind, later, held, problems } = inside<Facts>(t, 'noRoom');
  t.deepEqual(full.named, [OWN, OWN]);
  t.deepEqual(full.lib, ['filler', 'ledger', engineName(OWN), 'libcotenant-nvml.so', 'libcotenant.so', 'limits']);
  t.true(full.sealed);
  t.deepEqual(behind, [true, true]);
  t.deepEqual(later.named, [SAME_AGAIN, SAME_AGAIN]);
  t.deepEqual(later.behind, [false, false]);
  t.deepEqual(held.named, [SAME_AGAIN, SAME_AGAIN]);
  t.is(problems.length, 5, problems.join('\n'));
  const [first = '', second = '', warned = '', ...kept] = problems;
  for (const text of [first, second])
    t.regex(text, /^team\/one\/\S+ \(grant \S+\) keeps its present engine, because it cannot get engine 902: ENOSPC/);
  t.regex(warned, /^interposerEngine: this build has no engine 77 /);
  for (const text of kept)
    t.regex(text, /keeps .*: libcotenant-engine\.77\.so is neither in its folder nor in this build/);
});

test('making, rewriting and taking down a volume does not block the agent', (t) => {
  const median = inside<{ publishMs: number; rewriteMs: number; unmountMs: number }>(t, 'pace');
  t.log(Object.entries(median).map(([what, ms]) => `${what} ${ms.toFixed(2)}`));
  // An order of magnitude above what a busy machine shows.
  t.true(median.publishMs < 250 && median.rewriteMs < 10 && median.unmountMs < 250);
});

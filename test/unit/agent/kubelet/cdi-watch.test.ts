// The CDI folders of a node: what is written there, when, and what is reported while there is no specification.
import { execFileSync } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { OWN_FILE } from '../../../../src/agent/kubelet/cdi/folders.ts';
import { readSpec } from '../../../../src/agent/kubelet/cdi/spec.ts';
import { OWN_KIND } from '../../../../src/agent/kubelet/cdi/split-spec.ts';
import { type CdiOptions, followCdi } from '../../../../src/agent/kubelet/cdi/watch.ts';
import { eventually, temporaryFolder } from '../../../support/native/node.ts';
import { loggerTo } from '../../../support/product/logger.ts';

const FIXTURE = join(import.meta.dirname, '../../../fixtures/cdi/nvidia.yaml');
const [ONE, TWO] = ['GPU-51a0c07e-4a27-4551-8d21-6e1004000000', 'GPU-51a0c07e-4a27-4551-8d21-6e1004000001'] as const;
const KIND = 'nvidia.com/gpu';
const DRAWS = ['NVIDIA_DRIVER_CAPABILITIES=compute,graphics'];
const UNDIVIDED = `as ${KIND}=<UUID>, with all parts of the driver, whatever NVIDIA_DRIVER_CAPABILITIES says`;

/** Two folders, as a runtime has them. */
function folders(t: ExecutionContext) {
  const root = temporaryFolder(t);
  const [etc, run] = [join(root, 'etc'), join(root, 'run')];
  mkdirSync(etc);
  mkdirSync(run);
  return { etc, run, own: join(run, OWN_FILE), nvidia: join(run, 'nvidia.yaml') };
}

function start(t: ExecutionContext, { etc, run }: { etc: string; run: string }, more: Partial<CdiOptions> = {}) {
  const problems: string[] = [];
  const cdi = followCdi({ folders: [etc, run], kind: KIND, log: loggerTo(problems), ...more });
  t.teardown(() => cdi.close());
  return { cdi, problems };
}

/** Whole, in the place of the one before, as tools do. */
function put(path: string, change = (text: string) => text): void {
  writeFileSync(`${path}.tmp`, change(readFileSync(FIXTURE, 'utf8')));
  renameSync(`${path}.tmp`, path);
}
const ours = (...names: readonly string[]) => names.map((name) => `${OWN_KIND}=${name}`);
const undivided = (...names: readonly string[]) => names.map((name) => `${KIND}=${name}`);

test('our CDI file is complete and readable at once, and containers get its devices', (t) => {
  const at = folders(t);
  copyFileSync(FIXTURE, join(at.etc, 'nvidia.yaml'));
  const before = process.umask(0o077);
  const { cdi, problems } = start(t, at);
  process.umask(before);
  t.deepEqual(cdi.devicesFor([ONE], []), ours(ONE));
  t.deepEqual(cdi.devicesFor([ONE], DRAWS), ours(ONE, 'graphics-display', 'graphics', `${ONE}.graphics-display`));
  t.deepEqual(readdirSync(at.run), [OWN_FILE]);
  t.is(statSync(at.own).mode & 0o777, 0o644);
  const spec = readSpec(JSON.parse(readFileSync(at.own, 'utf8')));
  t.like(spec, { ok: true, value: { kind: OWN_KIND, cdiVersion: '0.5.0' } });
  t.deepEqual(problems, []);
});

test('JSON and octal numbers are read, and files of others are not ours', (t) => {
  const at = folders(t);
  const yaml = [
    'cdiVersion: 0.5.0',
    `kind: ${KIND}`,
    'devices:',
    `  - name: ${ONE}`,
    '    containerEdits:',
    '      deviceNodes: [{path: /dev/nvidia0, fileMode: 0660}]',
  ].join('\n');
  writeFileSync(join(at.etc, 'a.yaml'), yaml);
  writeFileSync(join(at.run, 'broken.yaml'), 'a: [');
  writeFileSync(join(at.run, 'notes.txt'), 'x');
  const other = { cdiVersion: '0.5.0', kind: 'example.com/gpu', devices: [{ name: ONE, containerEdits: {} }] };
  writeFileSync(join(at.run, 'other.json'), JSON.stringify(other));
  const { cdi, problems } = start(t, at);
  t.deepEqual(cdi.devicesFor([ONE], DRAWS), ours(ONE));
  t.regex(readFileSync(at.own, 'utf8'), /"fileMode": 432/);
  const json = JSON.stringify({ ...other, kind: KIND, devices: [{ name: TWO, containerEdits: { env: ['A=1'] } }] });
  const again = folders(t);
  writeFileSync(join(again.etc, 'a.json'), json);
  t.deepEqual(start(t, again).cdi.devicesFor([TWO], []), ours(TWO));
  t.deepEqual(problems, []);
});

test("a new driver's specification replaces ours atomically", async (t) => {
  const at = folders(t);
  put(at.nvidia);
  const { cdi, problems } = start(t, at);
  const inode = () => statSync(at.own).ino;
  const [old, text] = [inode(), readFileSync(at.own, 'utf8')];
  const seen = new Set<string>();
  const reader = setInterval(() => seen.add(existsSync(at.own) ? readFileSync(at.own, 'utf8') : ''), 1);
  t.teardown(() => clearInterval(reader));
  put(at.nvidia, (fixture) => fixture.replaceAll('575.57.08', '595.10'));
  await eventually(() => inode() !== old || undefined, 'another file is in its place');
  await eventually(() => seen.size === 2 || undefined, 'it is read');
  clearInterval(reader);
  t.deepEqual([...seen], [text, text.replaceAll('575.57.08', '595.10')]);
  t.deepEqual(readdirSync(at.run).toSorted(), [OWN_FILE, 'nvidia.yaml'], 'nothing is left over');
  // The later folder's counts, as for the runtime.
  put(join(at.etc, 'nvidia.yaml'));
  await new Promise((resolve) => setTimeout(resolve, 300));
  t.deepEqual(cdi.devicesFor([ONE], []), ours(ONE));
  t.true(readFileSync(at.own, 'utf8').includes('595.10'));
  t.deepEqual(problems, []);
});

test('a restarted agent leaves its CDI file alone, and restores it when it is removed', async (t) => {
  const at = folders(t);
  put(at.nvidia);
  const { cdi } = start(t, at);
  cdi.close();
  const { ino, mtimeMs } = statSync(at.own);
  start(t, at, { lookEveryMs: 50 });
  await new Promise((resolve) => setTimeout(resolve, 300));
  t.deepEqual([statSync(at.own).ino, statSync(at.own).mtimeMs], [ino, mtimeMs]);
  rmSync(at.own);
  await eventually(() => existsSync(at.own) || undefined, 'it is written again');
});

test("an undivided GPU keeps its specification's name, and our file is removed", async (t) => {
  const at = folders(t);
  writeFileSync(at.own, '{}'); // of an agent before
  const { cdi, problems } = start(t, at, { lookEveryMs: 50 });
  for (const env of [[], DRAWS]) t.deepEqual(cdi.devicesFor([ONE, TWO], env), undivided(ONE, TWO));
  t.false(existsSync(at.own));
  const none = `GPUs are given ${UNDIVIDED}: no specification in ${at.etc}, ${at.run} lists any by its UUID`;
  await new Promise((resolve) => setTimeout(resolve, 200));
  t.deepEqual(problems, [none]);
  // It comes, and goes.
  put(at.nvidia);
  await eventually(() => cdi.devicesFor([ONE], [])[0] === ours(ONE)[0] || undefined, 'the GPUs are divided');
  rmSync(at.nvidia);
  await eventually(() => cdi.devicesFor([ONE], [])[0] === undivided(ONE)[0] || undefined, 'they are not');
  t.false(existsSync(at.own));
  t.deepEqual(problems, [none]);
  // Indices only, as nvidia-ctk writes on request.
  put(at.nvidia, (fixture) => fixture.replaceAll('GPU-', 'gpu-'));
  await new Promise((resolve) => setTimeout(resolve, 300));
  t.deepEqual(cdi.devicesFor([ONE], []), undivided(ONE));
  t.is(problems.length, 1);
});

test('a GPU missing in the specification is reported once; others are still divided', (t) => {
  const at = folders(t);
  put(at.nvidia);
  const { cdi, problems } = start(t, at);
  for (let times = 0; times < 2; times++) t.deepEqual(cdi.devicesFor([ONE, 'GPU-9'], DRAWS), undivided(ONE, 'GPU-9'));
  t.deepEqual(cdi.devicesFor([ONE], []), ours(ONE));
  t.deepEqual(problems, [`${ONE}, GPU-9 is given ${UNDIVIDED}: ${at.nvidia} does not list it`]);
});

test('an unreadable file changes nothing, and the next readable one counts', async (t) => {
  const at = folders(t);
  put(at.nvidia);
  const { cdi, problems } = start(t, at);
  for (const [broken, wrong] of [
    [readFileSync(FIXTURE, 'utf8').slice(0, 2000).concat('\n  ]'), /nvidia\.yaml cannot be read: \S/],
    [`cdiVersion: 0.5.0\nkind: ${KIND}\n`, /devices is no list of some/],
    ['', /it is no map/],
  ] as const) {
    const count = problems.length;
    writeFileSync(at.nvidia, broken);
    await eventually(() => problems[count], 'it is said');
    t.regex(problems[count] ?? '', wrong);
    t.true(problems[count]?.startsWith(`GPUs are still given as by the last readable ${at.nvidia}; `), problems[count]);
    t.deepEqual(cdi.devicesFor([ONE], []), ours(ONE));
    t.true(existsSync(at.own));
  }
  put(at.nvidia, (fixture) => fixture.replaceAll('575.57.08', '595.10'));
  await eventually(() => readFileSync(at.own, 'utf8').includes('595.10') || undefined, 'the next one is there');
  // Nothing was known before.
  const again = folders(t);
  writeFileSync(again.nvidia, 'a: [');
  const { cdi: anew, problems: said } = start(t, again);
  t.deepEqual(anew.devicesFor([ONE], []), undivided(ONE));
  t.regex(said[0] ?? '', /lists any by its UUID; .*nvidia\.yaml cannot be read: /);
});

test('an entry that is no file or a dangling link is ignored, whatever its name', async (t) => {
  const at = folders(t);
  put(at.nvidia);
  symlinkSync('loop.yaml', join(at.etc, 'loop.yaml'));
  symlinkSync('nowhere', join(at.etc, 'gone.json'));
  execFileSync('mkfifo', [join(at.etc, 'pipe.yaml')]);
  symlinkSync('/dev/zero', join(at.etc, 'zero.json'));
  mkdirSync(join(at.etc, 'folder.json'));
  const { cdi, problems } = start(t, at, { lookEveryMs: 50 });
  t.deepEqual(cdi.devicesFor([ONE], []), ours(ONE));
  symlinkSync('later.yaml', join(at.run, 'later.yaml'));
  await new Promise((resolve) => setTimeout(resolve, 300));
  t.deepEqual([cdi.devicesFor([ONE], []), problems], [ours(ONE), []]);
});

/** What was read of our file while NVIDIA's is written in place, a piece at a time, each a specification to a reader at
 * that time; and the longest time between two pieces. */
async function writtenInPieces(t: ExecutionContext) {
  const at = folders(t);
  put(at.nvidia);
  const { cdi } = start(t, at, { lookEveryMs: 300 });
  const text = readFileSync(FIXTURE, 'utf8').replaceAll('575.57.08', '595.10');
  const lines = text.split('\n');
  const seen = new Set<string>();
  const reader = setInterval(() => seen.add(existsSync(at.own) ? readFileSync(at.own, 'utf8') : ''), 5);
  t.teardown(() => clearInterval(reader));
  let [before, longestMs] = [performance.now(), 0];
  const write = (piece: string) => {
    writeFileSync(at.nvidia, piece);
    const now = performance.now();
    longestMs = Math.max(longestMs, now - before);
    before = now;
  };
  for (let end = 100; end < lines.length; end += 40) {
    write(lines.slice(0, end).join('\n'));
    await new Promise((resolve) => setTimeout(resolve, 15));
  }
  write(text);
  const isWhole = () =>
    cdi.devicesFor([TWO], [])[0] === ours(TWO)[0] && readFileSync(at.own, 'utf8').includes('595.10');
  await eventually(() => isWhole() || undefined, 'the new one is there');
  await new Promise((resolve) => setTimeout(resolve, 50));
  clearInterval(reader);
  t.deepEqual(cdi.devicesFor([ONE, TWO], []), ours(ONE, TWO));
  return { seen, longestMs };
}

test('half a file that reads as a whole one is not read while it is written', async (t) => {
  // On a busy machine a piece may come so late that the file before it was left alone for as long as a whole one.
  for (let tries = 0; tries < 20; tries += 1) {
    const { seen, longestMs } = await writtenInPieces(t);
    if (longestMs >= 100) continue;
    t.is(seen.size, 2, 'the old one and the new one');
    return;
  }
  t.fail('the machine is too busy to write a piece every 100 ms');
});

test('a folder that is removed and created again is watched', async (t) => {
  const at = folders(t);
  put(join(at.run, 'nvidia.yaml'));
  const { cdi } = start(t, at, { lookEveryMs: 50 });
  rmSync(at.run, { recursive: true });
  mkdirSync(at.run);
  put(join(at.run, 'nvidia.yaml'));
  await eventually(() => existsSync(at.own) || undefined, 'ours is there again');
  t.deepEqual(cdi.devicesFor([ONE], []), ours(ONE));
});

test('folders created later are read; one that is not writable leaves GPUs undivided', async (t) => {
  const at = folders(t);
  rmSync(at.run, { recursive: true });
  copyFileSync(FIXTURE, join(at.etc, 'nvidia.yaml'));
  const { cdi, problems } = start(t, at, { lookEveryMs: 50 });
  t.deepEqual(cdi.devicesFor([ONE], []), undivided(ONE));
  t.regex(problems[0] ?? '', /ENOENT.*run/);
  mkdirSync(at.run);
  await eventually(() => cdi.devicesFor([ONE], [])[0] === ours(ONE)[0] || undefined, 'it is written');
  t.is(problems.length, 1, 'said once');
  // A folder in the place of the file that is written first.
  mkdirSync(join(at.run, `.${OWN_FILE}.new`));
  copyFileSync(FIXTURE, at.nvidia);
  writeFileSync(at.nvidia, readFileSync(FIXTURE, 'utf8').replaceAll('575.57.08', '595.10'));
  await eventually(() => problems[1], 'it is said');
  t.regex(problems[1] ?? '', /EISDIR/);
  t.deepEqual(cdi.devicesFor([ONE], []), undivided(ONE));
});

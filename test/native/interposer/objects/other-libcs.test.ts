// Programs of images without CUDA, or with another libc: with both objects preloaded they print, fail and exit as
// without them. Where that is impossible, the difference is stated here.
import { spawnSync } from 'node:child_process';
import { symlinkSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { testUnless } from '../../../support/gate.ts';
import { BUILD, temporaryFolder } from '../../../support/native/node.ts';
import { otherLibcs } from '../../../support/toolchains/libcs.ts';

const OBJECTS = ['libcotenant.so', 'libcotenant-nvml.so'];
const SOURCES = join(import.meta.dirname, '../../images');
const libcs = otherLibcs();
const others = libcs.ok ? undefined : `no other libc to be had: ${libcs.reason}`;

type Ended = {
  readonly code: number | null;
  readonly signal: string | null;
  readonly out: string;
  readonly err: string;
};

function ended(command: readonly string[], env: Record<string, string>): Ended {
  const [file = '', ...args] = command;
  const { status, signal, stdout, stderr } = spawnSync(file, args, {
    env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', ...env },
    encoding: 'utf8',
    timeout: 60_000,
  });
  return { code: status, signal, out: stdout, err: stderr };
}

/** Runs a command without and with both preloaded objects, whose folder has no grant. */
function bothWays(
  t: ExecutionContext,
  command: readonly string[],
): { plain: Ended; preloaded: Ended; preload: string } {
  const folder = temporaryFolder(t);
  for (const name of OBJECTS) symlinkSync(join(BUILD, name), join(folder, name));
  const preload = OBJECTS.map((name) => join(folder, name)).join(' ');
  return { plain: ended(command, {}), preloaded: ended(command, { LD_PRELOAD: preload }), preload };
}

const built = (name: string) => join(BUILD, 'tests/images', name);

test('a dynamic program with threads, children and look-ups runs unchanged', (t) => {
  const { plain, preloaded } = bothWays(t, [built('plain'), '5']);
  t.is(plain.code, 5, plain.err);
  t.true(plain.out.includes('looked up 4'));
  t.deepEqual(preloaded, plain);
});

test('a static program runs unchanged', (t) => {
  const { plain, preloaded } = bothWays(t, [built('plain-static'), '6']);
  t.is(plain.code, 6, plain.err);
  t.deepEqual(preloaded, plain);
});

testUnless(others)('a musl program runs unchanged, its look-ups included', (t) => {
  const program = join(temporaryFolder(t), 'program');
  if (libcs.ok) libcs.buildMusl(join(SOURCES, 'plain.c'), program, '-DLOOKS_UP');
  const { plain, preloaded } = bothWays(t, [program, '7']);
  t.is(plain.code, 7, plain.err);
  t.true(plain.out.includes('looked up 4'));
  t.deepEqual(preloaded, plain);
});

testUnless(others)('a 32-bit program runs unchanged, but for one loader message per object', (t) => {
  const program = join(temporaryFolder(t), 'program');
  if (libcs.ok) libcs.build32(join(SOURCES, 'bare.c'), program);
  const { plain, preloaded } = bothWays(t, [program]);
  t.deepEqual(plain, { code: 3, signal: null, out: 'abcdefg\n', err: '' });
  const complaints = preloaded.err.trim().split('\n');
  t.deepEqual({ ...preloaded, err: '' }, plain);
  t.is(complaints.length, OBJECTS.length);
  for (const line of complaints) t.regex(line, /cannot be preloaded \(wrong ELF class: ELFCLASS64\): ignored/);
});

const PYTHON = `
import concurrent.futures, ctypes, ctypes.util, hashlib, json, multiprocessing, ssl, subprocess, sys
def digest(number):
    return hashlib.sha256(str(number).encode()).hexdigest()
if __name__ == '__main__':
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        threads = list(pool.map(digest, range(50)))
    with multiprocessing.get_context('fork').Pool(2) as pool:
        forked = pool.map(digest, range(50))
    child = subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True, text=True)
    libc = ctypes.CDLL(None)
    print(json.dumps([threads == forked, child.stdout, child.stderr, libc.strlen(b'four'), libc.abs(-7)]))
    print([ctypes.util.find_library(name) for name in ('c', 'cuda', 'nvidia-ml', 'no-such-thing')])
    print(hasattr(libc, 'cuInit'), hasattr(libc, 'nvmlInit_v2'), ssl.OPENSSL_VERSION)
`;
const python = spawnSync('python3', ['--version']).status === 0 ? undefined : 'python3 is not installed';
testUnless(python)('a CPU-only Python program runs unchanged: threads, children, ctypes', (t) => {
  const { plain, preloaded } = bothWays(t, ['python3', '-c', PYTHON]);
  t.is(plain.code, 0, plain.err);
  t.true(plain.out.startsWith('[true, "42\\n", "", 4, 7]'), plain.out);
  t.deepEqual(preloaded, plain);
});

test('a program that tries CUDA finds the library, and no device', (t) => {
  const { plain, preloaded } = bothWays(t, [built('weak')]);
  t.is(plain.out, `weak -1, opened -1\n${'0 1\n'.repeat(3)}`);
  // The one difference of an image without a driver: names and library are there, and cuInit answers NO_DEVICE.
  t.deepEqual(preloaded, { ...plain, out: `weak 100, opened 100\n${'0 1\n'.repeat(3)}` });
});

for (const place of ['before', 'after'] as const) {
  test(`an allocator that looks itself up at its first call works ${place} the interposer`, (t) => {
    const folder = temporaryFolder(t);
    const early = built('early_dlsym.so');
    for (const name of OBJECTS) symlinkSync(join(BUILD, name), join(folder, name));
    const ours = OBJECTS.map((name) => join(folder, name));
    const preload = (place === 'before' ? [early, ...ours] : [...ours, early]).join(' ');
    const program = [built('plain'), '5'];
    t.deepEqual(ended(program, { LD_PRELOAD: preload }), ended(program, {}));
    const client = ['/bin/sh', '-c', `printf 'init\\n' | ${join(BUILD, 'tests/client')}`];
    t.is(
      ended(client, { LD_PRELOAD: preload }).out,
      '100 0\n',
      'and a CUDA program gets the error that there is no device',
    );
  });
}

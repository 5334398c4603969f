// Fuzzes all readers of untrusted data with libFuzzer, each for COTENANT_FUZZ_SECONDS (8 by default), starting with the
// inputs in test/fuzz/corpus. An input that fails is printed and belongs into that folder.
import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { testUnless } from '../support/gate.ts';
import { temporaryFolder } from '../support/native/node.ts';
import { clang } from '../support/toolchains/clang.ts';

const NATIVE = join(import.meta.dirname, '../../native');
const CORPUS = join(import.meta.dirname, '../fuzz/corpus');
const SECONDS = Number(process.env.COTENANT_FUZZ_SECONDS ?? 8);
/** The input of each target, and the least number of inputs per second on a busy machine. */
const TARGETS = [
  { name: 'account', about: 'limits page and ledger, read by the engine', least: 5 },
  { name: 'nvml', about: 'NVML calls, driver answers, hostile ledgers', least: 5 },
  { name: 'lookup', about: 'symbol look-ups and cuGetProcAddress', least: 20 },
  { name: 'search', about: "the loader's cache and library folders", least: 20 },
  { name: 'sampler', about: 'NVML answers, reported by the sampler', least: 5 },
  { name: 'proc', about: 'files in /proc, read by the agent', least: 50 },
];

const tools = clang();

test.before(() => {
  if (!tools.ok) return;
  const args = ['-C', NATIVE, '--no-print-directory', '--silent', '-j2', ...tools.make, 'fuzz'];
  const { status, stderr } = spawnSync('make', args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(stderr);
});

for (const { name, about, least } of TARGETS) {
  testUnless(tools.ok ? undefined : tools.reason)(`the fuzzer finds no failing input: ${about}`, (t) => {
    t.timeout((SECONDS + 120) * 1000);
    const folder = temporaryFolder(t);
    const found = join(folder, 'found');
    mkdirSync(found);
    const args = [
      `-max_total_time=${SECONDS}`,
      '-max_len=1024',
      '-len_control=20',
      '-timeout=20',
      '-malloc_limit_mb=512',
    ];
    const { status, stderr } = spawnSync(join(NATIVE, 'build/fuzz', name), [...args, found, join(CORPUS, name)], {
      cwd: folder,
      encoding: 'utf8',
      maxBuffer: 1 << 28,
      env: {
        ASAN_OPTIONS: tools.ok ? `external_symbolizer_path=${tools.symbolizer}` : '',
        UBSAN_OPTIONS: 'print_stacktrace=1',
      },
    });
    const lines = stderr.split('\n');
    t.is(status, 0, lines.slice(-80).join('\n'));
    const runs = Number(/^Done (\d+) runs/m.exec(stderr)?.[1] ?? 0);
    t.log(`${runs} inputs, ${lines.findLast((line) => / cov: /.test(line)) ?? ''}`);
    t.true(runs > least * SECONDS, `only ${runs} inputs`);
  });
}

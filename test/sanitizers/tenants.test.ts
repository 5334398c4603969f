import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import test from 'ava';
import { temporaryFolder } from '../support/native/node.ts';
import { ASAN_BUILD, TSAN_BUILD } from '../support/toolchains/sanitizers.ts';

const SHIPPED = join(import.meta.dirname, '../../native/build');

// A sanitizer runtime looks up all functions that it intercepts by dlsym, before it can intercept any.
for (const [sanitizer, program] of [
  ['AddressSanitizer', join(ASAN_BUILD, 'tests/ledger')],
  ['ThreadSanitizer', join(TSAN_BUILD, 'tests/ledger')],
] as const) {
  test(`a tenant program built with ${sanitizer} starts unchanged when preloaded`, (t) => {
    const folder = temporaryFolder(t);
    const names = ['libcotenant.so', 'libcotenant-nvml.so'];
    execFileSync('ln', ['-s', ...names.map((name) => join(SHIPPED, name)), folder]);
    const start = (preload: string) => {
      const shell = 'setarch -R true 2>/dev/null && still="setarch -R"; exec $still env LD_PRELOAD="$1" "$0" 2>&1';
      const env = { PATH: process.env.PATH ?? '', ASAN_OPTIONS: 'verify_asan_link_order=0' };
      return execFileSync('/bin/sh', ['-c', `(${shell}); echo $?`, program, preload], { encoding: 'utf8', env });
    };
    const plain = start('');
    t.is(plain, 'usage: ledger DIR PROCESSES THREADS ROUNDS\n2\n');
    t.is(start(names.map((name) => join(folder, name)).join(' ')), plain);
  });
}

// The random programs of test/native/interposer/memory/random-programs.test.ts, built with ThreadSanitizer: a data race
// fails the layer, and the charges must be exact as well.
import { execFileSync, spawnSync } from 'node:child_process';
import { realpathSync } from 'node:fs';
import test from 'ava';
import { TSAN_BUILD } from '../support/toolchains/sanitizers.ts';

test('ThreadSanitizer finds no race in random programs with three threads per process', (t) => {
  t.timeout(180_000);
  const runtime = realpathSync(execFileSync('gcc', ['-print-file-name=libtsan.so'], { encoding: 'utf8' }).trim());
  const env = { ...process.env, COTENANT_BUILD: TSAN_BUILD, COTENANT_SANITIZER_PRELOAD: runtime };
  const args = ['--tap', '--match=*in 3 threads each*', 'test/native/interposer/memory/random-programs.test.ts'];
  const { stdout, stderr } = spawnSync('ava', args, { encoding: 'utf8', env });
  t.regex(stdout, /^ok 1 - random programs at once in 3 threads each/m, stdout + stderr);
  t.notRegex(stdout, /^not ok/m, stdout);
});

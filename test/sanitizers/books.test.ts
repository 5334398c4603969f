// The property test of test/native once more, all of it built with ThreadSanitizer: a race that it sees is a report, which
// fails the layer, and the account must be right as well.
import { execFileSync, spawnSync } from 'node:child_process';
import { realpathSync } from 'node:fs';
import test from 'ava';
import { TSAN_BUILD } from '../support/sanitizers.ts';

test('ThreadSanitizer sees no race while all processes of random programs go on at once, in three threads each', (t) => {
  t.timeout(180_000);
  const runtime = realpathSync(execFileSync('gcc', ['-print-file-name=libtsan.so'], { encoding: 'utf8' }).trim());
  const env = { ...process.env, COTENANT_BUILD: TSAN_BUILD, COTENANT_SANITIZER_PRELOAD: runtime };
  const args = ['--tap', '--match=*in 3 threads each*', 'test/native/interposer/random-programs.test.ts'];
  const { stdout, stderr } = spawnSync('ava', args, { encoding: 'utf8', env });
  t.regex(stdout, /^ok 1 - all processes of random programs at once, in 3 threads each/m, stdout + stderr);
  t.notRegex(stdout, /^not ok/m, stdout);
});

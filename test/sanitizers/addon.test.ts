import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import test from 'ava';
import { environment, temporaryFolder } from '../support/native/node.ts';
import { ASAN_BUILD } from '../support/toolchains/sanitizers.ts';

test('the addon stays within its buffers for any ledger and refuses unknown sizes', (t) => {
  const script = join(import.meta.dirname, 'addon-files.ts');
  const env = environment({});
  // Node.js does not free all memory at exit; the addon keeps one buffer per thread.
  env.ASAN_OPTIONS = `${env.ASAN_OPTIONS}:detect_leaks=0`;
  const args = [script, join(ASAN_BUILD, 'cotenant.node'), temporaryFolder(t)];
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8', env });
  t.is(status, 0, stderr);
  const counts = JSON.parse(stdout) as Record<string, unknown>;
  t.log(counts);
  t.deepEqual(counts.foundWrong, []);
  t.is(counts.readings, 2006);
  t.true((counts.whole as number) > 500 && (counts.whole as number) < 1900, 'some are whole and some are not');
  t.is(counts.refused, 20);
});

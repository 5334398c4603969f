// An agent that starts on a disk that is full.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { namespacesReason, testUnless } from '../../../support/gate.ts';
import { temporaryFolder } from '../../../support/native/node.ts';

const test = testUnless(namespacesReason());

test('with a full disk the agent starts, says so, and stops a container over its grant', (t) => {
  t.timeout(180_000);
  const script = 'mount -t tmpfs -o nr_inodes=100 none "$1" && exec "$2" "$3" "$1"';
  const program = [temporaryFolder(t), process.execPath, join(import.meta.dirname, 'start-disk-full-inside.ts')];
  const { status, stdout, stderr } = spawnSync(
    'unshare',
    ['-m', '--propagation', 'private', 'sh', '-c', script, 'sh', ...program],
    { encoding: 'utf8', timeout: 80_000 },
  );
  t.is(status, 0, stderr);
  const { mkdir, made, log, code } = JSON.parse(stdout);
  t.regex(mkdir, /No space left on device/);
  t.false(made);
  t.is(log.length, 1);
  t.regex(log[0], / stateFolder: cannot write to \S+: ENOSPC: .*; the agent starts all the same$/);
  t.is(code, 137);
});

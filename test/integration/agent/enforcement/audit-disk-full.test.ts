// The audit log on a real disk that is full for a while.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { namespacesReason, testUnless } from '../../../support/gate.ts';
import { temporaryFolder } from '../../../support/native/node.ts';

const test = testUnless(namespacesReason());

test('records refused by a full disk are logged whole and in order once it has space', (t) => {
  const script = 'mount -t tmpfs -o size=96k none "$1" && exec "$2" "$3" "$1"';
  const program = [temporaryFolder(t), process.execPath, join(import.meta.dirname, 'audit-disk-full-inside.ts')];
  const { status, stdout, stderr } = spawnSync(
    'unshare',
    ['-m', '--propagation', 'private', 'sh', '-c', script, 'sh', ...program],
    { encoding: 'utf8' },
  );
  t.is(status, 0, stderr);
  const { added, full, before, times, unread } = JSON.parse(stdout);
  t.is(full.length, 2);
  for (const text of full) t.regex(text, /^audit\.log: ENOSPC/);
  t.is(before, added - 3, 'the two that were refused, and the last one');
  t.deepEqual(
    times,
    Array.from({ length: added }, (_, index) => index + 1),
  );
  t.deepEqual(unread, []);
});

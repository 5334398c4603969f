// The watch of a folder that is deleted and created anew, as a starting kubelet or a container runtime does it.
import { mkdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { createFolderWatch } from '../../../../src/agent/os/folder-watch.ts';
import { eventually, temporaryFolder } from '../../../support/native/node.ts';

const MOST_TRIES = 50;

test('a folder that was deleted and created anew is watched again', async (t) => {
  const folder = join(temporaryFolder(t), 'watched');
  const events: (string | null)[] = [];
  const watch = createFolderWatch(folder, (name) => events.push(name));
  t.teardown(() => watch.close());
  mkdirSync(folder);
  watch.follow();
  writeFileSync(join(folder, 'first'), '');
  await eventually(() => events.includes('first'), 'an event of the first folder');

  // Most file systems give the new folder the inode number of the old one.
  const { ino } = statSync(folder);
  for (let tries = 0; tries < MOST_TRIES; tries += 1) {
    rmSync(folder, { recursive: true });
    mkdirSync(folder);
    if (statSync(folder).ino === ino) break;
  }
  watch.follow();
  writeFileSync(join(folder, 'second'), '');
  t.true(await eventually(() => events.includes('second'), 'an event of the second folder'));
});

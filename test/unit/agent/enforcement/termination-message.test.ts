// The message that a stopped container leaves: in the kubelet's newest file for it, after what the container wrote, and
// never through a link.
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import {
  createTerminationMessages,
  writeTerminationMessage,
} from '../../../../src/agent/enforcement/termination-message.ts';
import { eventually } from '../../../support/native/node.ts';
import { loggerTo } from '../../../support/product/logger.ts';
import { grantOf } from '../node.ts';

const UID = '2f0a3c1e-9f4b-4a52-8a3e-5f1d7c9b0e11';
const grant = grantOf('abc123', 1, [0], { container: 'main', owner: { podUid: UID, target: '/t', kind: 'app' } });

function kubelet(t: ExecutionContext) {
  const root = mkdtempSync(join(tmpdir(), 'cotenant-kubelet-'));
  t.teardown(() => rmSync(root, { recursive: true, force: true }));
  const folder = join(root, 'pods', UID, 'containers/main');
  mkdirSync(folder, { recursive: true });
  const path = join(folder, '0a1b2c3d');
  writeFileSync(path, '');
  return { root, folder, path };
}

test('the message is appended to what the container wrote', (t) => {
  const { folder, path } = kubelet(t);
  writeTerminationMessage(folder, '0a1b2c3d', 'stopped');
  t.is(readFileSync(path, 'utf8'), 'stopped');
  writeFileSync(path, 'out of ideas');
  writeTerminationMessage(folder, undefined, 'stopped');
  t.is(readFileSync(path, 'utf8'), 'out of ideas\nstopped');
});

test('the file is the one that the runtime named, else the newest', async (t) => {
  const { folder, path } = kubelet(t);
  const newer = join(folder, '00000000');
  const sayIn = (tried: string | undefined): string | undefined => {
    for (const file of [path, newer]) writeFileSync(file, '');
    writeTerminationMessage(folder, tried, 'stopped');
    return [path, newer].find((file) => readFileSync(file, 'utf8') === 'stopped');
  };
  // Times of birth are as fine as the kernel's clock: a file of the same moment is made anew.
  await eventually(() => {
    rmSync(newer, { force: true });
    return sayIn(undefined) === newer ? true : undefined;
  }, 'a newer file');
  t.is(sayIn('0a1b2c3d'), path);
  t.is(sayIn('12345678'), newer, 'a file that is not there');
});

test("only files in the kubelet's own folder are opened, and failures are reported", (t) => {
  const { root, folder, path } = kubelet(t);
  const target = join(root, 'target');
  writeFileSync(target, '');
  symlinkSync(target, join(folder, 'ffffffff'));
  mkdirSync(join(folder, 'eeeeeeee'));
  execFileSync('mkfifo', [join(folder, 'dddddddd')]);
  writeFileSync(join(folder, 'notes'), '');
  const problems: string[] = [];
  const say = createTerminationMessages(root, loggerTo(problems));
  const ids = ['ffffffff', 'eeeeeeee', 'dddddddd', 'notes', target, '../../../../target', '', undefined];
  for (const name of ids) {
    writeFileSync(path, '');
    say(grant, 'stopped', name);
    t.is(readFileSync(path, 'utf8'), 'stopped', name);
  }
  t.is(readFileSync(target, 'utf8') + readFileSync(join(folder, 'notes'), 'utf8'), '');
  t.deepEqual(problems, []);
  rmSync(path);
  say(grant, 'stopped', 'ffffffff');
  t.is(problems.pop(), 'local/pod-abc123/main gets no termination message: the kubelet made no file for the container');
  say(grantOf('plain', 1), 'stopped', undefined);
  t.deepEqual(problems, [], 'a plain process has no such file');
});

test("no link is followed, and no name leads out of the kubelet's folder", (t) => {
  const { root, folder, path } = kubelet(t);
  const problems: string[] = [];
  const say = createTerminationMessages(root, loggerTo(problems));
  const elsewhere = join(root, 'elsewhere');
  renameSync(folder, elsewhere);
  symlinkSync(elsewhere, folder);
  say(grant, 'stopped', undefined);
  t.regex(problems[0] ?? '', /main gets no termination message: .* is not the kubelet's folder/);
  say({ ...grant, container: '../../../elsewhere' }, 'stopped', undefined);
  t.is(problems.length, 2);
  t.is(readFileSync(join(elsewhere, '0a1b2c3d'), 'utf8'), '');
  rmSync(folder);
  renameSync(elsewhere, folder);
  const link = `${root}-link`;
  symlinkSync(root, link);
  t.teardown(() => rmSync(link));
  createTerminationMessages(link, loggerTo(problems))(grant, 'stopped', undefined);
  t.is(readFileSync(path, 'utf8'), 'stopped', 'the root itself is what the settings say');
});

// The message that a stopped container leaves: in the kubelet's newest file for it, after what the container wrote, and never
// through a link.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { createLastWords, terminationLogOf, writeLastWords } from '../../../src/agent/enforcement/last-words.ts';
import { eventually } from '../../support/node.ts';
import { grantOf } from './node.ts';

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

test('the words stand alone in an empty file, and behind what the container wrote itself', (t) => {
  const { path } = kubelet(t);
  writeLastWords(path, 'stopped');
  t.is(readFileSync(path, 'utf8'), 'stopped');
  writeFileSync(path, 'out of ideas');
  writeLastWords(path, 'stopped');
  t.is(readFileSync(path, 'utf8'), 'out of ideas\nstopped');
});

test("the file of the container's newest start is the one, and a name that leads elsewhere is none", async (t) => {
  const { root, folder, path } = kubelet(t);
  t.is(terminationLogOf(root, UID, 'main'), path);
  t.is(terminationLogOf(root, UID, 'other'), undefined);
  const newer = join(folder, '00000000');
  // Times of birth are as fine as the kernel's clock: a file of the same moment is made anew.
  await eventually(() => {
    rmSync(newer, { force: true });
    writeFileSync(newer, '');
    return terminationLogOf(root, UID, 'main') === newer ? true : undefined;
  }, 'a newer file');
  symlinkSync('/etc/passwd', join(folder, 'ffffffff'));
  t.is(terminationLogOf(root, UID, 'main'), newer);
});

test('nothing is written through a link or into something that is no file, and that is told', (t) => {
  const { root, folder, path } = kubelet(t);
  const target = join(root, 'target');
  writeFileSync(target, '');
  symlinkSync(target, join(folder, 'link'));
  t.throws(() => writeLastWords(join(folder, 'link'), 'stopped'), { code: 'ELOOP' });
  t.is(readFileSync(target, 'utf8'), '');
  const problems: string[] = [];
  const say = createLastWords(root, (text) => problems.push(text));
  say(grant, 'stopped', join(folder, 'link'));
  t.regex(problems[0] ?? '', /main is stopped without a termination message: ELOOP/);
  say(grant, 'by name', undefined);
  t.is(readFileSync(path, 'utf8'), 'by name', 'where the runtime did not tell the file');
  say(grantOf('plain', 1), 'stopped', undefined);
  t.is(problems.length, 1, 'a plain process has no such file');
});

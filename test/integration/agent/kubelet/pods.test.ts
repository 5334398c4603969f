// Grants of pods and their files: in the books whatever a tenant does to them, all of them or none, and ended by their
// own volume alone. Each scenario of pods-inside.ts in a mount namespace of its own.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { namespacesReason, testUnless } from '../../../support/gate.ts';
import { temporaryFolder } from '../../../support/native/node.ts';

const test = testUnless(namespacesReason());

type Shown = { readonly who: string; readonly tampered: boolean; readonly usedMib: number };
type Facts = Record<string, unknown> & { readonly shown: readonly Shown[] };

function inside(t: ExecutionContext, scenario: string): Facts {
  const program = [process.execPath, join(import.meta.dirname, 'pods-inside.ts'), scenario, temporaryFolder(t)];
  const { status, stdout, stderr } = spawnSync('unshare', ['-m', '--propagation', 'private', ...program], {
    encoding: 'utf8',
  });
  if (status !== 0) throw new Error(`${scenario}: ${stderr}`);
  return JSON.parse(stdout) as Facts;
}

test('the next agent holds a container to its grant although its ledger was truncated', (t) => {
  const facts = inside(t, 'starved') as Facts & { after: { shown: Shown[]; size: number } };
  t.deepEqual([facts.given, facts.full], ['given', 'ENOSPC']);
  const problems = facts.reported as string[];
  t.is(problems.length, 1, 'what lasts is said once');
  t.regex(
    problems[0] ?? '',
    /^cannot repair the files of team\/pod-1\/b \(grant [0-9a-f]{24}\), .* No space left on device$/,
  );
  t.deepEqual(facts.shown, [
    { who: 'pod-1/a', tampered: false, usedMib: 0 },
    { who: 'pod-1/b', tampered: true, usedMib: 500 },
  ]);
  t.deepEqual(facts.foreign, []);
  t.deepEqual(facts.actions, ['warn b', 'kill b']);
  t.regex(String(facts.other), /would be overcommitted: 300 MiB .* were granted, 200 MiB are left$/);
  t.is(facts.after.size, facts.size as number, 'it is repaired once space is free');
  t.deepEqual(
    facts.after.shown.map(({ tampered }) => tampered),
    [false, false],
  );
});

test('a ledger that could not be emptied for a restarted container is made again later', (t) => {
  const { gpus, problems, during, size, after } = inside(t, 'restarted');
  t.is((gpus as string[]).length, 1, 'it starts all the same');
  t.deepEqual(problems, ['the usage ledger cannot be cleared: ledger: No space left on device']);
  t.deepEqual([during, after], [0, size]);
});

test("a lost grant is allocated again when the kubelet asks for its pod's volume", (t) => {
  const facts = inside(t, 'lost');
  t.deepEqual(facts.holds, [false, true], 'one of two grants of a pod is not all of them');
  t.deepEqual([facts.other, facts.again], ['given', 'given'], 'though its memory was given away meanwhile');
  t.deepEqual(facts.shown.map(({ who }) => who).toSorted(), ['pod-1/a', 'pod-1/b', 'pod-2/c']);
  t.is(facts.granted, 1300);
  t.deepEqual(facts.problems, []);
});

test("a pod's mode follows its namespace, its annotation, administrators and the node", (t) => {
  const { asRecorded, changed, after, off, problems } = inside(t, 'modes');
  t.deepEqual(asRecorded, {
    done: ['kill a', 'warn a', 'warn a', 'would-stop a'].toSorted(),
    reported: ['pod-1 enforce node', 'pod-2 report namespace', 'pod-3 off namespace'],
  });
  // The first goes on as it did; the second is stopped by its own annotation; the third is reported now.
  t.deepEqual((changed as { reported: string[] }).reported, [
    'pod-1 enforce node',
    'pod-2 enforce pod',
    'pod-3 report administrator',
  ]);
  const { done } = changed as { done: string[] };
  for (const action of ['kill a', 'would-stop a']) t.true(done.includes(action), done.join());
  t.deepEqual(after, (changed as { reported: string[] }).reported, 'over a restart');
  t.deepEqual(off, { done: [], reported: ['pod-1 off node', 'pod-2 off node', 'pod-3 off node'] });
  t.deepEqual(problems, []);
});

test('an init container has its own grant and figures, and its memory is reused', (t) => {
  const { given, phases, grantedMib, foreign, actions } = inside(t, 'init');
  t.is(given, 'given', 'both amounts together would not fit');
  t.deepEqual(phases, [
    [
      { who: 'pod-1/init', tampered: false, usedMib: 650 },
      { who: 'pod-1/main', tampered: false, usedMib: 0 },
    ],
    [
      { who: 'pod-1/init', tampered: false, usedMib: 0 },
      { who: 'pod-1/main', tampered: false, usedMib: 550 },
    ],
  ]);
  t.is(grantedMib, 700);
  t.deepEqual(foreign, []);
  t.deepEqual(actions, ['warn init', 'kill init']);
});

test('a volume that cannot be made leaves no grant and no open file, also when retried', (t) => {
  const { tries, after, later, stored } = inside(t, 'half');
  t.is((tries as string[]).length, 1);
  t.regex((tries as string[])[0] ?? '', /resource busy/);
  t.deepEqual(after, { more: 0, stored: 0, holds: false });
  t.deepEqual([later, stored], ['given', 1]);
});

test('a volume that is not its own ends no grant of a pod', (t) => {
  t.deepEqual(inside(t, 'otherVolume') as object, { kept: true, after: false, stored: 0 });
});

test('a container made without its GPUs is reported once until it has them or restarts', (t) => {
  const { before, early, phases, after, anew, leftOver, reported, again, problems } = inside(t, 'withoutGpus');
  const without = (...names: string[]) => ['a', 'b', 'd'].map((name) => [name, names.includes(name)]);
  t.deepEqual(before, without());
  t.deepEqual(
    (phases as unknown[]).slice(0, 2),
    [without('b', 'd'), without('d')],
    'a container that uses a GPU has it',
  );
  t.deepEqual((phases as unknown[]).slice(2), [without('d'), without('d')], 'and has it when nothing uses it any more');
  t.is(early, 0, 'who has a process on a GPU was given it: a sample says so');
  t.deepEqual(after, without('d'), 'the next agent says the same');
  t.deepEqual(anew, without());
  t.deepEqual(leftOver, [without(), without('d')], 'what is left of the one before it is not its own');
  t.is((again as string[]).length, 1);
  const sentences = reported as string[];
  t.is(sentences.length, 2, 'a neighbor without a grant wants no GPU, and one with a process on it has it');
  t.regex(sentences[0] ?? '', /^team\/pod-1\/b was created without its GPUs: /);
  t.regex(sentences[1] ?? '', /^team\/pod-1\/d was created without its GPUs: /);
  t.deepEqual(problems, [...sentences, ...(again as string[])]);
});

test('after a volume was removed by others the agent holds the files of the new one', (t) => {
  const { given, same, shown } = inside(t, 'anew');
  t.deepEqual([given, same], ['given', true]);
  t.deepEqual(shown, [{ who: 'pod-1/a', tampered: false, usedMib: 0 }]);
});

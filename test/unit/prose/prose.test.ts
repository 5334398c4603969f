// No behavior hangs on the wording of a message: with every sentence of the product reworded, actions, refusals,
// labels, Events and the answers of `cotenant why` stay the same.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import test from 'ava';

type Outcome = {
  readonly behavior: Readonly<Record<string, unknown>> & {
    readonly records: readonly (readonly [string, string, string, string | null])[];
    readonly isStopExplained: boolean;
  };
  readonly texts: readonly string[];
};

function run(...flags: readonly string[]): Outcome {
  const program = join(import.meta.dirname, 'scenario.ts');
  const { stdout, stderr, status } = spawnSync(process.execPath, [...flags, program], { encoding: 'utf8' });
  if (status !== 0) throw new Error(stderr);
  return JSON.parse(stdout) as Outcome;
}

test('with every sentence reworded the agent and its tools do the same', (t) => {
  t.timeout(120_000);
  const plain = run();
  const reworded = run('--import', pathToFileURL(join(import.meta.dirname, 'reword.ts')).href);
  t.deepEqual(reworded.behavior, plain.behavior);
  // The scenario meets what it is for, and its sentences did change.
  const actions = new Set(plain.behavior.records.map(([action]) => action));
  for (const action of ['warn', 'close-gate', 'terminate', 'kill', 'released', 'would-stop', 'refuse', 'evict'])
    t.true(actions.has(action), action);
  const refusals = new Set(plain.behavior.records.flatMap(([, , , refusal]) => refusal ?? []));
  t.deepEqual([...refusals].toSorted(), ['eviction', 'inconsistent', 'rate-limited', 'stale']);
  t.true(plain.behavior.isStopExplained);
  t.deepEqual(plain.behavior.isPageReplaced, [true, false, false]);
  t.deepEqual(plain.behavior.topShowsUse, [true, true]);
  for (const [index, text] of plain.texts.entries())
    if (text !== '' && text !== 'status 429') t.not(reworded.texts[index], text);
});

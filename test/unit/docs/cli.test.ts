// The page on the command line, and the commands themselves.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { explain, explanationLines } from '../../../src/cli/cluster/explain-pod.ts';
import type { PodFacts } from '../../../src/cli/cluster/explanation.ts';
import type { Command, Option } from '../../../src/cli/lib/command.ts';
import { HEAD } from '../../../src/cli/output/cluster-table.ts';
import { gpuRows, tenantRows } from '../../../src/cli/output/node-table.ts';
import { HEAD as SHOWBACK_HEAD } from '../../../src/cli/output/showback-table.ts';
import { blocks, quoted, ROOT, readPage, rowsWith, section } from '../../support/docs.ts';
import { exampleSnapshot } from '../../support/product/snapshots.ts';

const page = readPage('docs/use/cli.md');
const FOLDER = join(ROOT, 'src/cli');

/** Whatever a file of src/cli exports that is a command; the binary itself runs when it is loaded. */
async function commands(): Promise<readonly Command[]> {
  const files = readdirSync(FOLDER, { recursive: true, encoding: 'utf8' }).filter(
    (name) => name.endsWith('.ts') && name !== 'main.ts',
  );
  const modules = await Promise.all(
    files.map((name) => import(join(FOLDER, name)) as Promise<Record<string, unknown>>),
  );
  return modules
    .flatMap((exported) => Object.values(exported))
    .filter(
      (value): value is Command => typeof value === 'object' && value !== null && 'summary' in value && 'run' in value,
    );
}

const shown = (name: string, { value, short }: Option): readonly string[] => [
  value === undefined ? `--${name}` : `--${name} ${value}`,
  ...(short === undefined ? [] : [`-${short}`]),
];

test('each command has its section, with each of its options and no other', async (t) => {
  const all = await commands();
  t.true(all.length >= 8);
  const sections = [...page.matchAll(/^## cotenant (\S+)$/gm)].map(([, name]) => name ?? '');
  t.deepEqual(sections.toSorted(), all.map(({ name }) => name).toSorted());
  for (const { name, options } of all) {
    const documented = rowsWith(section(page, `## cotenant ${name}`), 'option').map((row) => quoted(row.option));
    t.deepEqual(
      documented,
      Object.entries(options).map(([option, what]) => shown(option, what)),
      name,
    );
    t.true(page.includes(`](#cotenant-${name})`), `${name} is in the overview`);
  }
});

test('the tables in the examples have the heads that the program prints', (t) => {
  const [example = ''] = blocks(section(page, '## cotenant inspect'), '');
  const cells = (line = '') => line.trim().split(/ {2,}/);
  const heads = [gpuRows(exampleSnapshot)[0], tenantRows(exampleSnapshot)[0]].map(cells);
  const found = example
    .split('\n')
    .map(cells)
    .filter(([first]) => first === 'GPU');
  t.deepEqual(found, heads);
});

test('the example of a cluster has the head that the program prints', (t) => {
  const [example = ''] = blocks(section(page, '### Of a cluster'), '');
  const [head = ''] = example.split('\n').filter((line) => line.startsWith('NODE'));
  t.deepEqual(
    head.split(/ {2,}/),
    HEAD.filter((cell) => cell !== ''),
  );
});

test('the examples of explained pods are the output for recorded pods', (t) => {
  const recorded = (name: string): Partial<PodFacts> =>
    JSON.parse(readFileSync(join(ROOT, `test/fixtures/cluster/1.36-${name}.json`), 'utf8')) as Partial<PodFacts>;
  const say = (name: string, facts: Partial<PodFacts>) =>
    explanationLines(
      explain({ namespace: 'team', name, events: [], notes: [], ...facts }, Date.parse('2026-11-21T22:10:00Z')),
    );
  const [example = ''] = blocks(section(page, '### A pod'), '');
  t.deepEqual(example.trimEnd().split('\n'), [
    '$ kubectl cotenant why -n team rogue',
    ...say('rogue', recorded('stopped')),
    '$ kubectl cotenant why -n team hooked; echo $?',
    ...say('hooked', recorded('refused')),
    '1',
  ]);
});

test('the example of recommended sizes is the golden one of recorded series', (t) => {
  const golden = readFileSync(join(ROOT, 'test/golden/cli/recommend.txt'), 'utf8').split('\n\n$ cotenant')[0] ?? '';
  const [, ...lines] = golden.trimEnd().split('\n');
  // Comments of the lines to paste look like headings.
  const body = page.slice(page.indexOf('## cotenant recommend\n'));
  const [, ...documented] = (blocks(body, '')[0] ?? '').trimEnd().split('\n');
  t.deepEqual(documented, lines);
  t.true(lines.length > 15);
});

test('the example of showback has the head that the program prints', (t) => {
  const [, ...lines] = (blocks(section(page, '## cotenant showback'), '')[0] ?? '').split('\n');
  const cells = (row: readonly string[] = []) => row.filter((cell) => cell !== '');
  for (const [index, row] of SHOWBACK_HEAD.entries()) t.deepEqual(cells(lines[index]?.split(/ {2,}/)), cells(row));
});

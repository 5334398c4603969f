// Titles of tests are at most 80 characters, so that a line of a terminal and a table of a page hold them
// (docs/develop/style.md).
import { readdirSync, readFileSync } from 'node:fs';
import { stripTypeScriptTypes } from 'node:module';
import { join } from 'node:path';
import { type CallExpression, type Node, parse } from 'acorn';
import test from 'ava';
import { ROOT } from '../../support/docs.ts';

const LAYERS = ['unit', 'integration', 'native', 'sanitizers', 'clients', 'cluster', 'guest'];
const MOST = 80;

/** Fixed text of a title: a substitution of a template counts as one character at least. */
function fixedTextOf(title: Node): string | undefined {
  if (title.type === 'Literal' && 'value' in title) return typeof title.value === 'string' ? title.value : undefined;
  if (title.type !== 'TemplateLiteral') return undefined;
  return (title as Node & { quasis: { value: { cooked: string } }[] }).quasis
    .map(({ value }) => value.cooked)
    .join('…');
}

/** The function that is called at the root: `test` of `test.serial.skip(…)`. */
function rootOf(callee: Node): string {
  if (callee.type === 'MemberExpression') return rootOf((callee as Node & { object: Node }).object);
  return callee.type === 'Identifier' ? (callee as Node & { name: string }).name : '';
}

const isNode = (value: unknown): value is Node =>
  typeof value === 'object' && value !== null && typeof (value as Partial<Node>).type === 'string';

function* callsIn(node: Node): Generator<CallExpression> {
  if (node.type === 'CallExpression') yield node as CallExpression;
  for (const child of Object.values(node).flat()) if (isNode(child)) yield* callsIn(child);
}

/** Whether an argument is the body of a test: a function of `t`. */
const isBody = (argument: Node): boolean =>
  argument.type === 'ArrowFunctionExpression' &&
  (argument as Node & { params: { name?: string }[] }).params[0]?.name === 't';

/** Titles of a test file: first arguments of `test(…)` and its relatives, and of any function that is given a test's
 * body. */
function titlesIn(source: string): readonly string[] {
  const program = parse(stripTypeScriptTypes(source), { ecmaVersion: 'latest', sourceType: 'module' });
  return [...callsIn(program)].flatMap(({ callee, arguments: [title, ...more] }) => {
    const isTest = /^test|Test$/.test(rootOf(callee)) || more.some(isBody);
    const text = title && isTest ? fixedTextOf(title) : undefined;
    return text === undefined ? [] : [text];
  });
}

test('a title is read from every form of a test, and a template by its fixed text', (t) => {
  t.deepEqual(
    titlesIn(`
      test('one', (t: Context) => t.pass());
      test.serial("it's two", macro);
      testWithHelm(\`three \${a} of \${b}\`, async (t) => {});
      onCluster('four', { nodes: 2 }, async (t) => {});
      for (const title of titles) test(title, () => say('not this'));
      test.before(() => {});
    `),
    ['one', "it's two", 'three … of …', 'four'],
  );
});

test(`no title is longer than ${MOST} characters`, (t) => {
  let count = 0;
  for (const layer of LAYERS) {
    const folder = join(ROOT, 'test', layer);
    for (const path of readdirSync(folder, { recursive: true, encoding: 'utf8' })) {
      if (!path.endsWith('.test.ts')) continue;
      for (const title of titlesIn(readFileSync(join(folder, path), 'utf8'))) {
        count++;
        t.true([...title].length <= MOST, `test/${layer}/${path}: ${[...title].length} characters: ${title}`);
      }
    }
  }
  t.true(count > 1_000);
});

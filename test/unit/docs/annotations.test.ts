// The page on names held to the code: every key that a source file spells is in its tables, and none that no file
// spells.
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import * as names from '../../../src/api/names.ts';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import { dialectsOf } from '../../../src/request/dialects/index.ts';
import { DEFAULT_RULES } from '../../../src/request/rules/namespace-rules.ts';
import { ROOT, readPage, rowsWith, section } from '../../support/docs.ts';

const page = readPage('docs/reference/annotations.md');
const rows = rowsWith(page, 'key');
const keyOf = (row: Record<string, string>) => (row.key ?? '').replaceAll('`', '').replace('<container>', '');
const documented = rows.map(keyOf);

/** Keys in the domains of Cotenant, of its dialects and of NRI, as string literals spell them. */
const KEY =
  /'((?:[a-z0-9-]+\.)*(?:(?:cotenant\.io|aliyun\.com|cnvrg\.io|nvidia\.com|volcano\.sh|tencent\.com|volcengine\.com|baidu\.com|hami\.io|koordinator\.sh)\/(?:[a-z*][A-Za-z0-9.*_-]*)?|noderesource\.dev))'/g;

function spelled(): readonly string[] {
  const files = globSync(['src/**/*.ts', 'webhook/**/*.ts'], { cwd: ROOT });
  const texts = files.map((file) => readFileSync(join(ROOT, file), 'utf8'));
  return [...new Set(texts.flatMap((text) => [...text.matchAll(KEY)].map(([, key = '']) => key)))];
}

test('each annotation key in the code has a row, and each row is a key in the code', (t) => {
  const found = spelled();
  t.true(found.length > 15, found.join());
  t.deepEqual(documented.toSorted(), found.toSorted());
  t.true(rows.every((row) => Object.values(row).every((cell) => cell.trim() !== '')));
});

test('resources, choices and dialects stand where they belong', (t) => {
  const keysIn = (heading: string) => rowsWith(section(page, heading), 'key').map(keyOf);
  t.deepEqual(keysIn('## Resources'), names.OWN_RESOURCES);
  t.deepEqual(keysIn('## Choices of a tenant'), names.TENANT_ANNOTATIONS);
  const [, ...foreign] = dialectsOf({ ...DEFAULT_RULES, dialects: FOREIGN_DIALECT_NAMES });
  const dialects = keysIn('## Dialects');
  for (const resource of foreign.flatMap(({ resources }) => resources)) t.true(dialects.includes(resource), resource);
  const written = keysIn('## What Cotenant writes');
  for (const key of written) t.false(names.TENANT_ANNOTATIONS.includes(key), key);
  for (const key of [names.GRANT_ANNOTATION, names.ENFORCEMENT_OVERRIDE_ANNOTATION, names.UUIDS_PREFIX])
    t.true(names.isGrantKey(key) && written.includes(key));
});

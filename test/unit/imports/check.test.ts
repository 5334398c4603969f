// The order of folders in imports, as `npm run check` holds it: on trees made here and on this repository.
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import test from 'ava';
import { importProblems, importsAgainstOrder } from '../../imports/rules.ts';

const CHECK = join(import.meta.dirname, '../../imports/check.ts');
const layers = [['src/low'], ['src/left', 'src/right'], ['src/left/inner']];
const against = (from: string, to: string) => importsAgainstOrder([{ from, to }], layers);

test('a file imports from its own folder and from lower layers only', (t) => {
  t.deepEqual(against('src/left/a.ts', 'src/left/b.ts'), []);
  t.deepEqual(against('src/left/a.ts', 'src/low/b.ts'), []);
  t.deepEqual(against('src/left/inner/a.ts', 'src/left/b.ts'), []);
  t.deepEqual(against('src/left/a.ts', 'native/build.ts'), []);
  for (const to of ['src/right/b.ts', 'src/left/inner/b.ts', 'test/support/b.ts'])
    t.deepEqual(against('src/left/a.ts', to), [`src/left/a.ts -> ${to}`]);
  t.deepEqual(against('src/new/a.ts', 'src/low/b.ts'), ['src/new has no layer']);
});

test('a new violation fails the check, and so does a known one that is gone', (t) => {
  t.deepEqual(importProblems(['a -> b'], ['a -> b']), []);
  t.deepEqual(importProblems(['a -> b'], []), ['a -> b: against the order of folders']);
  t.deepEqual(importProblems([], ['a -> b']), ['a -> b: is gone; remove it from the list']);
});

test('the check finds a circle of folders, also of types', (t) => {
  const root = mkdtempSync(join(tmpdir(), 'cotenant-imports-'));
  t.teardown(() => rmSync(root, { recursive: true }));
  const files = {
    'tsconfig.json':
      '{ "compilerOptions": { "allowImportingTsExtensions": true, "noEmit": true }, "include": ["src"] }',
    'src/kube/client.ts': "import type { Pod } from '../placement/pod.ts';\nexport const client = (pod: Pod) => pod;\n",
    'src/placement/pod.ts': "import { client } from '../kube/client.ts';\nexport type Pod = object;\nclient({});\n",
  };
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), text);
  }
  const { status, stdout } = spawnSync(process.execPath, [CHECK, root], { encoding: 'utf8' });
  t.is(status, 1);
  t.true(stdout.startsWith('src/placement/pod.ts -> src/kube/client.ts: against the order of folders\n'), stdout);
});

// The program as the image has it, without types: whole, and with the same words.
import { spawnSync } from 'node:child_process';
import { existsSync, globSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import test from 'ava';
import { withoutTypes } from '../../../image/strip-types.ts';
import { imageHome, mainOf } from '../../support/product/image.ts';

const ROOT = join(import.meta.dirname, '../../..');

test('every import names an existing file, and the code behaves as with types', (t) => {
  const home = imageHome(t);
  const files = globSync(['src/**', 'webhook/**', 'native/*.?s'], { cwd: home });
  t.deepEqual(
    files.filter((file) => file.endsWith('.ts')),
    [],
  );
  const plain = files.filter((file) => file.endsWith('.js'));
  t.is(plain.length, globSync(['src/**/*.ts', 'webhook/**/*.ts', 'native/build.ts'], { cwd: ROOT }).length);
  let named = 0;
  for (const file of plain) {
    const text = readFileSync(join(home, file), 'utf8');
    for (const [, name = ''] of text.matchAll(/^(?!\s*(?:\/\/|\*)).*['"](\.{1,2}\/[^'"\n]*\.js)['"]/gm)) {
      named += 1;
      t.true(existsSync(join(home, dirname(file), name)), `${file} names ${name}`);
    }
  }
  t.true(named > 500);
  const said = (main: string, ...args: string[]) => spawnSync(process.execPath, [main, ...args], { encoding: 'utf8' });
  for (const args of [['--help'], ['--version'], ['run', '--gpu-memory', 'x', '--', 'true'], ['top', '--help']]) {
    const [without, within] = [mainOf(home), mainOf()].map((main) => {
      const { status, stdout, stderr } = said(main, ...args);
      return { status, stdout, stderr };
    });
    t.deepEqual(without, within, args.join(' '));
  }
});

test('lines and columns stay; code that cannot be resolved without types is refused', (t) => {
  t.is(
    withoutTypes("import type { A } from './a.ts';\nimport { b } from '../b.ts';\nconst c: A = b as A;\n"),
    "                                \nimport { b } from '../b.js';\nconst c    = b     ;\n",
  );
  const worker = (ending: string) => `new URL('./worker.${ending}', import.meta.url);\n`;
  t.is(withoutTypes(worker('ts')), worker('js'));
  t.throws(() => withoutTypes("join(folder, 'main.ts');\n"), {
    message: /^a file named \.ts is not there any more: join/,
  });
  t.throws(() => withoutTypes('enum A { B }\n'), { message: /enum/i });
});

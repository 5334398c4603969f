// The files that images contain for pods: stripped, with their debug information beside them.
import { execFileSync } from 'node:child_process';
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { exportsOf, parseElf } from '../../../../src/agent/containers/elf.ts';
import { BUILD, interposerFiles } from '../../../support/native/node.ts';

const SHIPPED = join(BUILD, 'shipped');
const MOST_BYTES = 1_000_000;

const readelf = (option: string, path: string) =>
  execFileSync('readelf', [option, '-W', path], { encoding: 'utf8', maxBuffer: 1 << 26 });
const sections = (path: string) =>
  [...readelf('-S', path).matchAll(/^ +\[ *\d+\] (\.\S+)/gm)].map(([, name = '']) => name);
const buildId = (path: string) => /Build ID: ([0-9a-f]{40})/.exec(readelf('-n', path))?.[1];
const names = (path: string) =>
  exportsOf(parseElf(readFileSync(path))).map(({ name, address }) => `${name} ${address}`);

test.before(() => {
  execFileSync('make', ['-C', join(import.meta.dirname, '../../../../native'), '--silent', 'shipped', `OUT=${BUILD}`]);
});

for (const file of interposerFiles()) {
  test(`${file} is shipped stripped, its debug information is found by build ID`, (t) => {
    const [built, path] = [join(BUILD, file), join(SHIPPED, file)];
    const debug = join(SHIPPED, 'debug', `${file}.debug`);
    t.deepEqual(
      sections(path).filter((name) => /^\.(debug_|symtab|strtab)/.test(name)),
      [],
    );
    t.true(sections(path).includes('.gnu_debuglink'));
    t.true(sections(debug).includes('.debug_info') && sections(debug).includes('.symtab'));
    t.regex(buildId(path) ?? '', /./);
    t.is(buildId(path), buildId(debug));
    t.deepEqual(names(path), names(built));
    t.true(names(path).length > 0);
  });
}

test(`a pod's copies of the interposer take less than ${MOST_BYTES} bytes`, (t) => {
  const bytes = interposerFiles().map((file) => statSync(join(SHIPPED, file)).size);
  t.log(bytes);
  t.true(bytes.reduce((sum, size) => sum + size, 0) < MOST_BYTES);
});

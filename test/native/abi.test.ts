import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { extractDriverFacts, findToolkitHeaders, formatDriverFacts } from '../../native/abi/extract.ts';
import { joinVerbs, parseFacts, parseVerbs, readSources } from '../../native/abi/generate.ts';
import { testUnless } from '../support/gate.ts';
import { BUILD } from '../support/node.ts';
import { pythonClients } from '../support/python.ts';

const sources = readSources();
const facts = parseFacts(sources.cudaFacts);

test('the facts name 695 exported symbols, 673 of them with a version', (t) => {
  t.is(facts.symbols.length, 695);
  t.is(facts.rows.length, 673);
  t.is(new Set(facts.symbols).size, 695);
});

test('every entry point has a verb, and every pass says why', (t) => {
  const joined = joinVerbs(facts, parseVerbs(sources.cudaVerbs));
  t.is(joined.length, 695);
  for (const { symbol, row } of joined) t.true(row.reason.split(' ').length >= 2, `${symbol}: ${row.reason}`);
});

test('an entry point that nobody decided about is an error that names it', (t) => {
  const table = parseVerbs(sources.cudaVerbs);
  table.delete('cuMemAlloc');
  t.throws(() => joinVerbs(facts, table), { message: /no verb for: cuMemAlloc/ });
  const extra = parseVerbs(`${sources.cudaVerbs}\n= pass test: there is no such entry point\ncuNoSuchThing\n`);
  t.throws(() => joinVerbs(facts, extra), { message: /no such entry point: cuNoSuchThing/ });
});

test('a verb table with an unknown verb, a reasonless group or a double entry is refused with its line', (t) => {
  t.throws(() => parseVerbs('= allow linear: because\ncuMemAlloc\n'), { message: /verbs.txt:1/ });
  t.throws(() => parseVerbs('= pass linear\ncuMemAlloc\n'), { message: /verbs.txt:1/ });
  t.throws(() => parseVerbs('= pass a: one reason\ncuA\n= gate b: two reasons\ncuA\n'), {
    message: /verbs.txt:4: cuA/,
  });
});

const exported = (path: string): string[] =>
  execFileSync('nm', ['-D', '--defined-only', path], { encoding: 'utf8' })
    .split('\n')
    .flatMap((line) => /^[0-9a-f]+ [TWVRB] (\S+)$/.exec(line)?.[1] ?? []);

test('the simulated driver exports the full list', (t) => {
  const names = new Set(exported(join(BUILD, 'simulated/libcuda.so.1')));
  t.deepEqual(
    facts.symbols.filter((symbol) => !names.has(symbol)),
    [],
  );
});

test('the interposer exports the full list, dlsym, dlvsym and its marker, and nothing else', (t) => {
  const names = exported(join(BUILD, 'libcotenant.so'));
  t.deepEqual(names.toSorted(), [...facts.symbols, 'cotenant_interposer', 'dlsym', 'dlvsym'].toSorted());
});

test('the interposer needs no driver library, and nothing that ends a process, handles signals or reads the environment', (t) => {
  for (const name of ['libcotenant.so', 'libcotenant-nvml.so']) {
    const dynamic = execFileSync('readelf', ['-d', join(BUILD, name)], { encoding: 'utf8' });
    const needed = [...dynamic.matchAll(/NEEDED.*\[(.+)\]/g)].map((match) => match[1]);
    t.true(
      needed.every((library) => /^(libc|libdl|libpthread|ld-linux-x86-64)\.so/.test(library ?? '')),
      needed.join(' '),
    );
    const imports = execFileSync('nm', ['-D', '--undefined-only', join(BUILD, name)], { encoding: 'utf8' });
    for (const banned of [
      'exit',
      '_exit',
      'abort',
      'signal',
      'sigaction',
      'umask',
      'getenv',
      'secure_getenv',
      'setenv',
      'system',
      'fork',
    ]) {
      t.notRegex(imports, new RegExp(`\\bU ${banned}(@|$)`, 'm'), `${name} imports ${banned}`);
    }
  }
});

const toolkit = findToolkitHeaders([
  ...(process.env.CUDA_HOME
    ? [join(process.env.CUDA_HOME, 'include'), join(process.env.CUDA_HOME, 'extras/CUPTI/include')]
    : []),
  '/usr/local/cuda/include',
  '/usr/local/cuda/extras/CUPTI/include',
  ...(pythonClients().ok ? [pythonClients().include] : []),
]);
const versionOf = (folders: readonly string[]): string => {
  const text = folders.map((folder) => readFileSync(join(folder, 'cuda.h'), { encoding: 'utf8', flag: 'r' })).join('');
  return /#define CUDA_VERSION (\d+)/.exec(text)?.[1] ?? '';
};
const toolkitVersion = toolkit ? versionOf(toolkit.slice(0, 1)) : undefined;
testUnless(
  toolkit === undefined
    ? 'no CUDA toolkit headers are installed here, and none could be had from the Python registry'
    : toolkitVersion === '13000'
      ? undefined
      : `the installed toolkit is CUDA ${toolkitVersion}, the facts are of 13000`,
)('the committed facts are what the headers of CUDA 13.0 say', (t) => {
  const committed = sources.cudaFacts.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  t.deepEqual(formatDriverFacts(extractDriverFacts(toolkit ?? [])).split('\n'), committed);
});

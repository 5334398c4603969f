// The page on the simulated node, and the program.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import test from 'ava';
import { blocks, quoted, readPage, rowsWith, section } from '../../support/docs.ts';
import { startClient } from '../../support/native/client.ts';
import { BUILD, startNode } from '../../support/native/node.ts';
import { firstSample } from '../../support/product/sample.ts';

const page = readPage('docs/develop/simulator.md');
const MIB = 2 ** 20;

test('the models of the page are those that a node can have, with these sizes', async (t) => {
  const rows = rowsWith(page, 'model', 'name', 'memory MiB');
  const node = await startNode(t, ...rows.flatMap((row) => ['--gpu', quoted(row.model)[0] ?? '']));
  const gpus = node.usage().gpus as readonly {
    name: string;
    totalBytes: number;
    reservedBytes: number;
    contextBytes: number;
  }[];
  t.deepEqual(
    rows.map((row) => [row.name, Number(row['memory MiB']), Number(row['reserved MiB']), Number(row['context MiB'])]),
    gpus.map(({ name, totalBytes, reservedBytes, contextBytes }) => [
      name,
      totalBytes / MIB,
      reservedBytes / MIB,
      contextBytes / MIB,
    ]),
  );
  t.true(node.uuid(0).startsWith(quoted(section(page, '## GPUs')).find((text) => text.startsWith('GPU-')) ?? 'none'));
});

test('the page names every option and command of the program', (t) => {
  const help = execFileSync(join(BUILD, 'cotenant-simulator'), ['--help'], { encoding: 'utf8' });
  const options = [...help.matchAll(/^ {2}(--[a-z-]+)/gm)].map(([, option]) => option ?? '');
  const documented = rowsWith(page, 'option of `serve`').map(
    (row) => quoted(row['option of `serve`'])[0]?.split(' ')[0] ?? '',
  );
  t.deepEqual([...documented].sort(), ['--dir', ...options].sort());
  const commands = [...help.matchAll(/^([a-z-]+(?:\|[a-z-]+)*) /gm)].flatMap(([, names = '']) => names.split('|'));
  const named = rowsWith(page, 'command').flatMap((row) => quoted(row.command).map((text) => text.split(' ')[0] ?? ''));
  t.deepEqual([...new Set(named)].sort(), commands.sort());
  const [, models = ''] = /MODEL: ([a-z0-9 ]+);/.exec(help) ?? [];
  t.deepEqual(
    rowsWith(page, 'model').map((row) => quoted(row.model)[0]),
    models.split(' '),
  );
});

test('the node of the example starts as it is written', async (t) => {
  const [, words = ''] = /cotenant-simulator serve --dir \S+ (.+)$/m.exec(blocks(page, 'sh')[0] ?? '') ?? [];
  const node = await startNode(t, ...words.split(' '));
  const { gpus } = node.usage();
  t.is(gpus.length, 2);
  t.is(gpus[1]?.totalBytes, 12 * 1024 * MIB);
});

test('the faults of the example occur as on the page', async (t) => {
  const [faults = ''] = blocks(section(page, '## Faults'), '');
  const node = await startNode(t, '--gpu', 't4');
  const [name = '', ...value] = faults.trim().split('=');
  const client = startClient(t, node, { env: { [name]: value.join('=') } });
  await client.must('init');
  await client.must('context 0');
  const results: number[] = [];
  for (let i = 0; i < 4; i++) results.push((await client.ask('alloc 4096'))[0] ?? -1);
  t.deepEqual(results, [0, 0, 2, 0]);
  const sampler = join(BUILD, 'cotenant-sampler');
  const text = execFileSync(sampler, ['--library', join(node.lib, 'libnvidia-ml.so.1')], {
    input: '',
    encoding: 'utf8',
    env: { [name]: value.join('=') },
  });
  t.regex(firstSample(text).problem ?? '', /\(9\)$/);
});

test('every assumption of the page is marked as one', (t) => {
  const listed = section(page, '## Assumptions').match(/^- .*/gm) ?? [];
  t.true(listed.length >= 8);
  for (const line of listed) t.true(line.startsWith('- **Assumption:** '), line);
});

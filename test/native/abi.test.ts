import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { extractDriverFacts, findToolkitHeaders, formatDriverFacts } from '../../native/abi/extract.ts';
import { joinVerbs, parseFacts, parseVerbs, readSources } from '../../native/abi/generate.ts';
import { testUnless } from '../support/gate.ts';
import { BUILD, temporaryFolder } from '../support/native/node.ts';
import { pythonClients } from '../support/toolchains/python.ts';

const sources = readSources();
const facts = parseFacts(sources.cudaFacts);

/** The CUDA version whose headers the facts are compared with; rows of newer versions are added by hand. */
const HEADERS = 13_000;

test('the facts of CUDA 13.0 name 673 symbols with a version, and 22 without one', (t) => {
  t.is(facts.rows.filter(({ version }) => version <= HEADERS).length, 673);
  t.is(facts.symbols.length - facts.rows.length, 22);
  t.is(new Set(facts.symbols).size, facts.symbols.length);
});

test('every entry point has a verb, and every pass says why', (t) => {
  const joined = joinVerbs(facts, parseVerbs(sources.cudaVerbs));
  t.is(joined.length, facts.symbols.length);
  for (const { symbol, row } of joined) t.true(row.reason.split(' ').length >= 2, `${symbol}: ${row.reason}`);
});

test('an entry point without a verb is an error that names it', (t) => {
  const table = parseVerbs(sources.cudaVerbs);
  table.delete('cuMemAlloc');
  t.throws(() => joinVerbs(facts, table), { message: /no verb for: cuMemAlloc/ });
  const extra = parseVerbs(`${sources.cudaVerbs}\n= pass test: there is no such entry point\ncuNoSuchThing\n`);
  t.throws(() => joinVerbs(facts, extra), { message: /no such entry point: cuNoSuchThing/ });
});

test('an unknown verb, a group without a reason or a double entry is refused by line', (t) => {
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

test('the newest simulated driver exports the full list', (t) => {
  const names = new Set(exported(join(BUILD, 'simulated/14000/libcuda.so.1')));
  t.deepEqual(
    facts.symbols.filter((symbol) => !names.has(symbol)),
    [],
  );
});

test('the interposer exports the full list, dlsym, dlvsym and its marker only', (t) => {
  const names = exported(join(BUILD, 'libcotenant.so'));
  t.deepEqual(names.toSorted(), [...facts.symbols, 'cotenant_interposer', 'dlsym', 'dlvsym'].toSorted());
});

test('the interposer links no driver and nothing for exit, signals or environment', (t) => {
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
const withoutHeaders =
  toolkit === undefined
    ? 'no CUDA toolkit headers are installed here, and none could be had from the Python registry'
    : toolkitVersion === String(HEADERS)
      ? undefined
      : `the installed toolkit is CUDA ${toolkitVersion}, the facts are of ${HEADERS}`;

testUnless(withoutHeaders)('the committed facts match the headers of CUDA 13.0', (t) => {
  const committed = sources.cudaFacts
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#') && !(Number(line.split(' ')[1]) > HEADERS));
  t.deepEqual(formatDriverFacts(extractDriverFacts(toolkit ?? [])).split('\n'), committed);
});

// Our type, the headers' type, and the fields of both in pairs.
const SHAPES: readonly [string, string, readonly (readonly [string, string])[]][] = [
  [
    'abi_array_shape',
    'CUDA_ARRAY_DESCRIPTOR',
    [
      ['height', 'Height'],
      ['format', 'Format'],
      ['channels', 'NumChannels'],
    ],
  ],
  [
    'abi_array3d_shape',
    'CUDA_ARRAY3D_DESCRIPTOR',
    [
      ['depth', 'Depth'],
      ['format', 'Format'],
      ['channels', 'NumChannels'],
      ['flags', 'Flags'],
    ],
  ],
  [
    'abi_array_requirements',
    'CUDA_ARRAY_MEMORY_REQUIREMENTS',
    [
      ['size', 'size'],
      ['alignment', 'alignment'],
    ],
  ],
  [
    'abi_array_map',
    'CUarrayMapInfo',
    [
      ['resource_type', 'resourceType'],
      ['resource', 'resource'],
      ['part_type', 'subresourceType'],
      ['part.tiles.level', 'subresource.sparseLevel.level'],
      ['part.tiles.x', 'subresource.sparseLevel.offsetX'],
      ['part.tiles.depth', 'subresource.sparseLevel.extentDepth'],
      ['part.tail.layer', 'subresource.miptail.layer'],
      ['part.tail.size', 'subresource.miptail.size'],
      ['operation', 'memOperationType'],
      ['handle_type', 'memHandleType'],
      ['handle', 'memHandle'],
      ['offset', 'offset'],
      ['device_mask', 'deviceBitMask'],
      ['flags', 'flags'],
    ],
  ],
  [
    'abi_external_handle',
    'CUDA_EXTERNAL_MEMORY_HANDLE_DESC',
    [
      ['type', 'type'],
      ['handle.fd', 'handle.fd'],
      ['size', 'size'],
      ['flags', 'flags'],
    ],
  ],
  [
    'abi_external_buffer',
    'CUDA_EXTERNAL_MEMORY_BUFFER_DESC',
    [
      ['size', 'size'],
      ['flags', 'flags'],
    ],
  ],
  [
    'abi_external_mipmapped',
    'CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC',
    [
      ['offset', 'offset'],
      ['shape', 'arrayDesc'],
      ['levels', 'numLevels'],
    ],
  ],
  ['abi_ipc_handle', 'CUipcMemHandle', []],
  ['abi_pool_pointer', 'CUmemPoolPtrExportData', []],
];
const VALUES: readonly [string, string][] = [
  ['ABI_ARRAY_LAYERED', 'CUDA_ARRAY3D_LAYERED'],
  ['ABI_ARRAY_SURFACE', 'CUDA_ARRAY3D_SURFACE_LDST'],
  ['ABI_ARRAY_CUBEMAP', 'CUDA_ARRAY3D_CUBEMAP'],
  ['ABI_ARRAY_GATHER', 'CUDA_ARRAY3D_TEXTURE_GATHER'],
  ['ABI_ARRAY_DEPTH', 'CUDA_ARRAY3D_DEPTH_TEXTURE'],
  ['ABI_ARRAY_COLOR', 'CUDA_ARRAY3D_COLOR_ATTACHMENT'],
  ['ABI_ARRAY_SPARSE', 'CUDA_ARRAY3D_SPARSE'],
  ['ABI_ARRAY_DEFERRED', 'CUDA_ARRAY3D_DEFERRED_MAPPING'],
  ['ABI_ARRAY_VIDEO', 'CUDA_ARRAY3D_VIDEO_ENCODE_DECODE'],
  ['ABI_RESOURCE_ARRAY', 'CU_RESOURCE_TYPE_ARRAY'],
  ['ABI_RESOURCE_MIPMAPPED', 'CU_RESOURCE_TYPE_MIPMAPPED_ARRAY'],
  ['ABI_TILES_LEVEL', 'CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL'],
  ['ABI_TILES_MIP_TAIL', 'CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL'],
  ['ABI_TILES_MAP', 'CU_MEM_OPERATION_TYPE_MAP'],
  ['ABI_TILES_UNMAP', 'CU_MEM_OPERATION_TYPE_UNMAP'],
  ['ABI_EXTERNAL_OPAQUE_FD', 'CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD'],
  ['ABI_EXTERNAL_DMABUF_FD', 'CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD'],
];

testUnless(withoutHeaders)('array and shared memory structures match the headers; each format has a size', (t) => {
  const headers = readFileSync(join(toolkit?.[0] ?? '', 'cuda.h'), 'utf8');
  const formats = [...new Set(headers.match(/\bCU_AD_FORMAT_(?!MAX\b)\w+/g) ?? [])];
  t.true(formats.length > 45, `${formats.length}`);
  const source = [
    '#include <cuda.h>',
    '#include "abi/cuda_arrays.h"',
    '#define SAME(a, b) _Static_assert((a) == (b), #a " is not " #b);',
    ...SHAPES.flatMap(([ours, theirs, fields]) => [
      `SAME(sizeof(${ours}), sizeof(${theirs}))`,
      ...fields.map(([mine, yours]) => `SAME(offsetof(${ours}, ${mine}), offsetof(${theirs}, ${yours}))`),
    ]),
    ...VALUES.map(([ours, theirs]) => `SAME((int)${ours}, (int)${theirs})`),
    'int main(void) {',
    ...formats.map((format) => `  if (!abi_array_element_of(${format}, 1).bits) return 1;`),
    '  return 0;\n}\n',
  ];
  const program = join(temporaryFolder(t), 'shapes');
  const folders = [...(toolkit ?? []), join(import.meta.dirname, '../../native')].flatMap((folder) => ['-I', folder]);
  execFileSync('gcc', ['-std=c17', ...folders, '-x', 'c', '-', '-o', program], { input: source.join('\n') });
  t.notThrows(() => execFileSync(program));
});

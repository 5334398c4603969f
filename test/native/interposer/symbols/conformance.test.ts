// The table of entry points against every way to look one up, on drivers of five versions. The expected result comes
// from the facts and the verbs here, and from the driver's own symbol table in the program that looks them up.
import { execFileSync } from 'node:child_process';
import { symlinkSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { joinVerbs, parseFacts, parseVerbs, readSources, versionText } from '../../../../native/abi/generate.ts';
import {
  BUILD,
  EMULATED,
  environment,
  interposerFiles,
  startNode,
  temporaryFolder,
} from '../../../support/native/node.ts';
import { MIB, makeGrant, mountOver } from '../../../support/product/grant.ts';

const sources = readSources();
const facts = parseFacts(sources.cudaFacts);
const verbs = joinVerbs(facts, parseVerbs(sources.cudaVerbs));
const since = new Map(facts.rows.map((row) => [row.symbol, row.version]));
/** Exported by the simulated driver of CUDA 14.0 alone. */
const NEWER = parseFacts(sources.newerFacts).symbols;
/** Names that the program asks for beyond the table, and that no driver has. */
const STRANGERS = 4;
/** Under emulation, where look-ups take long, the driver that is asked in one way less: assembly and tables are
 * tested. */
const VERSIONS = EMULATED ? [11_080] : [11_080, 12_040, 12_080, 13_000, 14_000];

type Count = { ours: number; driver: number; absent: number; pretended: number; missing: number; wrong: number };

const NONE: Count = { ours: 0, driver: 0, absent: 0, pretended: 0, missing: 0, wrong: 0 };
const program = join(BUILD, 'tests/conformance');
const plugins = [1, 2, 3].map((number) => join(BUILD, `tests/plugin${number}.so`));

function walk(env: Record<string, string>, args: readonly string[]): Map<string, Count> {
  const output = execFileSync(program, args, { encoding: 'utf8', env });
  return new Map(
    output
      .trim()
      .split('\n')
      .map((line): [string, Count] => {
        const [way = '', ...numbers] = line.split(' ');
        const [ours = 0, driver = 0, absent = 0, pretended = 0, missing = 0, wrong = -1] = numbers.map(Number);
        return [way, { ours, driver, absent, pretended, missing, wrong }];
      }),
  );
}

/** How many of the table's symbols a driver has, by whether they are wrapped. */
function expected(cuda: number) {
  const there = verbs.filter(({ symbol }) => (since.get(symbol) ?? 0) <= cuda);
  const ours = there.filter(({ row }) => row.verb !== 'pass').length;
  const newer = cuda >= 14_000 ? NEWER.length : 0;
  return { ours, driver: there.length - ours, newer, lacking: verbs.length - there.length };
}

const ASKED = ['dlsym-default', 'dlsym-next', 'dlsym-handle', 'dlsym-by-dlsym', 'plugin', 'plugin-deepbind'];
const OPENED = ['unversioned-name', 'absolute-path'];
const EXPORTS = ['dlsym-by-dlvsym', 'dlsym-of-libc', 'own-elf-walk'];
const ADDRESSES = ['get-proc-address-v1', 'get-proc-address', 'get-proc-address-twice'];

for (const cuda of VERSIONS) {
  test(`preloaded, CUDA ${versionText(cuda)}: each look-up of each entry point follows the table`, async (t) => {
    const node = await startNode(t, '--gpu', 't4', '--cuda', String(cuda));
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB }]);
    const real = join(node.lib, 'libcuda.so.1');
    const counts = walk(environment({ LD_LIBRARY_PATH: node.lib }, grant.cuda), ['preload', real, ...plugins, real]);
    const { ours, driver, newer, lacking } = expected(cuda);
    const absent = lacking + STRANGERS + NEWER.length - newer;
    for (const way of [...ASKED, ...OPENED]) {
      const right = { ours, driver: driver + newer, absent, pretended: 0, missing: 0, wrong: 0 };
      t.deepEqual(counts.get(way), right, way);
    }
    for (const way of EXPORTS) {
      const right = { ours, driver, absent: absent - lacking, pretended: lacking, missing: newer, wrong: 0 };
      t.deepEqual(counts.get(way), right, way);
    }
    t.deepEqual(counts.get('direct-link'), { ours, driver, absent: 0, pretended: lacking, missing: 0, wrong: 0 });
    const apart = counts.get('plugin-dlmopen');
    t.is(apart?.driver, ours + driver, 'the one way that escapes leads to the driver itself');
    t.is(apart?.wrong, 0);
    const ways = cuda < 12_000 ? ADDRESSES.slice(0, 1) : ADDRESSES;
    for (const way of ways) {
      const count = counts.get(way);
      t.is(count?.wrong, 0, way);
      // The second form refuses versions above the driver's own.
      const answered = way === 'get-proc-address-v1' ? 10_000 : 5_000;
      t.true((count?.ours ?? 0) > 1000 && (count?.driver ?? 0) > answered && (count?.absent ?? 0) > 10_000, way);
    }
    t.deepEqual(counts.get('foreign-handle'), { ...NONE, absent: verbs.length });
    t.is(counts.size, ASKED.length + OPENED.length + EXPORTS.length + ways.length + 3);
  });
}

for (const cuda of VERSIONS) {
  test(`mounted over CUDA ${versionText(cuda)}: every look-up finds exactly what the driver has`, async (t) => {
    const node = await startNode(t, '--gpu', 't4', '--cuda', String(cuda));
    const mounted = mountOver(t, node, makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB }]));
    const real = join(node.lib, 'libcuda.so.1');
    const args = ['mounted', real, ...plugins, mounted.cuda];
    const counts = walk(environment({ LD_LIBRARY_PATH: mounted.lib }), args);
    const { ours, driver, newer, lacking } = expected(cuda);
    const absent = lacking + STRANGERS + NEWER.length - newer;
    for (const way of [...ASKED, ...OPENED, ...EXPORTS]) {
      const right = { ours, driver: driver + newer, absent, pretended: 0, missing: 0, wrong: 0 };
      t.deepEqual(counts.get(way), right, way);
    }
    for (const way of ['direct-link', 'plugin-dlmopen']) {
      t.deepEqual(counts.get(way), { ours, driver, absent: lacking, pretended: 0, missing: 0, wrong: 0 }, way);
    }
    const ways = cuda < 12_000 ? ADDRESSES.slice(0, 1) : ADDRESSES;
    for (const way of ways) t.true(counts.get(way)?.wrong === 0 && (counts.get(way)?.ours ?? 0) > 1000, way);
    t.deepEqual(counts.get('foreign-handle'), { ...NONE, absent: verbs.length });
    t.is(counts.size, ASKED.length + OPENED.length + EXPORTS.length + ways.length + 3);
  });
}

test("a call of each passed or gated entry point reaches the driver's of that name", (t) => {
  const folder = temporaryFolder(t);
  for (const name of interposerFiles()) symlinkSync(join(BUILD, name), join(folder, name));
  const env = environment({ LD_LIBRARY_PATH: join(BUILD, 'tests/echo') }, join(folder, 'libcotenant.so'));
  const leading = verbs.filter(({ row }) => row.verb === 'pass' || row.verb === 'gate').length;
  t.deepEqual(walk(env, ['calls']).get('calls'), { ...NONE, driver: leading });
});

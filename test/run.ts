// Runs the test layers in order, prints each result as it comes, and ends with `N passed, N failed, N skipped`.
// Owns order, time per layer and the count; what a test needs (native parts, Python clients) is prepared by its layer.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, statfsSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { arm64Reason, EMULATED_BUILD } from './support/toolchains/arm64.ts';
import { type Sanitizing, sanitizing } from './support/toolchains/sanitizers.ts';

type Layer = {
  name: string;
  prepare: string[][];
  /** Of files that run at the same time. */
  concurrency: number;
  /** Files that run alone, after the others: what they hold against real time, another file on their processors would
   * disturb. */
  alone?: string[];
  budgetMinutes: number;
  /** Where its files are not test/NAME. */
  patterns?: string[];
  sanitize?: () => Sanitizing;
  environment?: Readonly<Record<string, string>>;
  /** Why none of its tests can run here, once it is prepared. */
  missing?: () => string | undefined;
};
/** `failed`: the name of each and the first lines of why. */
type Count = { passed: number; failed: string[][]; skipped: string[] };

const SLOWEST = 10;
/** Of why a test failed, repeated at the end: a record of a run may keep that and not what is far above it. */
const REPEATED_LINES = 25;
/** Of why a test failed, in the last lines of a run. */
const SHORT_CHARACTERS = 240;
const root = join(import.meta.dirname, '..');
// Hundreds of processes of Node start, and strip and compile much the same files.
process.env.NODE_COMPILE_CACHE ??= join(root, 'node_modules/.cache/compiled');
/** A program that compilers are called through, as ccache. */
const cache = process.env.COTENANT_COMPILER_CACHE;
const compilers = cache ? [`CC=${cache} gcc`, `CXX=${cache} g++`] : [];
const make = ['make', '-C', 'native', '--no-print-directory', '-j2', ...compilers];
/** Files of native, sanitizers, integration and cluster that run at the same time, but for those that run alone. */
const FILES_AT_ONCE = Number(process.env.COTENANT_FILES_AT_ONCE ?? Math.min(2, availableParallelism()));
/** Shares, stalls and steps of kernels in real time. */
const NATIVE_ALONE = [
  'compute/gate',
  'compute/hostile-page',
  'compute/kinds',
  'compute/waiting-work',
  'sampler/gpm',
  'interposer/processes/slot-locks',
  'interposer/memory/quota',
  'simulator/simulator',
  'interposer/processes/kill-storm',
].map((name) => `test/native/${name}.test.ts`);
const LAYERS: Layer[] = [
  { name: 'unit', prepare: [], concurrency: 2, budgetMinutes: 1 },
  {
    name: 'native',
    prepare: [make, [...make, 'tests']],
    concurrency: FILES_AT_ONCE,
    alone: NATIVE_ALONE,
    budgetMinutes: 5,
  },
  {
    name: 'sanitizers',
    prepare: [
      [...make, 'tests'],
      [...make, 'SANITIZE=address,undefined', 'OUT=build/asan', 'tests'],
      [
        ...[...make, 'SANITIZE=thread', 'OUT=build/tsan', 'simulator', 'interposer', 'build/tsan/cotenant-sampler'],
        ...['random_programs', 'grant', 'ledger', 'interleavings', 'arbiter_idle', 'engine_switch'].map(
          (name) => `build/tsan/tests/${name}`,
        ),
      ],
    ],
    concurrency: FILES_AT_ONCE,
    alone: NATIVE_ALONE,
    budgetMinutes: 4,
    // What abi, objects, shipped and images ask is asked of the objects that ship. The runtimes refuse one of the ways
    // that routes and conformance go, and are not in the folders that discovery makes a root of.
    patterns: [
      'test/native/**/*.test.ts',
      '!test/native/abi.test.ts',
      '!test/native/interposer/symbols/routes.test.ts',
      '!test/native/interposer/objects/other-libcs.test.ts',
      '!test/native/interposer/objects/objects.test.ts',
      '!test/native/interposer/objects/shipped.test.ts',
      '!test/native/interposer/symbols/conformance.test.ts',
      '!test/native/interposer/symbols/driver-discovery.test.ts',
      // It counts instructions, with valgrind.
      '!test/native/interposer/memory/mappings.test.ts',
      'test/sanitizers/**/*.test.ts',
    ],
    sanitize: sanitizing,
  },
  {
    name: 'arm64',
    prepare: [make, [...make, 'tests'], ['node', 'test/arm64/prepare.ts']],
    concurrency: 1,
    budgetMinutes: 2,
    // What is in assembly or else another for each machine, and what fork, threads and look-ups make of it.
    patterns: [
      'symbols/arguments',
      'symbols/conformance',
      'symbols/routes',
      'processes/process-lifetimes',
      'objects/bind-mounted',
      'objects/objects',
    ].map((name) => `test/native/interposer/${name}.test.ts`),
    environment: { COTENANT_BUILD: EMULATED_BUILD, COTENANT_EMULATED: '1' },
    missing: arm64Reason,
  },
  {
    name: 'integration',
    prepare: [make, [...make, 'tests'], [...make, 'bench'], ['node', 'test/boards/bundle.ts']],
    concurrency: FILES_AT_ONCE,
    alone: ['enforcement/hostile-tenants', 'grants/compute'].map((name) => `test/integration/agent/${name}.test.ts`),
    budgetMinutes: 5,
  },
  {
    name: 'clients',
    prepare: [make, [...make, 'tests'], ['node', 'test/clients/prepare.ts']],
    concurrency: 1,
    budgetMinutes: 3,
  },
  {
    name: 'cluster',
    prepare: [['node', 'test/cluster/prepare.ts']],
    concurrency: FILES_AT_ONCE,
    alone: ['bed', 'chaos', 'node/compute', 'placement/burst'].map((name) => `test/cluster/${name}.test.ts`),
    budgetMinutes: 20,
  },
  {
    name: 'guest',
    // The emulated node joins a test cluster.
    prepare: [make, [...make, 'tests'], ['node', 'test/cluster/prepare.ts'], ['node', 'test/guest/prepare.ts']],
    concurrency: 1,
    budgetMinutes: 15,
  },
];

/** Runs one command with its output shown; resolves to its exit code (signals count as 1). */
async function run(command: string[]): Promise<number> {
  const [file = '', ...args] = command;
  const child = spawn(file, args, { cwd: root, stdio: 'inherit' });
  const [code] = (await once(child, 'exit')) as [number | null];
  return code ?? 1;
}

/** What each file of a run of ava took, as test/support/times.ts tells it: where it goes, and a line of those that took
 * longest. */
function fileTimes() {
  const folder = mkdtempSync(join(tmpdir(), 'ct-times-'));
  const path = join(folder, 'times');
  return {
    path,
    slowest(): string {
      const times = existsSync(path) ? readFileSync(path, 'utf8').trim().split('\n') : [];
      rmSync(folder, { recursive: true, force: true });
      return times
        .map((line) => line.split(' '))
        .sort(([left], [right]) => Number(right) - Number(left))
        .slice(0, SLOWEST)
        .map(([seconds, busy, file = '']) => `${file.replace(/^test\/|\.test\.ts$/g, '')} ${seconds} (${busy})`)
        .join(', ');
    },
  };
}

/** Runs files through ava and counts from its TAP stream, so that a crash of ava cannot pass for success. */
async function runFiles(
  patterns: string[],
  { name, concurrency }: Pick<Layer, 'name' | 'concurrency'>,
  env: NodeJS.ProcessEnv,
  count: Count,
): Promise<void> {
  const before = count.failed.length;
  const args = ['--tap', `--concurrency=${concurrency}`, ...patterns];
  const child = spawn('ava', args, { cwd: root, env, stdio: ['ignore', 'pipe', 'inherit'] });
  let planned = false;
  let why: string[] | undefined;
  for await (const line of createInterface({ input: child.stdout })) {
    const [, result, title = ''] = /^(ok|not ok) (?:\d+ - )?(.*)/.exec(line) ?? [];
    if (/^1\.\.\d+/.test(line)) planned = true;
    else if (result === 'not ok') {
      why = [`${name}: ${title}`];
      count.failed.push(why);
    } else if (result === 'ok') {
      why = undefined;
      if (/ # SKIP/.test(title)) count.skipped.push(title.replace(/ # SKIP.*/, ''));
      else count.passed += 1;
    } else if (why && why.length <= REPEATED_LINES) why.push(line);
    // What a test tells of itself stands behind three blanks; titles are in the lines of results as well.
    if (!/^(TAP version|# {1,2}\S|1\.\.)/.test(line)) console.log(line);
  }
  const code = child.exitCode ?? ((await once(child, 'exit')) as [number | null])[0];
  if ((code !== 0 || !planned) && count.failed.length === before) {
    const reason = `${name}: the runner itself ended with code ${code} and ${planned ? 'a' : 'no'} plan`;
    console.error(`not ok - ${reason}`);
    count.failed.push([reason]);
  }
}

/** A failed test's name and the start of what it says of the failure. */
function inShort(name: string, why: readonly string[]): string {
  const lines = why.map((line) => line.trim());
  const end = lines.indexOf('...');
  const said = lines.slice(0, end < 0 ? undefined : end).filter((line) => line !== '---' && !/^name: /.test(line));
  return `failed: ${name}: ${said.join(' ').slice(0, SHORT_CHARACTERS)}`;
}

/** Prepares one layer and runs its files. */
async function runLayer(layer: Layer, match: string[]): Promise<Count> {
  const count: Count = { passed: 0, failed: [], skipped: [] };
  for (const command of layer.prepare) {
    if ((await run(command)) !== 0) {
      const reason = `${layer.name}: preparation failed: ${command.join(' ')}`;
      console.error(`not ok - ${reason}`);
      return { ...count, failed: [[reason]] };
    }
  }
  const missing = layer.missing?.();
  if (missing !== undefined) return { ...count, skipped: [`all of ${layer.name} (${missing})`] };
  const patterns = match.length > 0 ? match : (layer.patterns ?? [`test/${layer.name}/**/*.test.ts`]);
  const sanitizers = layer.sanitize?.();
  if (sanitizers) {
    console.log(
      `# ${layer.name}: native parts run under AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer`,
    );
    for (const [name, value] of Object.entries(sanitizers.env)) console.log(`# ${name}=${value}`);
  }
  const times = fileTimes();
  const env = { ...process.env, ...layer.environment, ...sanitizers?.env, COTENANT_FILE_TIMES: times.path };
  const oneByOne = { ...layer, concurrency: 1 };
  const alone = match.length > 0 ? [] : (layer.alone ?? []);
  await runFiles([...patterns, ...alone.map((file) => `!${file}`)], match.length > 0 ? oneByOne : layer, env, count);
  if (alone.length > 0) await runFiles(alone, oneByOne, env, count);
  console.log(
    `# ${layer.name}: slowest files, in seconds (of processors, with children waited for): ${times.slowest()}`,
  );
  for (const report of sanitizers?.reports() ?? []) {
    console.log(`not ok - ${layer.name}: a sanitizer reports\n${report}`);
    count.failed.push([`${layer.name}: a sanitizer reports`, ...report.split('\n').slice(0, REPEATED_LINES)]);
  }
  return count;
}

// Layers first: there is a folder named native, too.
const isLayer = (arg: string) => LAYERS.some((layer) => layer.name === arg);
const isFile = (arg: string) => !isLayer(arg) && existsSync(join(root, arg));
const names = process.argv.slice(2).filter((arg) => !isFile(arg));
const files = process.argv.slice(2).filter(isFile);
const chosen = LAYERS.filter((layer) => names.includes(layer.name));
const unknown = names.filter((name) => !isLayer(name));
if (unknown.length > 0 || chosen.length === 0) {
  const known = LAYERS.map((layer) => layer.name).join(', ');
  console.error(
    `usage: node test/run.ts LAYER... [FILE...]; layers: ${known}; not known: ${unknown.join(', ') || '-'}`,
  );
  process.exit(2);
}
const total: Count = { passed: 0, failed: [], skipped: [] };
const times: string[] = [];
/** Of the disk of temporary files, in GiB of 2^30 bytes. */
const freeGib = (): string => {
  const { bavail, bsize } = statfsSync(tmpdir());
  return ((bavail * bsize) / 2 ** 30).toFixed(1);
};
const free = [`${freeGib()} at the start`];
for (const layer of chosen) {
  const started = performance.now();
  const count = await runLayer(layer, files);
  total.passed += count.passed;
  total.failed.push(...count.failed);
  total.skipped.push(...count.skipped);
  const seconds = Math.round((performance.now() - started) / 1000);
  times.push(`${layer.name} ${seconds} s of ${layer.budgetMinutes * 60} s`);
  free.push(`${freeGib()} after ${layer.name}`);
}
for (const name of total.skipped) console.log(`SKIPPED: ${name}`);
for (const [name, ...why] of total.failed) console.log([`FAILED: ${name}`, ...why].join('\n'));
// Once more in a line each, as a record may keep the last lines only.
for (const [name, ...why] of total.failed) console.log(inShort(name ?? '', why));
console.log(`free disk in GiB: ${free.join(', ')}`);
console.log(`time: ${times.join(', ')}`);
console.log(`${total.passed} passed, ${total.failed.length} failed, ${total.skipped.length} skipped`);
process.exit(total.failed.length === 0 ? 0 : 1);

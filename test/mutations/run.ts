// Whether the tests of the driver's rules notice mistakes: each verb of the interposer is made `pass`, and places of the
// simulated driver, drawn by lot, are changed; each time the rules and the native tests beside them run until one fails.
//   node test/mutations/run.ts [--places N] [--from N] [--seed S] [--only verbs|places] [--verbs REGEX] [--aim PERCENT]
// prints a line for each mutation, and ends with 1 if fewer than the aim were noticed. It works on a copy of native/.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, cpSync, globSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { text } from 'node:stream/consumers';
import { parseArgs } from 'node:util';
import { generate, readSources } from '../../native/abi/generate.ts';
import { type Place, placesIn, shuffled } from './places.ts';

const root = join(import.meta.dirname, '../..');
const { values } = parseArgs({
  options: {
    places: { type: 'string', default: '50' },
    from: { type: 'string', default: '0' },
    seed: { type: 'string', default: '1' },
    only: { type: 'string' },
    verbs: { type: 'string', default: '' },
    aim: { type: 'string', default: '90' },
  },
});

type Test = { readonly file: string; readonly match?: string };
const RULES = 'test/native/conformance/rules.test.ts';
const DIFFERENTIAL: Test = { file: 'test/native/interposer/differential.test.ts' };
const filesIn = (pattern: string): Test[] =>
  globSync(pattern, { cwd: root })
    .toSorted()
    .map((file) => ({ file }));
const MEMORY = filesIn('test/native/interposer/memory/*.test.ts').filter(
  ({ file }) => !file.includes('random-programs'),
);
/** Those first that notice most for their time. */
const OF_VERBS: readonly Test[] = [
  DIFFERENTIAL,
  ...MEMORY,
  { file: RULES, match: 'preloaded in a grant, *' },
  { file: 'test/native/compute/random-streams.test.ts' },
  { file: 'test/native/compute/gate.test.ts' },
  ...filesIn('test/native/interposer/symbols/*.test.ts'),
];
const OF_PLACES: readonly Test[] = [
  { file: RULES, match: 'bare*' },
  ...filesIn('test/native/simulator/*.test.ts'),
  DIFFERENTIAL,
  ...MEMORY,
];

const copy = mkdtempSync(join(tmpdir(), 'ct-mutations-'));
chmodSync(copy, 0o755); // some tests run its programs as another user
const native = join(copy, 'native');
process.on('exit', () => rmSync(copy, { recursive: true, force: true }));
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(1));
cpSync(join(root, 'native'), native, { recursive: true, preserveTimestamps: true });
for (const folder of ['node_modules', 'src', 'test']) symlinkSync(join(root, folder), join(copy, folder));

const builds = (...targets: string[]): boolean =>
  spawnSync('make', ['-C', native, ...targets], { stdio: 'ignore' }).status === 0;

/** The first of the tests that fails with what is built, its file and title; undefined: none. */
async function noticedBy(tests: readonly Test[]): Promise<string | undefined> {
  for (const { file, match } of tests) {
    const words = ['--tap', '--fail-fast', file, ...(match === undefined ? [] : [`--match=${match}`])];
    const path = `${join(root, 'node_modules/.bin')}:${process.env.PATH}`;
    const env = { ...process.env, PATH: path, COTENANT_BUILD: join(native, 'build'), COTENANT_SEQUENCES: '200' };
    const child = spawn(join(root, 'node_modules/.bin/ava'), words, {
      cwd: root,
      env,
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    const [printed, [code]] = await Promise.all([text(child.stdout), once(child, 'close')]);
    const title = /^not ok \d+ - (.*)$/m.exec(printed)?.[1] ?? 'ended without a failed test';
    if (code !== 0) return `${file.replace(/^test\/native\//, '').replace(/\.test\.ts$/, '')}: ${title}`;
  }
  return undefined;
}

let [noticed, all] = [0, 0];
async function judge(what: string, tests: readonly Test[]): Promise<void> {
  const from = performance.now();
  const by = await noticedBy(tests);
  all += 1;
  if (by !== undefined) noticed += 1;
  console.log(
    `${by === undefined ? 'SURVIVED' : 'noticed '} ${what}${by === undefined ? '' : `  ${by}`}, ${((performance.now() - from) / 1000).toFixed(0)} s`,
  );
}

async function changeVerbs(): Promise<void> {
  const sources = readSources();
  for (const [row = '', verb, group] of sources.cudaVerbs.matchAll(/^= (?!pass)(\S+) (\S+): .*$/gm)) {
    if (!new RegExp(values.verbs).test(`${verb} ${group}`)) continue;
    const mutated = generate({ ...sources, cudaVerbs: sources.cudaVerbs.replace(row, '= pass mutated: a mutation') });
    const kept = new Map<string, string>();
    for (const [path, content] of mutated) {
      const place = join(native, relative(join(root, 'native'), path));
      if (!path.endsWith('/cuda_trampolines.S')) continue; // the engine's functions stay: it calls some of them itself
      kept.set(place, readFileSync(place, 'utf8'));
      writeFileSync(place, content);
    }
    if (builds('interposer')) await judge(`verb ${verb} ${group}`, OF_VERBS);
    else console.log(`no build  verb ${verb} ${group}`);
    for (const [place, content] of kept) writeFileSync(place, content);
  }
  builds('interposer');
}

async function changePlaces(count: number, seed: number): Promise<void> {
  const places = globSync('simulator/driver/**/*.c', { cwd: native })
    .toSorted()
    .flatMap((file) => placesIn(file, readFileSync(join(native, file), 'utf8')));
  const drawn: Iterator<Place> = shuffled(places, seed).slice(Number(values.from)).values();
  console.log(`${places.length} places of the simulated driver, seed ${seed}`);
  for (let done = 0; done < count; ) {
    const { value: place } = drawn.next();
    if (!place) break;
    const path = join(native, place.file);
    const before = readFileSync(path, 'utf8');
    writeFileSync(path, place.changed);
    if (builds('build/simulated/libcuda.so.1')) {
      done += 1;
      await judge(`${place.file}:${place.line}  ${place.from} -> ${place.to || '(nothing)'}`, OF_PLACES);
    }
    writeFileSync(path, before);
  }
  builds('build/simulated/libcuda.so.1');
}

if (!builds('all', 'tests')) throw new Error('native/ does not build: make -C native all tests');
const asked = [...(values.only === 'places' ? [] : OF_VERBS), ...(values.only === 'verbs' ? [] : OF_PLACES)];
const unchanged = await noticedBy([...new Map(asked.map((test) => [`${test.file} ${test.match}`, test])).values()]);
if (unchanged !== undefined) throw new Error(`without a mutation fails ${unchanged}`);
if (values.only !== 'places') await changeVerbs();
if (values.only !== 'verbs') await changePlaces(Number(values.places), Number(values.seed));
const percent = (100 * noticed) / all;
console.log(`${noticed} of ${all} mutations were noticed (${percent.toFixed(1)} %)`);
process.exitCode = percent >= Number(values.aim) ? 0 : 1;

// The engine of a running process: replaced under full load, refused if it does not fit, chosen at the start; and
// limits pages and ledgers of another build.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, mkdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import test, { type ExecutionContext } from 'ava';
import { engineName } from '../../../../src/agent/grants/engine-files.ts';
import {
  BEYOND,
  compareWithBooks,
  NEXT,
  OTHER_ENGINES,
  OTHER_LAYOUT,
  OWN,
  offer,
  refuses,
  runs,
  SAME_AGAIN,
  slotOf,
  writeHeader,
} from '../../../support/native/engines.ts';
import { BUILD, environment, eventually, type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant, mountOver } from '../../../support/product/grant.ts';

const NOT_PERMITTED = 800;
const PROCESSES = 8;
const ROUNDS = Math.ceil(24 * Number(process.env.COTENANT_STORM_SHARE ?? 1));

type Count = { readonly calls: number; readonly failed: number; readonly lastError: number };
type Load = {
  readonly pid: number;
  readonly child: ChildProcess;
  /** What it has said on standard error. */
  said(): string;
  line(): Promise<string>;
  /** Its calls so far. The first time it stops and holds what it has, the second time it frees that and ends. */
  stop(): Promise<Count>;
};

/** A process of test/native/programs/processes/load.c. */
function startLoad(t: ExecutionContext, node: SimulatedNode, preload: string, env = {}, threads = 2): Load {
  const child = spawn(join(BUILD, 'tests/load'), [String(threads), String(MIB)], {
    env: environment({ LD_LIBRARY_PATH: node.lib, ...env }, preload),
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  t.teardown(() => child.kill('SIGKILL'));
  let said = '';
  child.stderr.on('data', (part: Buffer) => {
    said += part.toString();
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const line = async () => String((await lines.next()).value);
  return {
    pid: child.pid ?? 0,
    child,
    said: () => said,
    line,
    async stop() {
      child.stdin.write('\n');
      return JSON.parse(await line()) as Count;
    },
  };
}

async function readyLoad(...args: Parameters<typeof startLoad>): Promise<Load> {
  const load = startLoad(...args);
  const line = await load.line();
  if (line !== 'ready') throw new Error(`the load says ${line}; ${load.said()}`);
  return load;
}

test(`${PROCESSES} busy processes replace their engine ${ROUNDS} times without a failed call`, async (t) => {
  t.timeout(240_000);
  const node = await startNode(t, '--gpu', 'h100');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 60_000 * MIB }]);
  offer(grant, SAME_AGAIN, NEXT, BEYOND);
  const loads = await Promise.all(Array.from({ length: PROCESSES }, () => readyLoad(t, node, grant.cuda)));
  for (const load of loads) await runs(grant, load, OWN);
  let refusals = 0;
  for (let round = 0; round < ROUNDS; round++) {
    const number = [SAME_AGAIN, NEXT, OWN][round % 3] ?? OWN;
    writeHeader(grant, { engine: number === OWN ? 0 : number });
    for (const load of loads) await runs(grant, load, number);
    if (round % 4 !== 3) continue;
    writeHeader(grant, { engine: BEYOND });
    for (const load of loads) {
      await refuses(grant, load, BEYOND);
      await runs(grant, load, number);
    }
    refusals += 1;
  }
  const counts = await Promise.all(loads.map((load) => load.stop()));
  t.log(counts.map(({ calls }) => calls).join(' '), 'calls');
  for (const count of counts) t.like(count, { failed: 0, lastError: 0 });
  t.true(counts.every(({ calls }) => calls > 10 * ROUNDS));
  compareWithBooks(t, node, grant, loads);
  for (const load of loads) {
    const lines = load.said().trim().split('\n');
    t.is(lines.length, refusals, load.said());
    t.true(lines.every((line) => line.startsWith(`cotenant: engine ${BEYOND} cannot work here, so engine `)));
    t.regex(load.said(), /it supports limits pages of version 2 to 2, this container's is 1\n/);
  }
  for (const load of loads) t.like(await load.stop(), { failed: 0 });
});

test('an engine that cannot work leaves the old one working; the ledger notes it', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 8000 * MIB }]);
  offer(grant, SAME_AGAIN, BEYOND, OTHER_LAYOUT);
  const path = (number: number) => join(grant.folder, engineName(number));
  const whole = readFileSync(join(OTHER_ENGINES, engineName(SAME_AGAIN)));
  writeFileSync(
    path(11),
    'not an engine at all, and more than sixty-four bytes long, so that all of a header is there',
  );
  writeFileSync(path(12), whole);
  truncateSync(path(12), Math.floor(whole.length / 16)); // debugging information may be most of it
  mkdirSync(path(13));
  copyFileSync(join(BUILD, 'tests/hanging_nvml.so'), path(14));
  writeFileSync(path(15), whole); // says that it is another number
  writeFileSync(path(16), '');
  const cases: readonly (readonly [number: number, why: RegExp])[] = [
    [10, /libcotenant-engine\.10\.so: No such file or directory/],
    [11, /libcotenant-engine\.11\.so is not a shared object/],
    [12, /libcotenant-engine\.12\.so is cut short/],
    [13, /libcotenant-engine\.13\.so is not a file/],
    [14, /libcotenant-engine\.14\.so is not an engine/],
    [15, /its file contains engine 902/],
    [16, /libcotenant-engine\.16\.so is not a shared object/],
    [BEYOND, /it supports limits pages of version 2 to 2, this container's is 1/],
    [OTHER_LAYOUT, /it supports state layouts 7 to 7, this process has 6/],
  ];
  const load = await readyLoad(t, node, grant.cuda);
  for (const [index, [number, why]] of cases.entries()) {
    writeHeader(grant, { engine: number });
    await refuses(grant, load, number);
    await runs(grant, load, OWN);
    writeHeader(grant, {}); // a change of something else is no reason to try again
    await eventually(() => (load.said().split('\n').length > index + 1 ? true : undefined), 'a line');
    const last = load.said().trim().split('\n').at(-1) ?? '';
    t.regex(last, why);
    t.true(last.startsWith(`cotenant: engine ${number} cannot work here, so engine ${OWN} goes on: `), last);
  }
  writeHeader(grant, { engine: SAME_AGAIN });
  await runs(grant, load, SAME_AGAIN);
  t.is(slotOf(grant, load)?.engineRefused, 0, 'and it is forgotten');
  t.like(await load.stop(), { failed: 0 });
  t.is(load.said().trim().split('\n').length, cases.length, load.said());
  compareWithBooks(t, node, grant, [load]);
});

test('a process starts with the named engine, or its own where that cannot work', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 8000 * MIB }]);
  offer(grant, SAME_AGAIN);
  writeHeader(grant, { engine: SAME_AGAIN });
  const second = await readyLoad(t, node, grant.cuda);
  await runs(grant, second, SAME_AGAIN);
  t.is(second.said(), '');
  writeHeader(grant, { engine: 77 });
  const own = await readyLoad(t, node, grant.cuda);
  await runs(grant, own, OWN);
  t.is(slotOf(grant, own)?.engineRefused, 77);
  await eventually(() => (own.said().endsWith('\n') ? true : undefined), 'a line');
  t.regex(
    own.said(),
    /^cotenant: engine 77 cannot work here, so this process starts with engine \d+: .*No such file.*\n$/,
  );
  rmSync(join(grant.folder, engineName(OWN)));
  const none = startLoad(t, node, grant.cuda);
  t.deepEqual(JSON.parse(await none.line()), { calls: 1, failed: 1, lastError: NOT_PERMITTED });
  await once(none.child, 'close');
  t.regex(none.said(), /no engine can work here, so the GPU stays closed: .*No such file or directory\n$/);
  // A removed file does not affect running processes.
  for (const load of [second, own]) t.like(await load.stop(), { failed: 0 });
});

test('the mounted form replaces its engine, too', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 8000 * MIB }]);
  offer(grant, SAME_AGAIN);
  const { lib } = mountOver(t, node, grant);
  const load = await readyLoad(t, node, '', { LD_LIBRARY_PATH: lib });
  await runs(grant, load, OWN);
  writeHeader(grant, { engine: SAME_AGAIN });
  await runs(grant, load, SAME_AGAIN);
  t.like(await load.stop(), { failed: 0 });
  compareWithBooks(t, node, grant, [load]);
});

// Engines replaced during first calls of many threads at once, SIGKILL, fork and exec.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import test, { type ExecutionContext } from 'ava';
import { OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import {
  BEYOND,
  compareWithBooks,
  NEXT,
  OWN,
  offer,
  runs,
  SAME_AGAIN,
  writeHeader,
} from '../../../support/native/engines.ts';
import { BUILD, environment, eventually, type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { SHARE } from '../../../support/native/race.ts';
import { type GrantFiles, MIB, makeGrant } from '../../../support/product/grant.ts';

const WORKERS = 8;
const CHANGES = 1000 * SHARE;
const KILLS = Math.ceil(150 * SHARE);
const THREADS = 32;
const STARTS = Math.ceil(40 * SHARE);
const GRANULE = 2 * MIB;

type Program = {
  readonly child: ChildProcess;
  readonly pid: number;
  said(): string;
  /** Its answer to the next line. */
  ask(): Promise<unknown>;
  line(): Promise<string>;
};

function startProgram(t: ExecutionContext, node: SimulatedNode, grant: GrantFiles, ...args: string[]): Program {
  const [name = '', ...rest] = args;
  const child = spawn(join(BUILD, 'tests', name), rest, {
    env: environment({ LD_LIBRARY_PATH: node.lib }, grant.cuda),
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  t.teardown(() => child.kill('SIGKILL'));
  let said = '';
  child.stderr.on('data', (part: Buffer) => {
    said += part.toString();
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const line = async () => {
    const { value, done } = await lines.next();
    if (done) throw new Error(`${args.join(' ')} ended: ${said.slice(-2000)}`);
    return String(value);
  };
  return {
    child,
    pid: child.pid ?? 0,
    said: () => said,
    line,
    async ask() {
      child.stdin.write('\n');
      return JSON.parse(await line());
    },
  };
}

const named = (number: number) => ({ engine: number === OWN ? 0 : number });

test('kill, fork and exec while engines are replaced: no call fails, charges are exact', async (t) => {
  t.timeout(300_000);
  const node = await startNode(t, '--gpu', 'h100');
  const limit = 60_000 * MIB;
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: limit }]);
  offer(grant, SAME_AGAIN, NEXT, BEYOND);
  const upheaval = startProgram(t, node, grant, 'kill_fork_exec', String(WORKERS), '3', '1', String(KILLS));
  let changes = 0;
  const changing = setInterval(() => {
    changes += 1;
    writeHeader(grant, named([SAME_AGAIN, NEXT, OWN, BEYOND][Math.floor(Math.random() * 4)] ?? OWN));
  }, 3);
  t.teardown(() => clearInterval(changing));
  await eventually(() => (changes >= CHANGES ? true : undefined), `${CHANGES} changes`, 120_000);
  const workers = ((await upheaval.ask()) as number[]).map((pid) => ({ pid }));
  clearInterval(changing);
  for (const number of [SAME_AGAIN, NEXT]) {
    writeHeader(grant, named(number));
    for (const worker of workers) await runs(grant, worker, number);
  }
  const counts = (await upheaval.ask()) as Record<string, number>;
  t.log(changes, 'changes', counts);
  t.like(counts, { failed: 0, lastError: 0, hung: 0, childUnlike: 0, paused: true }, upheaval.said().slice(-2000));
  for (const name of ['kills', 'forks', 'execs', 'started', 'childCalls']) t.true((counts[name] ?? 0) > 0, name);
  t.true((counts.kills ?? 0) >= KILLS, `${counts.kills} kills`);
  compareWithBooks(t, node, grant, workers);
  const said = upheaval
    .said()
    .split('\n')
    .filter((line) => line !== '');
  t.deepEqual(
    said.filter((line) => !line.startsWith(`cotenant: engine ${BEYOND} cannot work here, so `)),
    [],
  );
  // What the dead held is there for others, to the last granule.
  const client = await readyClient(t, node, { preload: grant.cuda });
  const left =
    limit - node.usage().clients.reduce((sum, { gpus: [gpu] }) => sum + (gpu?.bytes ?? 0) - (gpu?.code ?? 0), 0);
  t.is((await client.ask(`alloc ${left + GRANULE}`))[0], OUT_OF_MEMORY);
  t.is((await client.ask(`alloc ${left}`))[0], 0);
});

test(`${THREADS} simultaneous first calls while another engine is named all end up in it`, async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 'h100');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 60_000 * MIB }]);
  offer(grant, SAME_AGAIN, NEXT);
  const numbers = [OWN, SAME_AGAIN, NEXT];
  for (let start = 0; start < STARTS; start++) {
    const [from = OWN, to = OWN] = [numbers[start % 3], numbers[(start + 1 + (start % 2)) % 3]];
    writeHeader(grant, named(from));
    const rush = startProgram(t, node, grant, 'first_calls', String(THREADS));
    t.is(await rush.line(), 'waiting');
    const answer = rush.ask();
    for (const until = performance.now() + Math.random() * 4; performance.now() < until; );
    writeHeader(grant, named(to));
    t.like(await answer, { failed: 0, lastError: 0 }, `start ${start}: ${rush.said()}`);
    await runs(grant, rush, to);
    t.like(await rush.ask(), { failed: 0 });
    t.is(rush.said(), '');
    if (rush.child.exitCode === null) await once(rush.child, 'exit');
  }
});

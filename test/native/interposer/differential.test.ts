// The driver with a grant against the driver without one: the same random sequences of calls, with the same answers but
// for requests that the grant refuses, and by the simulated node's own count nothing beyond the grant and nothing left
// over. test/native/programs/differential says what a sequence is.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import test, { type ExecutionContext } from 'ava';
import { OUT_OF_MEMORY } from '../../support/native/client.ts';
import { BUILD, environment, type SimulatedNode, startNode } from '../../support/native/node.ts';
import { MIB, makeGrant } from '../../support/product/grant.ts';
import { account } from '../../support/product/ledger-row.ts';

const STEPS = 100;
const SEQUENCES = Number(process.env.COTENANT_SEQUENCES ?? 600);
const FIRST = Number(process.env.COTENANT_FIRST_SEQUENCE ?? 1);
const PER_PROCESS = 200;
const [INVALID_VALUE, INVALID_DEVICE, INVALID_CONTEXT, CAPTURE_UNSUPPORTED] = [1, 101, 201, 900];
const NOT_READY = 600;
const GRANT = 256 * MIB;

type Step = { readonly name: string; readonly result: number; readonly answer: string };
type Sequence = { readonly steps: readonly Step[]; readonly freeBytes: number };

function startProgram(t: ExecutionContext, node: SimulatedNode, first: number, preload?: string) {
  const count = Math.min(PER_PROCESS, FIRST + SEQUENCES - first);
  const argv = [first, count, STEPS, preload ? 'granted' : 'bare'].map(String);
  const env = environment({ PATH: process.env.PATH ?? '', LD_LIBRARY_PATH: node.lib }, preload);
  const child = spawn(join(BUILD, 'tests/differential'), argv, { env, stdio: ['pipe', 'pipe', 'inherit'] });
  t.teardown(() => void child.kill('SIGKILL'));
  child.stdin.on('error', () => {}); // it may have ended
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const read = async (): Promise<Sequence> => {
    const steps: Step[] = [];
    for (;;) {
      const { value, done } = await lines.next();
      if (done) throw new Error(`${argv[3]} from ${first}: ended after ${steps.length} steps: ${steps.at(-1)?.name}`);
      const [number = '', name = '', result = '', answer = ''] = String(value).split(' ');
      if (number === 'clean') return { steps, freeBytes: Number(name) };
      steps.push({ name, result: Number(result), answer });
    }
  };
  return {
    pid: child.pid ?? 0,
    start: read,
    /** Does a sequence, in which these steps are undone. */
    run: (undone: readonly number[] = []) => {
      child.stdin.write(`${undone.join('\n')}${undone.length > 0 ? '\n' : ''}\n`);
      return read();
    },
    end: async () => {
      child.stdin.end();
      await (child.exitCode === null ? once(child, 'exit') : undefined);
    },
  };
}

/** Work may be over sooner or later. */
const settled = ({ result }: Step) => (result === NOT_READY ? 0 : result);

/** A graph that a grant refuses to launch cannot be taken back where it was launched: it may have left its memory. */
const isLaunched = ({ name, result }: Step, bare: Step | undefined) =>
  result === OUT_OF_MEMORY && bare?.result === 0 && /^cuGraph(Launch|Upload|InstantiateWithParams)/.test(name);

/** The same of memory of a pool, which keeps it. */
const mayStay = (granted: Step, bare: Step | undefined) =>
  isLaunched(granted, bare) || (granted.result === OUT_OF_MEMORY && /^cuMemAlloc(FromPool)?Async/.test(granted.name));

/** Where two errors apply at once, a grant may answer the one and the driver the other: too large, without a context or for no
 * device, and not allowed for another reason. After it the driver may go on differently, as it ends captures at such calls. */
const isCut = (granted: Step, bare: Step | undefined) =>
  isLaunched(granted, bare) ||
  (granted.result === OUT_OF_MEMORY && bare?.result !== 0 && bare?.result !== OUT_OF_MEMORY) ||
  (granted.result === INVALID_CONTEXT && bare?.result === CAPTURE_UNSUPPORTED) ||
  (granted.result === INVALID_DEVICE && bare?.result === INVALID_VALUE);

/** The first step that a grant answers otherwise, though it does not refuse it. */
function difference(granted: readonly Step[], bare: readonly Step[]): string | undefined {
  for (const [index, step] of granted.entries()) {
    const other = bare[index];
    if (!other || step.name !== other.name) return `step ${index}: ${step.name}, bare ${other?.name}`;
    const what = `step ${index}, ${step.name}: ${step.result} ${step.answer}, bare ${other.result} ${other.answer}`;
    if (step.result === OUT_OF_MEMORY) continue;
    if (settled(step) !== settled(other) || step.answer !== other.answer) return what;
  }
  return undefined;
}

test('random sequences of calls are answered in a grant as without one', async (t) => {
  t.timeout(60_000 + SEQUENCES * 100);
  const names = new Set<string>();
  const succeeded = new Set<string>();
  let [refusals, steps, cuts] = [0, 0, 0];
  for (let first = FIRST; first < FIRST + SEQUENCES; first += PER_PROCESS) {
    const node = await startNode(t, '--gpu', 't4');
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: GRANT }]);
    const [granted, bare] = [startProgram(t, node, first, grant.cuda), startProgram(t, node, first)];
    await Promise.all([granted.start(), bare.start()]);
    let stays = false;
    for (let seed = first; seed < Math.min(first + PER_PROCESS, FIRST + SEQUENCES); seed++) {
      const with_ = await granted.run();
      const refused = with_.steps.flatMap(({ result }, index) => (result === OUT_OF_MEMORY ? [index] : []));
      const without = await bare.run(refused);
      const cut = with_.steps.findIndex((step, index) => isCut(step, without.steps[index]));
      if (cut >= 0) cuts += 1;
      const compared = cut < 0 ? with_.steps : with_.steps.slice(0, cut);
      t.is(difference(compared, without.steps), undefined, `seed ${seed}`);
      steps += compared.length;
      const { clients } = node.usage();
      const books = clients.find(({ pid }) => pid === granted.pid)?.gpus[0];
      stays ||= with_.steps.some((step, index) => mayStay(step, without.steps[index]));
      const left = clients.find(({ pid }) => pid === bare.pid)?.gpus[0]?.bytes;
      t.true(
        stays || books?.bytes === left,
        `seed ${seed}: ${books?.bytes} bytes are left, bare ${left}; ${refused.map((index) => with_.steps[index]?.name)}`,
      );
      t.true((books?.peak ?? GRANT + 1) <= GRANT, `seed ${seed}: ${books?.peak} bytes at most`);
      t.is(Number(account(grant).held), books?.bytes ?? Number.NaN, `seed ${seed}: charged as the node counts`);
      t.is(with_.freeBytes, GRANT - (books?.bytes ?? 0), `seed ${seed}: all else is free`);
      refusals += refused.length;
      for (const { name, result } of with_.steps) {
        names.add(name);
        if (result === 0) succeeded.add(name);
      }
    }
    await Promise.all([granted.end(), bare.end()]);
  }
  t.log({ sequences: SEQUENCES, calls: names.size, succeeded: succeeded.size, refusals, steps, cuts });
  t.true(names.size >= 200, `${names.size} entry points`);
  t.true(succeeded.size >= names.size * 0.8);
  t.true(refusals > SEQUENCES);
  t.true(steps > SEQUENCES * STEPS * 0.7);
});

// JVMs that open the driver and use signals as JVMs do, without and with Cotenant, with and without libjsig, the JVM's
// library for signal chaining. A preloaded library that takes signals for itself breaks JVMs.
import { existsSync, mkdirSync, readdirSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { OUT_OF_MEMORY } from '../support/native/client.ts';
import { BUILD, type SimulatedNode, startNode, temporaryFolder } from '../support/native/node.ts';
import { MIB } from '../support/product/grant.ts';
import { built } from './build.ts';
import { checksums, type Filled, startHolder, surroundings, type Way } from './client.ts';

const BLOCK = 64 * MIB;
const SLICE = 1024 * MIB;
const GPU = 'l4,memory=6Gi';
const ROUNDS = process.env.COTENANT_CLIENTS === 'long' ? 20_000 : 200;
const before = checksums([join(BUILD, 'simulated')]);

type Busy = Filled & {
  readonly nulls: number;
  readonly overflows: number;
  readonly divisions: number;
  readonly buses: number;
  readonly interrupts: number;
  readonly caught: number;
  readonly wrong: number;
  readonly failures: number;
  /** Masks of the signals that the process catches, ignores and blocks. */
  readonly signals: string;
};

/** Every JDK in Debian's folder, and the one that JAVA_HOME names. */
function jdks(): string[] {
  const folder = '/usr/lib/jvm';
  const homes = existsSync(folder) ? readdirSync(folder).map((name) => join(folder, name)) : [];
  const found = [...homes, process.env.JAVA_HOME ?? ''].filter((home) => existsSync(join(home, 'bin/javac')));
  return [...new Set(found.map((home) => realpathSync(home)))].sort();
}

async function run(
  t: ExecutionContext,
  node: SimulatedNode,
  command: readonly string[],
  way: Way,
  chaining?: string,
): Promise<Busy> {
  // The preloads before or after libjsig, in whose folder the loader looks first.
  const env = surroundings(t, node, way, SLICE, chaining ? { LD_PRELOAD: chaining } : {});
  const contextBytes = node.usage().gpus[0]?.contextBytes ?? 0;
  const available = way === 'direct' ? node.usable(0) : SLICE;
  const blocks = Math.floor((available - contextBytes) / BLOCK);
  const holder = await startHolder(t, command, env);
  const busy = holder.filled as Busy;
  t.deepEqual([busy.total, busy.free, busy.idle], [available, available - contextBytes, available - contextBytes], way);
  t.deepEqual([busy.blocks, busy.refusal, busy.again], [blocks, OUT_OF_MEMORY, 0], way);
  t.deepEqual([busy.wrong, busy.failures], [0, 0], way);
  for (const name of ['nulls', 'overflows', 'divisions', 'buses', 'interrupts', 'caught'] as const) {
    t.true(busy[name] > 0, `${way}: ${name}`);
  }
  const held = node.usage().clients.find(({ pid }) => pid === holder.pid)?.gpus[0];
  t.is(held?.bytes, contextBytes + blocks * BLOCK, `${way}: the driver's own count`);
  t.is(await holder.end(), 0, way);
  t.deepEqual(holder.errors(), [], 'neither the JVM nor its check of signal handlers has anything to say');
  return busy;
}

const homes = jdks();
const newest = homes.at(-1);
if (homes.length === 0) test.serial.skip('a JVM with signals in use (no JDK is installed)', () => {});
for (const home of homes) {
  const java = join(home, 'bin/java');
  const program = built({
    source: 'java',
    version: [join(home, 'bin/javac'), '--version'],
    steps: (out) => [{ command: [join(home, 'bin/javac'), '-nowarn', '-d', out, 'Driver.java', 'Busy.java'] }],
  });
  const title = `${home.split('/').at(-1)}: a JVM with all its signals in use runs unchanged and fills its grant`;
  if (!program.ok) {
    test.serial.skip(`${title} (${program.reason})`, () => {});
    continue;
  }
  test.serial(title, async (t) => {
    t.timeout(300_000);
    const node = await startNode(t, '--gpu', GPU);
    const scratch = join(temporaryFolder(t), 'scratch');
    mkdirSync(scratch);
    // A recording suspends threads by SIGUSR2, which other interposers take for themselves.
    const recording = `-XX:StartFlightRecording=settings=profile,filename=${join(scratch, 'recording.jfr')}`;
    const flags = ['-Xcheck:jni', '-Xmx128m', '-Xlog:disable', '-Xlog:all=error:stderr', recording];
    const native =
      Number(/(\d+)/.exec(home.split('/').at(-1) ?? '')?.[1]) >= 22 ? ['--enable-native-access=ALL-UNNAMED'] : [];
    const classes = [`-Ddriver=${join(BUILD, 'tests/clients/jni.so')}`, '-cp', program.folder];
    const command = [java, ...flags, ...native, ...classes, 'Busy', scratch, String(ROUNDS)];
    const chaining = join(home, 'lib/libjsig.so');
    const alone = await run(t, node, command, 'direct');
    const preloaded = await run(t, node, command, 'preloaded');
    t.is(preloaded.signals, alone.signals);
    if (home !== newest) return;
    t.is((await run(t, node, command, 'mounted')).signals, alone.signals);
    const chained = await run(t, node, command, 'direct', chaining);
    t.is((await run(t, node, command, 'preloaded', chaining)).signals, chained.signals);
  });
}

test.serial('the driver libraries are unchanged after the tests', (t) => {
  t.deepEqual(checksums([join(BUILD, 'simulated')]), before);
});

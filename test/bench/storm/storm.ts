// Storms: many processes of one container that start at the same moment, over a driver whose calls return at once; and
// processes that are killed while another one asks for their memory, over the simulated driver. Each with and without
// the interposer, in turns.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { BUILD, type SimulatedNode, startNode, type Teardown } from '../../support/native/node.ts';
import { MIB, makeGrant } from '../../support/product/grant.ts';
import { type Bench, withTeardown } from '../bench.ts';
import { environmentOf, idleEnvironment, type Setting } from '../environment.ts';
import type { Row } from '../row.ts';
import { maximum, median, medianDifference, quantile } from '../statistics.ts';

const DIRECT = 'the same without the interposer';

/** What a program of BUILD prints. */
async function run(
  scope: Teardown,
  program: string,
  args: readonly string[],
  env: Record<string, string>,
): Promise<string> {
  const child = spawn(join(BUILD, program), args, { env, stdio: ['ignore', 'pipe', 'inherit'] });
  scope.teardown(() => {
    child.kill('SIGKILL');
  });
  let text = '';
  child.stdout.on('data', (part: Buffer) => {
    text += part.toString();
  });
  const [code] = await once(child, 'close');
  if (code !== 0) throw new Error(`${program} ${args.join(' ')} ended with ${code}`);
  return text;
}

/** The storm program's lines, each a number. */
async function storm(scope: Teardown, args: readonly string[], env: Record<string, string>): Promise<number[]> {
  return (await run(scope, 'bench/storm', args, env)).trim().split('\n').map(Number);
}

/** Samples of both sides, in turns, a list for each turn; a fresh grant each time. */
async function bothSides(
  args: readonly string[],
  lib: string,
  grant: (scope: Teardown) => Setting,
  rounds: number,
): Promise<{ direct: number[][]; interposed: number[][] }> {
  const found: { direct: number[][]; interposed: number[][] } = { direct: [], interposed: [] };
  for (let round = 0; round < rounds; round += 1) {
    await withTeardown(async (scope) => {
      found.direct.push(await storm(scope, args, environmentOf({ lib })));
      found.interposed.push(await storm(scope, args, environmentOf(grant(scope))));
    });
  }
  return found;
}

const canMake = (...flags: string[]) => spawnSync('unshare', [...flags, '--fork', 'true']).status === 0;
/** Each worker is in a PID namespace of its own, and in a user namespace where they can be made, as containers are. */
const SPACES = canMake('--user', '--pid') ? 2 : canMake('--pid') ? 1 : 0;
const [WORKERS, KILLS_PER_SECOND, MOST_BYTES] = [32, 75, 32 * MIB];
/** The memory of the dead may take so long to come back. */
const LEAK_AFTER_MS = 1000;

type Killed = { readonly longestMs: number; readonly kills: number; readonly gotBytes: number };

/** Processes that allocate and free while some of them are killed all the time; and what one that starts after all of
 * them have ended can get. */
async function killSome(scope: Teardown, node: SimulatedNode, setting: Setting, seconds: number): Promise<Killed> {
  const env = environmentOf(setting);
  const args = [
    `workers=${WORKERS}`,
    `seconds=${seconds}`,
    `kills=${KILLS_PER_SECOND}`,
    `bytes=${MOST_BYTES}`,
    `spaces=${SPACES}`,
  ];
  const result = JSON.parse(await run(scope, 'tests/racer', args, env)) as Killed;
  await delay(LEAK_AFTER_MS);
  const { granuleBytes = 0, contextBytes = 0 } = node.usage().gpus[0] ?? {};
  const fill = ['libcuda.so.1', 'init', 'context 0', `fill-all ${granuleBytes}`];
  const [, , filled = ''] = (await run(scope, 'tests/client', fill, env)).split('\n');
  return { ...result, gotBytes: contextBytes + Number(filled.split(' ')[1]) * granuleBytes };
}

async function killStorm(scope: Teardown, node: SimulatedNode, grant: Setting, quick: boolean): Promise<Row[]> {
  const seconds = quick ? 4 : 14;
  const direct = await killSome(scope, node, { lib: node.lib }, seconds);
  const interposed = await killSome(scope, node, grant, seconds);
  const where = SPACES > 0 ? ', each in a PID namespace of its own' : ': NO PID namespaces can be made here';
  const kills = `${interposed.kills} of ${WORKERS} processes killed in ${seconds} s${where}`;
  return [
    {
      name: 'storm.kill.longest_stall_ms',
      value: interposed.longestMs,
      unit: 'ms',
      reference: { value: direct.longestMs, what: `the longest cuMemAlloc, ${kills}; ${DIRECT}` },
      goal: { most: 10, floor: true },
    },
    {
      name: 'storm.kill.leaked_bytes',
      value: node.usable(0) - interposed.gotBytes,
      unit: 'bytes',
      reference: { value: direct.gotBytes, what: `${kills}: what a process gets a second later, of the whole GPU` },
      goal: { most: 0 },
    },
  ];
}

export const storms: Bench = {
  name: 'storm',
  what: 'processes that start all at once, and memory of killed ones',
  async run(scope, { quick, note }) {
    const rows: Row[] = [];
    const idle = idleEnvironment();
    for (const count of quick ? [50, 300] : [10, 50, 150, 300]) {
      note(`storm: ${count} processes start`);
      const { direct, interposed } = await bothSides(['start', String(count)], idle.lib, idle.grant, quick ? 10 : 40);
      for (const [kind, share] of [
        ['p50', 0.5],
        ['p99', 0.99],
      ] as const) {
        const [without, withUs] = [direct, interposed].map((turns) => turns.map((turn) => quantile(turn, share)));
        if (!without || !withUs) throw new Error('no samples');
        rows.push({
          name: `storm.start_${count}.added_${kind}_ms`,
          value: medianDifference(withUs, without),
          unit: 'ms',
          reference: {
            value: median(without),
            what: `from cuInit to a context, ${count} at once over ${idle.what}; ${DIRECT}`,
          },
          ...(count === 300 && kind === 'p99' ? { goal: { most: 50 } } : {}),
        });
      }
    }
    note('storm: processes are killed');
    const node = await startNode(scope, '--gpu', 'l4');
    // Without the interposer the GPU itself is the limit; with it a grant of the same size.
    const grant = (inner: Teardown): Setting => ({
      lib: node.lib,
      preload: makeGrant(inner, node, [{ gpu: 0, memoryBytes: node.usable(0) }]).cuda,
    });
    const { direct, interposed } = await bothSides(['kill', quick ? '30' : '200'], node.lib, grant, quick ? 4 : 10);
    const what = `from SIGKILL until another process has all that the dead one held; ${DIRECT}`;
    rows.push(
      {
        name: 'storm.kill.reusable_p50_us',
        value: median(interposed.flat()),
        unit: 'us',
        reference: { value: median(direct.flat()), what },
      },
      {
        name: 'storm.kill.reusable_max_us',
        value: maximum(interposed.flat()),
        unit: 'us',
        reference: { value: maximum(direct.flat()), what },
      },
    );
    note('storm: processes are killed while others allocate');
    rows.push(...(await killStorm(scope, node, grant(scope), quick)));
    return rows;
  },
};

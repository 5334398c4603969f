// Storms: many processes of one container that start at the same moment, over a driver whose calls return at once; and
// processes that are killed while another one asks for their memory, over the simulated driver. Each with and without the
// interposer, in turns.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { makeGrant } from '../../support/grant.ts';
import { BUILD, startNode, type Teardown } from '../../support/node.ts';
import { type Bench, withTeardown } from '../bench.ts';
import { environmentOf, idleGround, type Setting } from '../ground.ts';
import type { Row } from '../row.ts';
import { maximum, median, quantile } from '../statistics.ts';

const DIRECT = 'the same without the interposer';

/** The program's lines, each a number. */
async function storm(scope: Teardown, words: readonly string[], env: Record<string, string>): Promise<number[]> {
  const child = spawn(join(BUILD, 'bench/storm'), words, { env, stdio: ['ignore', 'pipe', 'inherit'] });
  scope.teardown(() => {
    child.kill('SIGKILL');
  });
  let text = '';
  child.stdout.on('data', (part: Buffer) => {
    text += part.toString();
  });
  const [code] = await once(child, 'close');
  if (code !== 0) throw new Error(`storm ${words.join(' ')} ended with ${code}`);
  return text.trim().split('\n').map(Number);
}

/** Samples of both sides, in turns; a fresh grant each time. */
async function bothSides(
  words: readonly string[],
  lib: string,
  grant: (scope: Teardown) => Setting,
  rounds: number,
): Promise<{ direct: number[]; interposed: number[] }> {
  const found: { direct: number[]; interposed: number[] } = { direct: [], interposed: [] };
  for (let round = 0; round < rounds; round += 1) {
    await withTeardown(async (scope) => {
      found.direct.push(...(await storm(scope, words, environmentOf({ lib }))));
      found.interposed.push(...(await storm(scope, words, environmentOf(grant(scope)))));
    });
  }
  return found;
}

export const storms: Bench = {
  name: 'storm',
  what: 'processes that start all at once, and memory of killed ones',
  async run(scope, { quick, note }) {
    const rows: Row[] = [];
    const idle = idleGround();
    for (const count of quick ? [50, 300] : [10, 50, 150, 300]) {
      note(`storm: ${count} processes start`);
      const { direct, interposed } = await bothSides(['start', String(count)], idle.lib, idle.grant, quick ? 10 : 40);
      for (const [kind, share] of [
        ['p50', 0.5],
        ['p99', 0.99],
      ] as const) {
        const without = quantile(direct, share);
        rows.push({
          name: `storm.start_${count}.${kind}_added_ms`,
          value: quantile(interposed, share) - without,
          unit: 'ms',
          reference: {
            value: without,
            what: `from cuInit to a context, ${count} at once over ${idle.what}; ${DIRECT}`,
          },
          ...(count === 300 && kind === 'p99' ? { goal: { most: 50 } } : {}),
        });
      }
    }
    note('storm: processes are killed');
    const node = await startNode(scope, '--card', 'l4');
    // Without the interposer the card itself is the limit; with it a grant of the same size.
    const grant = (inner: Teardown): Setting => ({
      lib: node.lib,
      preload: makeGrant(inner, node, [{ card: 0, memoryBytes: node.usable(0) }]).cuda,
    });
    const { direct, interposed } = await bothSides(['kill', quick ? '30' : '200'], node.lib, grant, quick ? 4 : 10);
    const what = `from SIGKILL until another process has all that the dead one held; ${DIRECT}`;
    rows.push(
      {
        name: 'storm.kill.reusable_p50_us',
        value: median(interposed),
        unit: 'us',
        reference: { value: median(direct), what },
      },
      {
        name: 'storm.kill.reusable_max_us',
        value: maximum(interposed),
        unit: 'us',
        reference: { value: maximum(direct), what },
      },
    );
    return rows;
  },
};

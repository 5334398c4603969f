// Processes of one container in PID namespaces of their own (and user namespaces, if possible), killed all the time:
// their memory is free for the others at once, without an agent and without waiting.
import { spawnSync } from 'node:child_process';
import test, { type ImplementationFn } from 'ava';
import { readyClient } from '../../../support/native/client.ts';
import { IDLE_CONTEXT_BYTES, idleNode } from '../../../support/native/idle.ts';
import { startNode } from '../../../support/native/node.ts';
import { KILLS, LONGER, race, runRacer, SHARE } from '../../../support/native/race.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';

const MOST_STALL_MS = 10;
const WORKERS = 32;
const MOST_BYTES = 32 * MIB;
const canMake = (...flags: string[]) => spawnSync('unshare', [...flags, '--fork', 'true']).status === 0;
const NAMESPACES = canMake('--user', '--pid') ? 2 : canMake('--pid') ? 1 : 0;
const stormTest = (title: string, body: ImplementationFn<[]>) =>
  NAMESPACES > 0
    ? test.serial(title, body)
    : test.serial.skip(`${title} (skipped: no PID namespaces can be made here)`, body);

/** Each process holds one block at a time, and the largest blocks fit together: memory of killed processes is needed at
 * once. */
const STORM = {
  workers: WORKERS,
  kills: 75,
  seconds: 14 * SHARE,
  bytes: MOST_BYTES,
  hold: 1,
  pause: 2000,
  spaces: NAMESPACES,
};

stormTest(`${KILLS} SIGKILLs across PID namespaces leak nothing; all that fits is granted`, async (t) => {
  t.timeout(180_000 * LONGER);
  const node = await startNode(t, '--gpu', 'l4');
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  const limit = WORKERS * (context + MOST_BYTES);
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: limit }]);
  const result = await race(t, node, grant, { ...STORM, seed: 5 });
  t.log(result);
  t.true(result.kills >= KILLS, `${result.kills} kills`);
  t.true(result.peak <= limit, `${result.peak} of ${limit}`);
  t.deepEqual([result.refused, result.failed, result.wrongBytes], [0, 0, 0]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  t.is((await client.ask(`alloc ${limit - context}`))[0], 0, 'all of the grant is there');
});

stormTest(`no survivor of ${KILLS} SIGKILLs across PID namespaces waits ${MOST_STALL_MS} ms`, async (t) => {
  t.timeout(180_000 * LONGER);
  const grant = makeGrant(t, idleNode, [{ gpu: 0, memoryBytes: WORKERS * (IDLE_CONTEXT_BYTES + MOST_BYTES) }]);
  const result = await runRacer(t, idleNode, grant, { ...STORM, seed: 6, probe: 0 });
  t.log(result);
  t.true(result.kills >= KILLS, `${result.kills} kills`);
  t.deepEqual([result.refused, result.failed], [0, 0]);
  t.true(result.longestStallMs <= MOST_STALL_MS, `a request took ${result.longestStallMs} ms`);
});

// An agent that is killed between any two steps of a stop: the next one finishes what was begun, tells of it once, and
// hits no process twice.

import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { BUILD, eventually, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');
const DODGE = ['env', '-u', 'LD_PRELOAD'];
/** More than a stop has. */
const MOST_STEPS = 20;

test('an agent killed at any step of a stop loses no record and repeats no stop', async (t) => {
  t.timeout(240_000);
  const node = await startNode(t, '--gpu', 't4');
  const steps: string[] = [];
  for (let dieAt = 1; dieAt <= MOST_STEPS; dieAt += 1) {
    const folder = temporaryFolder(t);
    const when = join(folder, 'when');
    const settings = { intervalMs: 100, urgentIntervalMs: 100, calibrate: false };
    const first = await startAgent(t, node, {
      settings,
      env: {
        LD_PRELOAD: join(BUILD, 'tests/die_at_step.so'),
        COTENANT_TEST_DIE_AT: String(dieAt),
        COTENANT_TEST_DIE_WHEN: when,
      },
    });
    const name = `rogue-${dieAt}`;
    const rogue = runTenant(t, node, first, ['--gpu-memory', '256Mi', '--name', name], [...DODGE, CLIENT]);
    for (const command of ['init', 'context 0']) t.is((await tell(rogue, command))[0], 0);
    const living = () => node.usage().clients.find((one) => one.command === 'client' && one.alive)?.pid;
    const isAlive = () => living() !== undefined;
    const pid = living() ?? 0;
    t.true(pid > 0);
    const died = once(first.child, 'exit').then(() => 'died');
    writeFileSync(when, '');
    await tell(rogue, `alloc ${400 * MIB}`);
    // The line of the release is the last step, or there is none because the grant has ended.
    const isOver = async () => {
      if (first.audit().some(({ action }) => action === 'released')) return true;
      if (!first.audit().some(({ action }) => action === 'kill') || existsSync(join(first.state, 'stopping.json')))
        return undefined;
      const snapshot = await first.snapshot().catch(() => undefined);
      return snapshot?.containers.every(({ pod }) => pod !== name) || undefined;
    };
    const released = eventually(isOver, 'a stop from its beginning to its end').then(
      () => 'stopped',
      () => 'neither',
    );
    const end = await Promise.race([died, released]);
    const wasStopped = !isAlive();
    const taken = readFileSync(when, 'utf8').split('\n').filter(Boolean);
    const before = first.audit().filter(({ action }) => action === 'kill').length;

    const next = end === 'died' ? await startAgent(t, node, { settings, state: first.state }) : first;
    t.is((await rogue.ended).code, 137, `step ${dieAt}`);
    await eventually(() => next.audit().some(({ action }) => action === 'kill') || undefined, 'the stop is reported');
    await eventually(
      async () =>
        ((await next.metric('cotenant_enforcement_decisions_total', { decision: 'killed' })) ?? 0) > 0 ||
        before > 0 ||
        undefined,
      'and counted by the agent that reported it',
    );
    const kills = next.audit().filter(({ action }) => action === 'kill');
    const hits = kills.flatMap(({ result, processes }) => processes.map((one) => ({ ...one, of: result })));
    const sent = hits.filter(({ pid: hit, result }) => hit === pid && result === 'sent');
    // Of one that was interrupted it is not known; the others say so.
    t.is(sent.length, kills.some(({ result }) => result === 'sent') ? 1 : 0, `step ${dieAt}: ${JSON.stringify(kills)}`);
    const results = kills.map(({ result }) => result);
    // What the first had done to it is in one line; what it had only begun, in one more.
    if (wasStopped) t.is(kills.length, 1, `step ${dieAt}: ${results}`);
    else
      t.deepEqual(
        results.filter((result) => result !== 'interrupted'),
        ['sent'],
        `step ${dieAt}`,
      );
    t.false(existsSync(join(next.state, 'stopping.json')));
    for (const line of readFileSync(join(next.state, 'audit.log'), 'utf8').trim().split('\n'))
      t.notThrows(() => JSON.parse(line));
    t.log(
      `step ${dieAt}: ${end} after ${taken.join(', ') || 'nothing'}; ${wasStopped ? 'stopped' : 'alive'}; ${results}`,
    );
    await next.stop();
    if (end !== 'died') {
      steps.push(...taken);
      break;
    }
  }
  t.true(
    steps.some((one) => one.startsWith('rename to stopping.json')) &&
      steps.some((one) => one.startsWith('unlink stopping.json')),
    `${steps}`,
  );
  t.true(steps.length >= 5 && steps.length < MOST_STEPS, `${steps}`);
});

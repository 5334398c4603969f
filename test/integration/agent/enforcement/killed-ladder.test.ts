// An agent that is killed on the way to a stop, not in the middle of one: after a warning, with a gate closed, between
// SIGTERM and SIGKILL, at each step of a SIGTERM, and where a share of compute is the reason. The next one goes on: one
// SIGTERM, one SIGKILL, each reported.
import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import type { ActionRecord } from '../../../../src/agent/enforcement/action-record.ts';
import { BUILD, eventually, type SimulatedNode, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { actedOn, type RunningAgent, runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');
const STEPS = 6;
/** Goes on whatever it is asked, and writes a line for each SIGTERM: STUBBORN, of sh, then the program and where to. */
const STUBBORN = `exec 3<&0; trap 'echo asked >>"$1"' TERM
(trap '' TERM; exec "$0") <&3 & while kill -0 $! 2>/dev/null; do wait $!; done`;

/** An agent that ends at that step of what it writes and signals, from when the file of `when` is there; 0: at none. */
function startMortal(
  t: ExecutionContext,
  node: SimulatedNode,
  settings: Record<string, string | number | boolean>,
  dieAt: number,
) {
  const when = join(temporaryFolder(t), 'when');
  const env = {
    LD_PRELOAD: join(BUILD, 'tests/die_at_step.so'),
    COTENANT_TEST_DIE_AT: String(dieAt),
    COTENANT_TEST_DIE_WHEN: when,
  };
  return startAgent(t, node, { settings, ...(dieAt > 0 && { env }) }).then((agent) => ({ agent, when }));
}

const written = (agent: RunningAgent, action: ActionRecord['action']) =>
  eventually(() => agent.audit().find((one) => one.action === action), `${action} is written`, 60_000);
/** Signals of that kind that were sent to a process, by the lines that say so. */
const sent = (agent: RunningAgent, action: ActionRecord['action'], pid: number) =>
  agent
    .audit()
    .filter((one) => one.action === action && one.processes.some((of) => of.pid === pid && of.result === 'sent'));

/** The page is made anew after what was done is written. */
const counts = (agent: RunningAgent, name: string, labels: Record<string, string>, expected: number) =>
  eventually(async () => ((await agent.metric(name, labels)) ?? 0) === expected || undefined, `${name} is ${expected}`);

type How = { readonly dieAt?: number; readonly after: 'warn' | 'close-gate' | 'terminate' };

/** More would be a machine on which nothing can be said of the time between two steps. */
const MOST_TRIES = 10;

/** A round in which the agent was killed before the step after that one: on a busy machine it may be quicker than this
 * process. */
async function softRound(t: ExecutionContext, node: SimulatedNode, name: string, how: How) {
  for (let tries = 0; tries < MOST_TRIES; tries += 1) {
    const round = await softTry(t, node, `${name}-${tries}`, how);
    if (round !== undefined) return round;
    t.log(`${name}: the agent went on before it was killed`);
  }
  throw new Error(`${name}: the agent was never killed in time`);
}

async function softTry(t: ExecutionContext, node: SimulatedNode, name: string, how: How) {
  const settings = {
    intervalMs: 100,
    urgentIntervalMs: 100,
    calibrate: false,
    // What goes past the interposer is hard as a rule.
    'enforcement.hardSamples': 1000,
    'enforcement.softSeconds': 2,
    'enforcement.softSamples': 2,
    'enforcement.graceSeconds': 2,
  };
  const { agent: first, when } = await startMortal(t, node, settings, how.dieAt ?? 0);
  const asked = join(temporaryFolder(t), 'asked');
  const stubborn = ['env', '-u', 'LD_PRELOAD', '/bin/sh', '-c', STUBBORN, CLIENT, asked];
  const rogue = runTenant(t, node, first, ['--gpu-memory', '256Mi', '--name', name], stubborn);
  for (const command of ['init', 'context 0']) t.is((await tell(rogue, command))[0], 0);
  const pid = node.usage().clients.find(({ command, alive }) => alive && command === 'client')?.pid ?? 0;
  t.true(pid > 0);
  const exited = once(first.child, 'exit').then(() => 'died');
  await tell(rogue, `alloc ${400 * MIB}`);
  let end = 'died';
  await written(first, how.after);
  const isNewest = () => actedOn(first.audit()).at(-1)?.action === how.after;
  let isInTime: boolean;
  if (how.dieAt === undefined) {
    await first.stop('SIGKILL');
    isInTime = isNewest();
  } else {
    writeFileSync(when, '');
    isInTime = isNewest();
    end = await exited;
  }
  if (!isInTime) {
    rogue.child.kill('SIGTERM');
    await rogue.ended;
    await eventually(
      () => !node.usage().clients.some(({ command, alive }) => alive && command === 'client') || undefined,
      'it is gone',
    );
    return undefined;
  }
  const asks = () => first.audit().filter(({ action }) => action === 'terminate').length;
  const asksBefore = end === 'died' ? asks() : 0;
  const next = end === 'died' ? await startAgent(t, node, { settings, state: first.state }) : first;
  t.is((await rogue.ended).code, 137, name);
  await written(next, 'kill');
  const lines = readFileSync(join(next.state, 'audit.log'), 'utf8').trim().split('\n');
  for (const line of lines) t.notThrows(() => JSON.parse(line));
  // Its release follows, before or after this look.
  const upToKill = actedOn(next.audit()).filter(({ action }) => action !== 'released');
  const all = upToKill.map(({ action, result }) => `${action} ${result}`);
  t.is(sent(next, 'kill', pid).length, 1, `${name}: ${all}`);
  t.true(sent(next, 'terminate', pid).length <= 1, `${name}: ${all}`);
  const times = existsSync(asked) ? readFileSync(asked, 'utf8').trim().split('\n').length : 0;
  // Whether an agent sent it that ended before its line, only who was asked can tell.
  t.true(times <= 1, `${name}: asked ${times} times`);
  t.true(
    all.some((one) => one.startsWith('terminate')),
    `${name}: ${all}`,
  );
  t.false(existsSync(join(next.state, 'stopping.json')));
  await counts(next, 'cotenant_container_kills_total', { pod: name, action: 'kill', result: 'released' }, 1);
  await counts(next, 'cotenant_container_kills_total', { pod: name, action: 'terminate' }, asks() - asksBefore);
  t.log(`${name}: ${end}; ${all.join(', ')}; asked ${times} times`);
  await next.stop();
  return { end, all, times, steps: existsSync(when) ? readFileSync(when, 'utf8').split('\n').filter(Boolean) : [] };
}

test('an agent killed anywhere on the soft path goes on: one SIGTERM and one SIGKILL', async (t) => {
  t.timeout(360_000);
  const node = await startNode(t, '--gpu', 't4');
  const warned = await softRound(t, node, 'warned', { after: 'warn' });
  // What was counted until then is not known to the next one, so it begins anew; a warning costs a container nothing.
  t.is(warned.times, 1);
  t.deepEqual(warned.all, ['warn done', 'warn done', 'close-gate done', 'terminate sent', 'kill sent']);
  // Of the way from there: the line of the gate, which comes before it is closed.
  for (const dieAt of [1, 2]) {
    const { end, steps, all, times } = await softRound(t, node, `close-${dieAt}`, { after: 'warn', dieAt });
    const isWritten = dieAt === 2;
    t.deepEqual([end, ...steps], ['died', ...(isWritten ? ['write audit.log'] : [])]);
    const expectedGate = isWritten ? ['close-gate done', 'open-gate done'] : [];
    t.deepEqual(all, ['warn done', ...expectedGate, 'warn done', 'close-gate done', 'terminate sent', 'kill sent']);
    t.is(times, 1);
  }
  const gated = await softRound(t, node, 'gated', { after: 'close-gate' });
  t.deepEqual(gated.all.slice(0, 3), ['warn done', 'close-gate done', 'open-gate done']);
  t.is(gated.times, 1);
  const asked = await softRound(t, node, 'asked', { after: 'terminate' });
  t.is(asked.times, 1);
  t.deepEqual(asked.all.slice(0, 4), ['warn done', 'close-gate done', 'terminate sent', 'kill sent']);
  // Of a SIGTERM: two for the file that tells of it, a signal for the shell and one for its child, the line, the file's
  // end.
  for (let dieAt = 1; dieAt <= STEPS; dieAt += 1) {
    const { end, steps, times } = await softRound(t, node, `step-${dieAt}`, { after: 'close-gate', dieAt });
    t.deepEqual([end, steps.length], ['died', dieAt - 1]);
    // One that was announced counts as sent.
    if (dieAt > 4) t.is(times, 1);
    if (dieAt === STEPS)
      t.deepEqual(steps.slice(2), ['signal a process', 'signal a process', 'write audit.log'], `${steps}`);
  }
});

for (const [what, dieAt] of [
  ['with the gate of a suspect closed', 0],
  ['before it stops a gate bypass', 3],
  ['after it stopped a gate bypass', 4],
] as const) {
  test(`an agent killed ${what} is followed by one SIGKILL`, async (t) => {
    t.timeout(240_000);
    const node = await startNode(t, '--gpu', 'l4');
    const settings = {
      intervalMs: 250,
      calibrate: false,
      computePolicy: 'fixed',
      'enforcement.shareSeconds': 10,
      'enforcement.softSeconds': 2,
    };
    const { agent: first, when } = await startMortal(t, node, settings, dieAt);
    const load = [CLIENT, 'libcuda.so.1', 'init', 'context 0', 'load async 600000 3000'];
    const flags = ['--gpu-memory', '1Gi', '--gpu-cores', '20', '--name', 'rogue'];
    const rogue = runTenant(t, node, first, flags, ['env', '-u', 'LD_PRELOAD', ...load]);
    const died = once(first.child, 'exit');
    await written(first, 'close-gate');
    if (dieAt === 0) first.child.kill('SIGKILL');
    else writeFileSync(when, '');
    await died;
    const before = actedOn(first.audit()).length;
    const next = await startAgent(t, node, { settings, state: first.state });
    t.is((await rogue.ended).code, 137);
    await written(next, 'kill');
    const all = actedOn(next.audit()).map(({ action, result, reason }) => `${action} ${result} ${reason}`);
    // Where others have the processors it may come to use less than is suspected for a while, and is warned anew.
    t.is(all[0], 'warn done over-share');
    t.is(all[before - 1], 'close-gate done over-share');
    t.deepEqual(
      all.slice(0, before).filter((one) => !/^(warn|close-gate) done over-share$|^open-gate done none$/.test(one)),
      [],
    );
    const kills = next.audit().filter(({ action }) => action === 'kill');
    const hits = kills.flatMap(({ processes }) =>
      processes.filter(({ result }) => result === 'sent').map(({ pid }) => pid),
    );
    t.is(new Set(hits).size, hits.length, 'no process twice');
    t.deepEqual(
      kills.map(({ result }) => result),
      dieAt === 0 ? ['sent'] : dieAt === 3 ? ['interrupted', 'sent'] : ['interrupted'],
    );
    if (dieAt === 0) t.is(all[before], 'open-gate done none');
    const labels = { decision: 'killed', reason: 'over-share' };
    await counts(next, 'cotenant_enforcement_decisions_total', labels, kills.length);
    t.log(all.join(', '));
  });
}

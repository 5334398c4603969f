import { join } from 'node:path';
import test from 'ava';
import { parse } from 'yaml';
import type { GrantAnswer } from '../../../src/agent/admin-api.ts';
import { OUT_OF_MEMORY } from '../../support/native/client.ts';
import { BUILD, eventually, startNode, temporaryFolder } from '../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../support/product/agent.ts';
import { containersOf, cotenant } from '../../support/product/cli.ts';
import { MIB } from '../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');
// One after the other: each command holds up this process, and with it what other tests wait for.

test.serial('set changes a grant in use, by name, and says why it cannot', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100 } });
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'one'], [CLIENT]);
  await tell(tenant, 'init');
  await tell(tenant, 'context 0');
  await eventually(async () => ((await containersOf(agent, 'one')).length === 1 ? true : undefined), 'the tenant');
  t.is((await tell(tenant, `alloc ${1500 * MIB}`))[0], OUT_OF_MEMORY);
  const set = (...args: string[]) => cotenant('set', ...args, '--state', agent.state);
  const grown = set('one', '--gpu-memory', '2Gi');
  t.is(grown.code, 0, grown.err);
  t.is(grown.out, `one: 2048 MiB on ${node.uuid(0)}\n`);
  const [result, block] = await tell(tenant, `alloc ${1500 * MIB}`);
  t.is(result, 0);
  await eventually(
    async () => ((await containersOf(agent, 'one'))[0]?.usedBytes ?? 0) > 1500 * MIB || undefined,
    'the block in a sample',
  );
  // Below what it holds: requests are refused, nothing is taken away, no container is stopped for it, and the GPU
  // counts it.
  t.is(set('local/one', '--gpu-memory', '1Gi').code, 0);
  t.is((await tell(tenant, `alloc ${MIB}`))[0], OUT_OF_MEMORY);
  const shrunk = Date.now();
  await eventually(async () => ((await agent.snapshot())?.atMs ?? 0) > shrunk + 1000 || undefined, 'ten more samples');
  const [shrinking] = await containersOf(agent, 'one');
  t.is(shrinking?.limitBytes, 1024 * MIB);
  t.false(shrinking?.over);
  t.regex(cotenant('inspect', '--state', agent.state).out, /^ +\d +one .* 1024 .* \d+ MiB above, tolerated$/m);
  const counted = async () => (await agent.snapshot())?.devices[0]?.grantedBytes;
  t.is(await counted(), shrinking?.usedBytes);
  t.deepEqual(agent.audit(), []);
  await tell(tenant, `free ${block}`);
  await eventually(async () => ((await counted()) === 1024 * MIB ? true : undefined), 'the GPU counts the new grant');
  t.is(set('one', '--gpu-memory', '2Gi').code, 0);
  t.is((await tell(tenant, `alloc ${MIB}`))[0], 0);

  const tooMuch = set('one', '--gpu-memory', '100Gi');
  t.is(tooMuch.code, 1);
  t.regex(tooMuch.err, /^cotenant: GPU-\S+ has \d+ MiB left for it, but 102400 MiB are requested$/m);
  const missing = set('absent', '--gpu-memory', '1Gi');
  t.is(missing.code, 1);
  t.is(missing.err, 'cotenant: no grant absent on this node\n');

  // Tenants of one name would share their series: the second one gets another.
  const twin = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'one'], [CLIENT]);
  await tell(twin, 'init');
  await eventually(async () => ((await containersOf(agent, 'one-2')).length === 1 ? true : undefined), 'the twin');
  t.is((await containersOf(agent, 'one')).length, 1);
  t.is(set('one-2', '--gpu-memory', '2Gi').code, 0);
  const limits = async () =>
    ((await agent.snapshot())?.containers ?? []).map(({ pod, limitBytes }) => `${pod} ${limitBytes / MIB}`);
  await eventually(async () => ((await limits()).sort().join() === 'one 2048,one-2 2048' ? true : undefined), 'both');
});
test.serial('set and why take the name of a tenant that no sample has shown yet', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const settings = { intervalMs: 60_000, urgentIntervalMs: 60_000, silenceMs: 120_000, calibrate: false };
  const agent = await startAgent(t, node, { settings });
  const tenant = runTenant(t, node, agent, ['-m', '1Gi', '--name', 'new'], [CLIENT]);
  await tell(tenant, 'init');
  t.deepEqual(await containersOf(agent, 'new'), []);
  const grown = cotenant('set', 'new', '-m', '2Gi', '--state', agent.state);
  t.is(grown.out, `new: 2048 MiB on ${node.uuid(0)}\n`, grown.err);
  t.is(cotenant('why', 'new', '--state', agent.state).out, 'no action is recorded on new\n');
  const missing = cotenant('why', 'absent', '--state', agent.state);
  t.deepEqual([missing.code, missing.out], [1, '']);
  t.regex(missing.err, /^cotenant: no tenant absent on this node/);
});
test.serial('set and run both take totals over the GPUs of a tenant', async (t) => {
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100, calibrate: false } });
  const tenant = runTenant(t, node, agent, ['-m', '2Gi', '-n', '2', '--gpu-cores', '40', '--name', 'two'], [CLIENT]);
  await tell(tenant, 'init');
  const set = (...args: string[]) => cotenant('set', 'two', ...args, '--state', agent.state);
  const same = set('-m', '2Gi', '--gpu-cores', '40', '-o', 'yaml');
  t.is(same.code, 0, same.err);
  const { gpus } = parse(same.out) as GrantAnswer;
  t.deepEqual(
    gpus.map(({ memoryBytes, coresPercent }) => [memoryBytes / MIB, coresPercent]),
    [
      [1024, 20],
      [1024, 20],
    ],
  );
  t.regex(set('-m', '2049Mi').err, /^cotenant: --gpu-memory 2049Mi on 2 GPU\(s\): .* the nearest is 2050Mi$/m);
  t.regex(set('--gpu-cores', '41').err, /^cotenant: --gpu-cores 41 on 2 GPU\(s\): .* such as 40 or 42$/m);
  t.regex(set('--gpu-cores', '202').err, /^cotenant: --gpu-cores 202 on 2 GPU\(s\): want at most 200$/m);
});
test.serial('get and set show and change how compute is divided, as a table and as JSON', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100, calibrate: false } });
  const tenant = runTenant(t, node, agent, ['-m', '1Gi', '--gpu-cores', '30', '--name', 'one'], [CLIENT]);
  await tell(tenant, 'init');
  await eventually(async () => ((await containersOf(agent, 'one')).length === 1 ? true : undefined), 'the tenant');
  const ask = (...args: string[]) => cotenant(...args, '--state', agent.state);
  const row = (pattern: string) => new RegExp(`^one +0 +${pattern}$`, 'm');
  await eventually(
    () => row('fixed +normal +30 +30% +- +30% +30% +enforce +node').test(ask('get').out) || undefined,
    'its share holds',
  );

  t.is(ask('set', '--all-gpus', '--policy', '4', '--high-cap', '90').out, `${node.uuid(0)}: soft, set by set\n`);
  const changed = ask(
    'set',
    'one',
    '--priority',
    'high',
    '--gpu-cores',
    '20',
    '--gpu-cores-limit',
    '40',
    '--weight',
    '7',
  );
  t.is(changed.code, 0, changed.err);
  t.is(
    changed.out,
    `one: 1024 MiB and 20 % of the compute, up to 40 % on ${node.uuid(0)}\none: priority high, weight 7\n`,
  );
  await eventually(
    () => (row('soft +high +7 +20% +40% +20% +90% +enforce +node').test(ask('get').out) ? true : undefined),
    'it holds',
  );
  t.regex(ask('inspect').out, /^ +\d +one .*\/20-40 +soft, high +interposer +enforce +\w+ +within$/m);
  const json = JSON.parse(ask('get', '--json').out);
  t.deepEqual(json.gpus, [{ where: '0', gpu: node.uuid(0), policy: 'soft', source: 'set' }]);
  t.like(json.shares[0], { name: 'one', policy: 'soft', priority: 'high', coresLimitPercent: 40, mostRatio: 0.9 });

  const back = ask(
    'set',
    'one',
    '--priority',
    'normal',
    '--weight',
    'default',
    '--gpu-cores-limit',
    'default',
    '--json',
  );
  t.deepEqual(JSON.parse(back.out).compute, { priority: 'normal' });
  t.is(ask('set', '--all-gpus', '--policy', 'default').out, `${node.uuid(0)}: fixed, set by configuration\n`);
  const wrong = ask('set', '--gpu', 'GPU-0', '--policy', 'soft');
  t.is(wrong.code, 1);
  t.is(wrong.err, `cotenant: no GPU GPU-0 on this node; its GPUs are ${node.uuid(0)}\n`);
});

test.serial('set changes the mode of a process grant, get shows its source, and it persists', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 'l4');
  const state = join(temporaryFolder(t), 'state');
  const start = (mode = 'enforce') =>
    startAgent(t, node, {
      state,
      settings: { intervalMs: 100, urgentIntervalMs: 100, calibrate: false, 'enforcement.mode': mode },
    });
  let agent = await start();
  const bypassing = ['env', '-u', 'LD_PRELOAD', CLIENT];
  const tenant = runTenant(t, node, agent, ['-m', '1Gi', '--name', 'one'], bypassing);
  await tell(tenant, 'init');
  const seen = () =>
    eventually(async () => ((await containersOf(agent, 'one')).length === 1 ? true : undefined), 'the tenant');
  await seen();
  const ask = (...args: string[]) => cotenant(...args, '--state', state);
  const is = (mode: string, by: string) =>
    eventually(
      () => (new RegExp(`^one +0 +\\S+ .* ${mode} +${by}$`, 'm').test(ask('get').out) ? true : undefined),
      `${mode}, set by ${by}`,
    );
  await is('enforce', 'node');
  const lax = ask('set', 'one', '--enforcement', 'report');
  t.is(lax.code, 0, lax.err);
  t.is(lax.out, `one: 1024 MiB on ${node.uuid(0)}\none: enforcement report, set by administrator\n`);
  await is('report', 'administrator');
  t.deepEqual(JSON.parse(ask('get', '--json').out).shares[0].enforcement, { mode: 'report', by: 'administrator' });
  for (const command of ['context 0', `alloc ${2048 * MIB}`]) t.is((await tell(tenant, command))[0], 0);
  await eventually(
    () => (agent.audit().some(({ action }) => action === 'would-stop') ? true : undefined),
    'it would have been stopped',
  );

  // On a node that only reports, more than that is written down and comes to nothing.
  await agent.stop();
  agent = await start('report');
  await seen();
  const more = ask('set', 'one', '--enforcement', 'enforce', '--weight', '3');
  t.is(more.code, 0, more.err);
  t.regex(
    more.out,
    /^one: weight 3\none: enforcement report, set by node: the mode of its node is the upper bound\n$/m,
  );
  await is('report', 'node');
  t.is(ask('set', 'one', '--enforcement', 'off', '--json').code, 0);
  await is('off', 'administrator');
  t.like(JSON.parse(ask('set', 'one', '--weight', '4', '--json').out), {
    compute: { weight: 4 },
    enforcement: { mode: 'off', by: 'administrator' },
  });

  await agent.stop();
  agent = await start();
  await seen();
  await is('off', 'administrator');
  t.is(tenant.child.exitCode, null);
  t.is(ask('set', 'one', '--enforcement', 'default').code, 0);
  t.deepEqual(await tenant.ended, { code: 137, signal: null });
});

// The one binary as people type it: help, mistakes, what it shows of a node, and changing a grant in use.
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { constants } from 'node:os';
import { join } from 'node:path';
import test from 'ava';
import type { View } from '../../../src/agent/view.ts';
import { type RunningAgent, runTenant, startAgent, tell } from '../../support/agent.ts';
import { OUT_OF_MEMORY } from '../../support/client.ts';
import { testUnless } from '../../support/gate.ts';
import { MIB } from '../../support/grant.ts';
import { groupHome } from '../../support/groups.ts';
import { BUILD, eventually, startNode, temporaryFolder } from '../../support/node.ts';

const MAIN = join(import.meta.dirname, '../../../src/cli/main.ts');
const CLIENT = join(BUILD, 'tests/client');
const place = groupHome();
/** Of a server at a port where nobody listens. */
const KUBECONFIG = 'test/fixtures/cluster/kubeconfig.json';
const COMMANDS = [
  'run',
  'top',
  'inspect',
  'why',
  'get',
  'set',
  'recommend',
  'showback',
  'driver',
  'agent',
  'exporter',
  'webhook',
  'scheduler',
  'uninstall-check',
  'demo',
];

function cotenant(...args: readonly string[]): { code: number | null; out: string; err: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, [MAIN, ...args], { encoding: 'utf8' });
  return { code: status, out: stdout, err: stderr };
}

const containersOf = async (agent: RunningAgent, pod: string) =>
  ((await agent.view())?.containers ?? []).filter((container) => container.pod === pod);

test('help is there for the binary and for each command, and names every option', (t) => {
  const overview = cotenant('--help');
  t.is(overview.code, 0);
  const listed = [...overview.out.matchAll(/^ {2}(\S+) {2,}\S/gm)].map(([, name]) => name);
  t.deepEqual(listed, COMMANDS);
  for (const name of COMMANDS) {
    const { code, out } = cotenant(name, '--help');
    t.is(code, 0);
    t.regex(out, new RegExp(`^usage: cotenant ${name}`));
    t.regex(out, /^ {2}-h, --help {2,}show this$/m);
  }
  t.regex(cotenant('run', '--help').out, /--gpu-cores PERCENT .*not enforced on cards whose policy is native/);
  t.is(cotenant('--version').out, `${JSON.parse(readFileSync(join(MAIN, '../../../package.json'), 'utf8')).version}\n`);
});

const MISTAKES: readonly (readonly [args: readonly string[], says: RegExp])[] = [
  [['frobnicate'], /^cotenant: no command frobnicate; there are run, top, /],
  [['inspect', '--jsn'], /^cotenant: Unknown option '--jsn'/],
  [
    ['inspect', '--state', '/nonexistent'],
    /^cotenant: no agent answers at \/nonexistent\/agent\.sock \(ENOENT\); start one with "cotenant agent", or name its folder with --state/,
  ],
  [['run', '--gpu-memory', '2Gi'], /^cotenant: a command is missing; put it behind --/],
  [['run', '--', 'true'], /^cotenant: --gpu-memory is missing \(a size such as 2Gi\)/],
  [['run', '--gpu-memory', '2Gigs', '--', 'true'], /^cotenant: --gpu-memory 2Gigs .*such as 2Gi/],
  [
    ['run', '--gpu-memory', '1Mi', '--gpus', '2', '--', 'true'],
    /^cotenant: --gpu-memory 1Mi on 2 card\(s\): want a whole number of MiB on each/,
  ],
  [['run', '--gpu-memory', '1Gi', '--gpu-cores', '101', '--', 'true'], /^cotenant: --gpu-cores 101: want 1 to 100/],
  [['run', '--gpu-memory', '1Gi', '--gpus', '0', '--', 'true'], /^cotenant: --gpus 0: want 1 to 16/],
  [['why'], /^cotenant: want one pod, or one tenant by name or id/],
  [['why', 'a/b/c', '--cluster', '--kubeconfig', KUBECONFIG], /^cotenant: a\/b\/c: want POD or NAMESPACE\/POD/],
  [['why', 'a/b', '-n', 'c', '--kubeconfig', KUBECONFIG], /^cotenant: -n c and a\/b name two namespaces: want one/],
  [['inspect', 'node-1'], /^cotenant: want no word, got node-1; see --node and -n/],
  [['top', '--sort', 'size'], /^cotenant: --sort size: want card, memory, sm, name/],
  [['inspect', '-o', 'yaml'], /^cotenant: -o yaml: want table or json/],
  [['inspect', '-o', 'table', '--json'], /^cotenant: -o table and --json: want one of them/],
  [
    ['inspect', '--state', '/tmp', '--node', 'n'],
    /^cotenant: --state names an agent of this machine, --node a cluster: want one of them/,
  ],
  [['inspect', '--kubeconfig', '/nonexistent'], /^cotenant: \/nonexistent: no kubeconfig can be read: ENOENT/],
  [
    ['inspect', '--kubeconfig', KUBECONFIG, '--context', 'other'],
    /^cotenant: .*kubeconfig.json: no context other; there are test$/m,
  ],
  [
    ['inspect', '--kubeconfig', KUBECONFIG],
    /^cotenant: no API server answers at https:\/\/127\.0\.0\.1:1 \(ECONNREFUSED\); is this the right kubeconfig\?/,
  ],
  [['set', 'one'], /^cotenant: want something to change, such as --gpu-memory or --policy/],
  [
    ['set', '--policy', 'soft'],
    /^cotenant: want one tenant by name or id, or one pod, or --card, --all-cards or --node/,
  ],
  [
    ['set', 'one', '--all-cards', '--policy', 'soft'],
    /^cotenant: want one tenant by name or id, or one pod, or --card/,
  ],
  [
    ['set', 'one', '--policy', 'fair'],
    /^cotenant: --policy fair: want average, .*, native, a number 0 to 5, or default/,
  ],
  [['set', 'one', '--weight', '0'], /^cotenant: --weight 0 is less than 1; write a whole number from 1 to 1000/],
  [['set', 'one', '--priority', 'low'], /^cotenant: --priority low: want normal or high/],
  [
    ['set', 'one', '--gpu-memory', '1Gi', '--kubeconfig', KUBECONFIG],
    /^cotenant: --gpu-memory: is changed on the node itself, not in a cluster/,
  ],
  [['set', '--card', 'GPU-0', '--policy', '4', '--kubeconfig', KUBECONFIG], /^cotenant: of a cluster want --node/],
  [['set', 'one', '--gpu-memory', '1500Ki'], /^cotenant: --gpu-memory 1500Ki: want whole MiB/],
  [['set', 'one', '--enforcement', 'lax'], /^cotenant: --enforcement lax: want off, report, enforce, or default/],
  [['set', 'one', '--override', '--weight', '2'], /^cotenant: --override: is of --enforcement, which is missing/],
  [
    ['set', 'one', '--override', '--enforcement', 'off', '--state', '/tmp'],
    /^cotenant: --override: is of a pod in a cluster/,
  ],
  [
    ['set', '--all-cards', '--enforcement', 'off', '--state', '/tmp'],
    /^cotenant: --enforcement: is of a tenant, a pod or a node of a cluster; this machine's is enforcement.mode of its agent's settings/,
  ],
  [['showback'], /^cotenant: --prometheus is missing, and COTENANT_PROMETHEUS names none$/m],
  [['showback', '-o', 'csv', '--json'], /^cotenant: -o csv and --json: want one of them$/m],
  [['demo', '--driver', 'nouveau'], /^cotenant: --driver nouveau: want simulated or real/],
  [['demo', '--port', '70000'], /^cotenant: port 70000: want 0 to 65535/],
  [
    ['agent', '--set', 'enforcement.mode=harsh'],
    /^cotenant: --set:\n {2}enforcement\.mode: "harsh"; want off, report or enforce/,
  ],
  [['agent', '--set', 'intervalMs'], /^cotenant: --set intervalMs: want PATH=VALUE/],
  [['agent', '--config', '/nonexistent.yaml'], /^cotenant: \/nonexistent\.yaml: ENOENT/],
  [
    ['agent', '--set', 'kubernetes.enabled=true', '--set', 'stateFolder=/tmp/none'],
    /^cotenant: kubernetes\.nodeName is missing/,
  ],
  [['webhook', '--cert', 'only.pem'], /^cotenant: --cert and --key go together/],
  [['webhook', '--port', 'https'], /^cotenant: --port https: want 0 to 65535/],
];

for (const [args, says] of MISTAKES) {
  test(`cotenant ${args.join(' ')}: says what would be right, without a stack`, (t) => {
    const { code, out, err } = cotenant(...args);
    t.is(code, 2, err);
    t.is(out, '');
    t.regex(err, says);
    t.notRegex(err, /\n {4}at /);
  });
}

test('a settings file with several mistakes names all of them, each with its place', (t) => {
  const file = join(temporaryFolder(t), 'agent.yaml');
  writeFileSync(file, 'intervalMs: soon\nenforcement:\n  mode: enforce\n  hardSamples: 1\nprot: 9837\n');
  const { code, err } = cotenant('agent', '--config', file);
  t.is(code, 2);
  const [head, ...problems] = err.trimEnd().split('\n');
  t.is(head, `cotenant: ${file}:`);
  t.is(problems.length, 3, err);
  t.regex(problems[0] ?? '', /^ {2}intervalMs: "soon"; want milliseconds, 50 to 60000$/);
  t.regex(problems[1] ?? '', /^ {2}enforcement\.hardSamples: 1; want 2 to 1000/);
  t.regex(problems[2] ?? '', /^ {2}prot: no such setting; known are stateFolder, /);
});

test('inspect shows the node as a table and as JSON', async (t) => {
  const node = await startNode(t, '--card', 'l4', '--card', 'a10');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100 } });
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '2Gi', '--gpu-cores', '30', '--name', 'one'], [CLIENT]);
  await tell(tenant, 'init');
  await tell(tenant, 'context 0');
  const [before] = await eventually(async () => {
    const found = await containersOf(agent, 'one');
    return (found[0]?.usedBytes ?? 0) > 0 ? found : undefined;
  }, 'the tenant in a sample');
  const { code, out } = cotenant('inspect', '--state', agent.state);
  t.is(code, 0);
  t.regex(out, /^driver [\d.]+, mode enforce$/m);
  t.regex(out, /^ +0 +NVIDIA L4 .* 2048 +\d+% +1 +fixed$/m);
  t.regex(out, /^ +1 +NVIDIA A10 .* 0 +0% +0 +fixed$/m);
  t.regex(out, /^one +0 +\[.*\] +\d+ +2048 +\d+% +30% +fixed +interposer +enforce +within +\w+$/m);

  const json = JSON.parse(cotenant('inspect', '--json', '--state', agent.state).out) as View;
  t.is(json.devices.length, 2);
  t.is(json.containers[0]?.grantId, before?.grantId);
  t.is(json.containers[0]?.limitBytes, 2048 * MIB);
});

test('set changes a grant in use, by name, and says why it cannot', async (t) => {
  const node = await startNode(t, '--card', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100 } });
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'one'], [CLIENT]);
  await tell(tenant, 'init');
  await tell(tenant, 'context 0');
  await eventually(async () => ((await containersOf(agent, 'one')).length === 1 ? true : undefined), 'the tenant');
  t.is((await tell(tenant, `alloc ${1500 * MIB}`))[0], OUT_OF_MEMORY);
  const set = (...words: string[]) => cotenant('set', ...words, '--state', agent.state);
  const grown = set('one', '--gpu-memory', '2Gi');
  t.is(grown.code, 0, grown.err);
  t.is(grown.out, `one: 2048 MiB on ${node.uuid(0)}\n`);
  const [result, block] = await tell(tenant, `alloc ${1500 * MIB}`);
  t.is(result, 0);
  await eventually(
    async () => ((await containersOf(agent, 'one'))[0]?.usedBytes ?? 0) > 1500 * MIB || undefined,
    'the block in a sample',
  );
  // Below what it holds: requests are refused, nothing is taken away, nobody is stopped for it, and the card counts it.
  t.is(set('local/one', '--gpu-memory', '1Gi').code, 0);
  t.is((await tell(tenant, `alloc ${MIB}`))[0], OUT_OF_MEMORY);
  const shrunk = Date.now();
  await eventually(async () => ((await agent.view())?.atMs ?? 0) > shrunk + 1000 || undefined, 'ten more samples');
  const [shrinking] = await containersOf(agent, 'one');
  t.is(shrinking?.limitBytes, 1024 * MIB);
  t.false(shrinking?.over);
  t.regex(cotenant('inspect', '--state', agent.state).out, /^one .* 1024 .* \d+ MiB above, tolerated +\w+$/m);
  const counted = async () => (await agent.view())?.devices[0]?.grantedBytes;
  t.is(await counted(), shrinking?.usedBytes);
  t.deepEqual(agent.audit(), []);
  await tell(tenant, `free ${block}`);
  await eventually(async () => ((await counted()) === 1024 * MIB ? true : undefined), 'the card counts the new grant');
  t.is(set('one', '--gpu-memory', '2Gi').code, 0);
  t.is((await tell(tenant, `alloc ${MIB}`))[0], 0);

  const tooMuch = set('one', '--gpu-memory', '100Gi');
  t.is(tooMuch.code, 1);
  t.regex(tooMuch.err, /^cotenant: GPU-\S+ has \d+ bytes left for it, 107374182400 are asked for$/m);
  const nobody = set('nobody', '--gpu-memory', '1Gi');
  t.is(nobody.code, 1);
  t.is(nobody.err, 'cotenant: no grant nobody on this node\n');

  // Tenants of one name would share their series: the second one gets another.
  const twin = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'one'], [CLIENT]);
  await tell(twin, 'init');
  await eventually(async () => ((await containersOf(agent, 'one-2')).length === 1 ? true : undefined), 'the twin');
  t.is((await containersOf(agent, 'one')).length, 1);
  t.is(set('one-2', '--gpu-memory', '2Gi').code, 0);
  const limits = async () =>
    ((await agent.view())?.containers ?? []).map(({ pod, limitBytes }) => `${pod} ${limitBytes / MIB}`);
  await eventually(async () => ((await limits()).sort().join() === 'one 2048,one-2 2048' ? true : undefined), 'both');
});

test('why says what was done to a tenant, also when it is gone, and does not claim that nothing was', async (t) => {
  const node = await startNode(t, '--card', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100, urgentIntervalMs: 100 } });
  const good = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'good'], [CLIENT]);
  await tell(good, 'init');
  const bypassing = ['env', '-u', 'LD_PRELOAD', CLIENT];
  const cheat = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'cheat'], bypassing);
  for (const command of ['init', 'context 0', `alloc ${2048 * MIB}`]) await tell(cheat, command);
  t.deepEqual(await cheat.ended, { code: 137, signal: null });
  t.regex(cheat.output.join('\n'), /stopped by the agent: local\/cheat\/env .* past the interposer; it is stopped/);
  await eventually(async () => ((await containersOf(agent, 'cheat')).length === 0 ? true : undefined), 'its end');
  const why = (...words: string[]) => cotenant('why', ...words, '--state', agent.state);
  for (const name of ['cheat', 'local/cheat']) {
    const { code, out } = why(name);
    t.is(code, 0);
    t.regex(out, /^\S+Z kill: local\/cheat\/env .* past the interposer; it is stopped \(sent\)$/m);
  }
  const records = JSON.parse(why('cheat', '--json').out) as { action: string; reason: string }[];
  t.true(records.some(({ action, reason }) => action === 'kill' && reason === 'bypass'));
  t.is(why('good').out, 'nothing was done to good\n');
  const nobody = why('nobody');
  t.is(nobody.code, 1);
  t.is(nobody.err, 'cotenant: no tenant nobody on this node, and nothing was done to one of that name\n');
});

test('run passes the exit code and signals on, and says why there is no grant', async (t) => {
  const node = await startNode(t, '--card', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100 } });
  const run = (...words: string[]) => cotenant('run', '--state', agent.state, ...words);
  t.is(run('--gpu-memory', '1Gi', '--', 'sh', '-c', 'exit 7').code, 7);
  t.is(run('--gpu-memory', '1Gi', '--', 'sh', '-c', 'kill -TERM $$').code, 128 + 15);
  t.is(run('--gpu-memory', '1Gi', '--', 'sh', '-c', 'kill -BUS $$').code, 128 + constants.signals.SIGBUS);
  t.is(run('--gpu-memory', '1Gi', '--', '/nonexistent').code, 127);
  const tooMuch = run('--gpu-memory', '100Gi', '--', 'true');
  t.is(tooMuch.code, 125);
  t.regex(tooMuch.err, /^cotenant: no grant: .*102400 MiB/m);
  const noCard = run('--gpu-memory', '1Gi', '--gpu', 'GPU-none', '--', 'true');
  t.is(noCard.code, 125);
  t.regex(noCard.err, /^cotenant: no grant: no card GPU-none on this node; there are GPU-/m);
  await eventually(async () => ((await agent.view())?.containers.length === 0 ? true : undefined), 'no grant is left');
});

testUnless('reason' in place ? place.reason : undefined)(
  'run leaves no group and no grant behind, whenever a signal ends it',
  async (t) => {
    t.timeout(120_000);
    const node = await startNode(t, '--card', 'l4');
    const agent = await startAgent(t, node, { settings: { intervalMs: 100 } });
    const home = join('home' in place ? place.home : '', `test-${process.pid}`);
    mkdirSync(home);
    const inside = ['sh', '-c', `echo $$ > "${home}/cgroup.procs" && exec "$@"`, 'sh'];
    const patience = [0, 40, 80, 120, 160, 200, 240, 280, 320, 400, 500, 700];
    for (const [round, ms] of patience.entries()) {
      const flags = ['--gpu-memory', '1Gi', '--name', `n${round}`];
      const tenant = runTenant(t, node, agent, flags, ['sleep', '600'], { prefix: inside });
      await new Promise((resolve) => setTimeout(resolve, ms)); // the moment is what differs
      tenant.child.kill(round % 2 === 0 ? 'SIGTERM' : 'SIGINT');
      const { code, signal } = await tenant.ended;
      t.true(signal !== null || [128 + 15, 128 + 2].includes(code ?? 0), `${ms}: ${code} ${signal}`);
    }
    const left = () => readdirSync(home).filter((name) => name.startsWith('cotenant-'));
    // A signal before its handlers are there ends `run` at once: then the agent takes down what there was.
    await eventually(() => (left().length === 0 ? true : undefined), 'no group is left');
    await eventually(
      async () => ((await agent.view())?.containers.length === 0 ? true : undefined),
      'no grant is left',
    );
    rmdirSync(home);
  },
);

test('get and set show and change how compute is divided, as a table and as JSON', async (t) => {
  const node = await startNode(t, '--card', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100, calibrate: false } });
  const tenant = runTenant(t, node, agent, ['-m', '1Gi', '--gpu-cores', '30', '--name', 'one'], [CLIENT]);
  await tell(tenant, 'init');
  await eventually(async () => ((await containersOf(agent, 'one')).length === 1 ? true : undefined), 'the tenant');
  const ask = (...words: string[]) => cotenant(...words, '--state', agent.state);
  const row = (pattern: string) => new RegExp(`^one +0 +${pattern}$`, 'm');
  t.regex(ask('get').out, row('fixed +normal +30 +30% +- +30% +30% +enforce +node'));

  t.is(ask('set', '--all-cards', '--policy', '4', '--high-cap', '90').out, `${node.uuid(0)}: soft, said by set\n`);
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
  t.regex(ask('inspect').out, /^one .* 20-40% +soft, high +interposer +enforce +within +\w+$/m);
  const json = JSON.parse(ask('get', '--json').out);
  t.deepEqual(json.cards, [{ where: '0', card: node.uuid(0), policy: 'soft', source: 'set' }]);
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
  t.is(ask('set', '--all-cards', '--policy', 'default').out, `${node.uuid(0)}: fixed, said by configuration\n`);
  const wrong = ask('set', '--card', 'GPU-0', '--policy', 'soft');
  t.is(wrong.code, 1);
  t.is(wrong.err, `cotenant: no card GPU-0 on this node; there are ${node.uuid(0)}\n`);
});

test('set says how far a plain grant is held to its amount, get shows it and who said so, and it outlives the agent', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--card', 'l4');
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
  const ask = (...words: string[]) => cotenant(...words, '--state', state);
  const is = (mode: string, by: string) =>
    eventually(
      () => (new RegExp(`^one +0 +\\S+ .* ${mode} +${by}$`, 'm').test(ask('get').out) ? true : undefined),
      `${mode}, said by ${by}`,
    );
  await is('enforce', 'node');
  const lax = ask('set', 'one', '--enforcement', 'report');
  t.is(lax.code, 0, lax.err);
  t.is(lax.out, `one: 1024 MiB on ${node.uuid(0)}\none: enforcement report, said by administrator\n`);
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
    /^one: weight 3\none: enforcement report, said by node: that is the most that is done on its node\n$/m,
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

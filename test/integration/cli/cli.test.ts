import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { constants } from 'node:os';
import { join } from 'node:path';
import test from 'ava';
import type { Snapshot } from '../../../src/agent/snapshot/snapshot.ts';
import { testUnless } from '../../support/gate.ts';
import { groupHome } from '../../support/machine/cgroups.ts';
import { BUILD, eventually, startNode, temporaryFolder } from '../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../support/product/agent.ts';
import { containersOf, cotenant, MAIN } from '../../support/product/cli.ts';
import { MIB } from '../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');
const place = groupHome();
/** Of a server at a port without a listener. */
const KUBECONFIG = 'test/fixtures/cluster/kubeconfig.json';
const COMMANDS = [
  'run',
  'docker',
  'podman',
  'nerdctl',
  'slices',
  'top',
  'inspect',
  'why',
  'get',
  'set',
  'recommend',
  'showback',
  'convert',
  'fits',
  'defrag',
  'templates',
  'driver',
  'agent',
  'exporter',
  'webhook',
  'scheduler',
  'uninstall-check',
  'doctor',
  'completion',
  'demo',
];

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
  t.regex(cotenant('run', '--help').out, /--gpu-cores PERCENT .*not enforced on GPUs whose policy is native/);
  for (const asked of ['--version', 'version'])
    t.is(cotenant(asked).out, `${JSON.parse(readFileSync(join(MAIN, '../../../package.json'), 'utf8')).version}\n`);
  t.is(cotenant('help', 'run').out, cotenant('run', '--help').out);
  for (const args of [
    ['help', 'help'],
    ['--help', '--help'],
    ['help', '-h', 'help'],
  ])
    t.is(cotenant(...args).out, cotenant('help').out);
});

const MISTAKES: readonly (readonly [args: readonly string[], says: RegExp])[] = [
  [['frobnicate'], /^cotenant: no command frobnicate; there are run, docker, /],
  [['inspcet'], /^cotenant: no command inspcet; did you mean inspect\?$/m],
  [['inspect', '--jsn'], /^cotenant: inspect has no option --jsn; did you mean --json\?$/m],
  [['set', 'one', '--memory', '2Gi'], /^cotenant: set has no option --memory; did you mean --gpu-memory\?$/m],
  [['get', '-x'], /^cotenant: get has no option -x; cotenant get --help lists its options$/m],
  [
    ['inspect', '--state', '/nonexistent'],
    /^cotenant: no agent answers at \/nonexistent\/agent\.sock \(ENOENT\); start one with "cotenant agent", or name its folder with --state/,
  ],
  [['doctor', '--root', '/nonexistent'], /^cotenant: --root \/nonexistent: is no folder$/m],
  [['convert', '-f'], /^cotenant: --file: its value is missing$/m],
  [['conv'], /^cotenant: no command conv; did you mean convert\?$/m],
  [['run', '--gpu-memory', '2Gi'], /^cotenant: the command is missing; write it after --/],
  [['run', '--', 'true'], /^cotenant: --gpu-memory is missing \(a size such as 2Gi\)/],
  [['run', '--gpu-memory', '2Gigs', '--', 'true'], /^cotenant: --gpu-memory 2Gigs .*such as 2Gi/],
  [
    ['run', '--gpu-memory', '1Mi', '--gpus', '2', '--', 'true'],
    /^cotenant: --gpu-memory 1Mi on 2 GPU\(s\): want a whole number of MiB on each/,
  ],
  [['run', '--gpu-memory', '1Gi', '--gpu-cores', '101', '--', 'true'], /^cotenant: --gpu-cores 101: want 1 to 100/],
  [['run', '--gpu-memory', '1Gi', '--gpus', '0', '--', 'true'], /^cotenant: --gpus 0: want 1 to 16/],
  [['get', '-n', '../x', '--kubeconfig', KUBECONFIG], /^cotenant: --namespace \.\.\/x: want the name of a namespace$/m],
  [['why'], /^cotenant: want one pod, or one tenant by name or id/],
  [['why', 'a/b/c', '--ask-cluster', '--kubeconfig', KUBECONFIG], /^cotenant: a\/b\/c: want POD or NAMESPACE\/POD/],
  [['why', 'a/b', '-n', 'c', '--kubeconfig', KUBECONFIG], /^cotenant: -n c and a\/b name two namespaces: want one/],
  [['inspect', 'node-1'], /^cotenant: unexpected argument: node-1$/m],
  [['top', '--sort', 'size'], /^cotenant: --sort size: want gpu, memory, sm or name/],
  [['inspect', '-o', 'xml'], /^cotenant: --output xml: want table, json or yaml$/m],
  [['set', 'one', '-m', '1Gi', '-o', 'xml'], /^cotenant: --output xml: want table, json or yaml$/m],
  [['get', '--as-group', 'ops', '--kubeconfig', KUBECONFIG], /^cotenant: --as-group: needs --as USER$/m],
  [
    ['get', '--request-timeout', 'soon', '--kubeconfig', KUBECONFIG],
    /^cotenant: --request-timeout soon: want a time such as 30s, 1m30s or 0$/m,
  ],
  [
    ['get', '--cluster', 'other', '--kubeconfig', KUBECONFIG],
    /^cotenant: .*kubeconfig.json: no cluster other; there are /,
  ],
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
  [['set', '--policy', 'soft'], /^cotenant: want one tenant by name or id, or one pod, or --gpu, --all-gpus or --node/],
  [['set', 'one', '--all-gpus', '--policy', 'soft'], /^cotenant: want one tenant by name or id, or one pod, or --gpu/],
  [
    ['set', 'one', '--policy', 'fair'],
    /^cotenant: --policy fair: want average, .*, native, a number 0 to 5, or default/,
  ],
  [['set', 'one', '--weight', '0'], /^cotenant: --weight 0: want 1 to 1000/],
  [['set', 'one', '--priority', 'low'], /^cotenant: --priority low: want normal or high/],
  [['set', '--gpu', 'GPU-0', '--policy', '4', '--kubeconfig', KUBECONFIG], /^cotenant: of a cluster want --node/],
  [['set', 'one', '--gpu-memory', '1500Ki'], /^cotenant: --gpu-memory 1500Ki: want whole MiB; the nearest is 1Mi$/m],
  [['set', 'one', '--enforcement', 'lax'], /^cotenant: --enforcement lax: want off, report, enforce or default/],
  [['set', 'one', '--override', '--weight', '2'], /^cotenant: --override needs --enforcement/],
  [
    ['set', 'one', '--override', '--enforcement', 'off', '--state', '/tmp'],
    /^cotenant: --override: is of a pod in a cluster/,
  ],
  [
    ['set', '--all-gpus', '--enforcement', 'off', '--state', '/tmp'],
    /^cotenant: --enforcement: is of a tenant, a pod or a node of a cluster; this machine's is enforcement.mode of its agent's settings/,
  ],
  [['showback'], /^cotenant: --prometheus is missing, and COTENANT_PROMETHEUS names none$/m],
  [['showback', '-o', 'csv', '--json'], /^cotenant: -o csv and --json: want one of them$/m],
  [['demo', '--driver', 'nouveau'], /^cotenant: --driver nouveau: want simulated or real/],
  [['demo', '--port', '70000'], /^cotenant: --port 70000: want 0 to 65535/],
  [
    ['agent', '--set', 'enforcement.mode=harsh'],
    /^cotenant: --set:\n {2}enforcement\.mode: "harsh" is not valid; write one of off, report, enforce/,
  ],
  [['agent', '--set', 'intervalMs'], /^cotenant: --set intervalMs: want PATH=VALUE/],
  [['agent', '--config', '/nonexistent.yaml'], /^cotenant: \/nonexistent\.yaml: ENOENT/],
  [
    ['agent', '--set', 'kubernetes.enabled=true', '--set', 'stateFolder=/tmp'],
    /^cotenant: kubernetes\.nodeName is missing/,
  ],
  [
    ['agent', '--set', 'stateFolder=/proc/x'],
    /^cotenant: stateFolder: cannot write to \/proc\/x: ENOENT: .*, mkdir '\/proc\/x'$/m,
  ],
  [
    ['agent', '--set', 'stateFolder=/proc'],
    /^cotenant: stateFolder: cannot write to \/proc: ENOENT: .*, mkdtemp '\/proc\/\.trying-XXXXXX'$/m,
  ],
  [
    ['agent', '--set', 'stateFolder=/dev/null/x'],
    /^cotenant: stateFolder: cannot write to \/dev\/null\/x: \/dev\/null is not a folder$/m,
  ],
  ...['agent', 'exporter'].flatMap((name) => {
    const setting = (...pairs: readonly string[]) => [
      name,
      ...[
        'stateFolder=/tmp',
        'port=0',
        ...(name === 'exporter' ? ['page.socket=/nonexistent/s'] : []),
        ...pairs,
      ].flatMap((pair) => ['--set', pair]),
    ];
    return [
      [setting('page.bearerTokenFile=/nonexistent'), /^cotenant: page\.bearerTokenFile: ENOENT: .* '\/nonexistent'$/m],
      [
        setting('page.bearerTokenFile=/dev/null'),
        /^cotenant: page\.bearerTokenFile: \/dev\/null: want one token of at least 16 characters without blanks$/m,
      ],
      [
        setting('page.certFile=/nonexistent', 'page.keyFile=/dev/null'),
        /^cotenant: page\.certFile: ENOENT: .* '\/nonexistent'$/m,
      ],
      [
        setting('page.certFile=/dev/null', 'page.keyFile=/nonexistent'),
        /^cotenant: page\.keyFile: ENOENT: .* '\/nonexistent'$/m,
      ],
      [
        setting('page.certFile=/dev/null', 'page.keyFile=/dev/null'),
        /^cotenant: page\.certFile: certificate \/dev\/null with key \/dev\/null cannot serve: /,
      ],
    ] as const;
  }),
  [
    ['recommend', '--memory-headroom', '-3'],
    /^cotenant: --memory-headroom: its value is missing; one that begins with a dash is written --memory-headroom=-…$/m,
  ],
  [['recommend', '--memory-headroom=-3'], /^cotenant: --memory-headroom -3: want 0 to 999$/m],
  [['run', '-m', '-3'], /^cotenant: --gpu-memory: its value is missing; one that begins with a dash is/],
  [['webhook', '--cert', 'only.pem'], /^cotenant: --cert and --key go together/],
  [['webhook', '--port', 'https'], /^cotenant: --port https: want 0 to 65535/],
];

/** The arguments without those that all cases of a kind share, so that a title fits a line. */
const shortened = (args: readonly string[]): string =>
  args
    .join(' ')
    .replace(/ --set (?:stateFolder=\/tmp|port=0|page\.socket=\S+)(?= )/g, '')
    .replaceAll(' --set ', ' ')
    .replace(/(--kubeconfig) test\S+/, '$1 FILE');

for (const [args, says] of MISTAKES) {
  test(`usage error: ${shortened(args)}`, (t) => {
    const { code, out, err } = cotenant(...args);
    t.is(code, 2, err);
    t.is(out, '');
    t.regex(err, says);
    t.notRegex(err, /\n {4}at |errno/);
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
  t.regex(problems[0] ?? '', /^ {2}intervalMs: "soon" is not valid; write a whole number from 50 to 60000$/);
  t.regex(problems[1] ?? '', /^ {2}enforcement\.hardSamples: 1 is not valid; write a whole number from 2 to 1000/);
  t.regex(problems[2] ?? '', /^ {2}prot: no such setting; known are stateFolder, /);
});

// Serial: each command holds up this process, and with it what other tests wait for.
test.serial('inspect shows the node as a table and as JSON', async (t) => {
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'a10');
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
  t.regex(out, /^ +0 +one +\[.*\] +\d+ +2048 +\d+\/30 +fixed +interposer +enforce +\w+ +within$/m);

  const json = JSON.parse(cotenant('inspect', '--json', '--state', agent.state).out) as Snapshot;
  t.is(json.devices.length, 2);
  t.is(json.containers[0]?.grantId, before?.grantId);
  t.is(json.containers[0]?.limitBytes, 2048 * MIB);
});

test.serial('why reports actions against a tenant, also after its end, and claims no others', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100, urgentIntervalMs: 100 } });
  const good = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'good'], [CLIENT]);
  await tell(good, 'init');
  const bypassing = ['env', '-u', 'LD_PRELOAD', CLIENT];
  const rogue = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'rogue'], bypassing);
  for (const command of ['init', 'context 0', `alloc ${2048 * MIB}`]) await tell(rogue, command);
  t.deepEqual(await rogue.ended, { code: 137, signal: null });
  t.regex(
    rogue.output.join('\n'),
    /stopped by the agent: local\/rogue\/env .* past the interposer; the agent stops it/,
  );
  await eventually(async () => ((await containersOf(agent, 'rogue')).length === 0 ? true : undefined), 'its end');
  const why = (...argv: string[]) => cotenant('why', ...argv, '--state', agent.state);
  for (const name of ['rogue', 'local/rogue']) {
    const { code, out } = why(name);
    t.is(code, 0);
    t.regex(out, /^\S+Z kill: local\/rogue\/env .* past the interposer; the agent stops it \(sent\)$/m);
  }
  const records = JSON.parse(why('rogue', '--json').out) as { action: string; reason: string }[];
  t.true(records.some(({ action, reason }) => action === 'kill' && reason === 'bypass'));
  t.is(why('good').out, 'no action is recorded on good\n');
  const missing = why('absent');
  t.is(missing.code, 1);
  t.is(missing.err, 'cotenant: no tenant absent on this node, and no action on one of that name is recorded\n');
});

test.serial('run passes the exit code and signals on, and says why there is no grant', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100 } });
  const run = (...argv: string[]) => cotenant('run', '--state', agent.state, ...argv);
  t.is(run('--gpu-memory', '1Gi', '--', 'sh', '-c', 'exit 7').code, 7);
  t.is(run('--gpu-memory', '1Gi', '--', 'sh', '-c', 'kill -TERM $$').code, 128 + 15);
  t.is(run('--gpu-memory', '1Gi', '--', 'sh', '-c', 'kill -BUS $$').code, 128 + constants.signals.SIGBUS);
  t.is(run('--gpu-memory', '1Gi', '--', '/nonexistent').code, 127);
  const tooMuch = run('--gpu-memory', '100Gi', '--', 'true');
  t.is(tooMuch.code, 125);
  t.regex(tooMuch.err, /^cotenant: no grant: .*102400 MiB/m);
  const noGpu = run('--gpu-memory', '1Gi', '--gpu', 'GPU-none', '--', 'true');
  t.is(noGpu.code, 125);
  t.regex(noGpu.err, /^cotenant: no grant: the node has none of the requested GPUs GPU-none; its GPUs are GPU-/m);
  await eventually(
    async () => ((await agent.snapshot())?.containers.length === 0 ? true : undefined),
    'no grant is left',
  );
});

testUnless('reason' in place ? place.reason : undefined)(
  'run leaves no group and no grant behind, whenever a signal ends it',
  async (t) => {
    t.timeout(120_000);
    const node = await startNode(t, '--gpu', 'l4');
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
      async () => ((await agent.snapshot())?.containers.length === 0 ? true : undefined),
      'no grant is left',
    );
    rmdirSync(home);
  },
);

// Alerts that fire from conditions as they come: agents on simulated nodes, scraped by a real Prometheus that has our
// rules with short times. The same Prometheus answers for every family of a page and for every query of every board.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { CONFIGURATION, type Configuration } from '../../../dashboards/lib/configuration.ts';
import { recordingRules } from '../../../dashboards/recording.ts';
import { testUnless } from '../../support/gate.ts';
import { groupHome } from '../../support/machine/cgroups.ts';
import { startClient } from '../../support/native/client.ts';
import { BUILD, eventually, startNode } from '../../support/native/node.ts';
import { type RunningTenant, runTenant, startAgent, tell } from '../../support/product/agent.ts';
import { MIB } from '../../support/product/grant.ts';
import { prometheusReason, scraping, startPrometheus } from '../../support/services/prometheus.ts';
import { checkMetrics } from '../../support/services/promtool.ts';
import { boardQuestions, namesOf, silentOf } from './answers.ts';

const CLIENT = join(BUILD, 'tests/client');
const MAIN = join(import.meta.dirname, '../../../src/cli/main.ts');
const testWithPrometheus = testUnless(prometheusReason());

/** The rules as they are, but for their times. */
const SHORT: Configuration = {
  ...CONFIGURATION,
  keepsFiring: '2s',
  stopped: { withinSeconds: 30 },
  stopLoop: { ...CONFIGURATION.stopLoop, withinSeconds: 120 },
  xid: { withinSeconds: 30 },
  eccUncorrected: { within: '30s' },
  exporterDown: { for: '2s' },
  nearLimit: { ...CONFIGURATION.nearLimit, for: '2s' },
  overLimit: { for: '2s' },
  bypass: { ...CONFIGURATION.bypass, for: '2s' },
  notEnforcing: { lasts: '2s' },
  notEnforced: { lasts: '2s', within: '10s' },
  gpuUnhealthy: { lasts: '2s' },
  clocksThrottled: { ...CONFIGURATION.clocksThrottled, lasts: '2s' },
  unattributed: { ...CONFIGURATION.unattributed, lasts: '2s' },
  isolationWeakened: { within: '1m', step: '1s', lasts: '2s' },
  denialStorm: { ...CONFIGURATION.denialStorm, window: '10s', lasts: '2s' },
  computeDrift: { ...CONFIGURATION.computeDrift, window: '15s', lasts: '2s' },
  throttled: { ...CONFIGURATION.throttled, window: '15s', lasts: '2s' },
  idle: { ...CONFIGURATION.idle, window: '15s', lasts: '2s' },
  unknownEntryPoints: { lasts: '2s' },
};

const SHIPPED = ['alerts.yaml', 'recording.yaml'];

const FIRED = [
  'CotenantBypass',
  'CotenantClocksThrottled',
  'CotenantComputeDrift',
  'CotenantComputeThrottled',
  'CotenantContainerNearLimit',
  'CotenantContainerNotEnforced',
  'CotenantContainerOverLimit',
  'CotenantContainerStopped',
  'CotenantDenialStorm',
  'CotenantGpuUnhealthy',
  'CotenantEccUncorrected',
  'CotenantExporterDown',
  'CotenantIsolationWeakened',
  'CotenantGrantIdle',
  'CotenantNotEnforcing',
  'CotenantStopLoop',
  'CotenantUnattributedMemory',
  'CotenantXidCritical',
];

function removed(group: string): boolean {
  try {
    rmdirSync(group);
    return true;
  } catch {
    return false;
  }
}

/** With counters of its own, with pages that retire, and divided. */
const GPUS = ['l4', 'a10', 'h100', 'v100,memory=100Gi', 'h100,mig=1g.10gb+3g.40gb'];
const groups = groupHome();

/** Nothing of this has data here, and why. A query about one of them must be understood, and may have no answer. */
const NOT_HERE: readonly string[] = [
  // No family of ours: whether silence is noticed.
  'cotenant_nothing',
  // Webhook and scheduler are not scraped here.
  ...['cotenant_webhook_', 'cotenant_scheduler_', 'job="cotenant-webhook', 'job=~"cotenant-webhook'],
  // Nor is kube-state-metrics.
  'kube_resourcequota',
  // These agents have no cluster: no connections, and no pods that are gone.
  ...['cotenant_agent_connected', 'cotenant_container_pod_gone_timestamp_seconds'],
  // No pod is evicted, and no driver replaced.
  ...['mark Evictions', 'mark Driver changes'],
  // Whose a process without a grant is, its control group says.
  ...('reason' in groups ? ['cotenant_foreign_memory_used_bytes', 'cotenant_foreign_sm_seconds_total'] : []),
];

testWithPrometheus('alerts fire from their causes, and all metrics and queries have results', async (t) => {
  t.timeout(500_000);
  const [node, lax] = [await startNode(t, ...GPUS.flatMap((gpu) => ['--gpu', gpu])), await startNode(t, '--gpu', 'l4')];
  const agent = await startAgent(t, node, {
    settings: { computePolicy: 'fixed', intervalMs: 500, processMetrics: true },
  });
  const report = await startAgent(t, lax, { settings: { 'enforcement.mode': 'report', intervalMs: 500 } });
  await Promise.all([agent.measured(4), report.measured(1)]);
  const configuration = scraping([agent.url, { instance: 'node-a' }], [report.url, { instance: 'node-b' }]);
  // The rules as they are shipped: each is to have been evaluated, those of once a minute too.
  const shipped = await startPrometheus(t, {
    configuration,
    ruleFiles: Object.fromEntries(
      SHIPPED.map((name) => [
        name,
        readFileSync(join(import.meta.dirname, '../../../dashboards/output', name), 'utf8'),
      ]),
    ),
  });
  const prometheus = await startPrometheus(t, {
    configuration,
    ruleFiles: {
      'alerts.yaml': stringify(alertRules(SHORT)),
      'recording.yaml': stringify({ groups: recordingRules().groups.map((group) => ({ ...group, interval: '2s' })) }),
    },
  });
  const fired = new Set<string>();
  const fires = (names: readonly string[]) =>
    eventually(
      async () => {
        for (const name of await prometheus.firing()) fired.add(name);
        return names.every((name) => fired.has(name)) || undefined;
      },
      `${names.filter((name) => !fired.has(name)).join(', ')} fire`,
      90_000,
    );
  const started: RunningTenant[] = [];
  const start = (flags: readonly string[], command: readonly string[] = [CLIENT]) => {
    const tenant = runTenant(t, node, agent, flags, command);
    started.push(tenant);
    return tenant;
  };
  const say = async (tenant: RunningTenant, ...commands: readonly string[]) => {
    const answers: number[] = [];
    for (const command of commands) answers.push((await tell(tenant, command))[0] ?? -1);
    return answers;
  };
  const past = ['env', '-u', 'LD_PRELOAD', CLIENT];

  // Near its limit; and idle, since it does nothing else. It would not be stopped either, by an administrator's word.
  const near = start(['--gpu-memory', '1Gi', '--name', 'near']);
  t.deepEqual(await say(near, 'init', 'context 0', `alloc ${800 * MIB}`), [0, 0, 0]);
  await eventually(
    async () => (await agent.snapshot())?.containers.some(({ pod }) => pod === 'near') || undefined,
    'it is in a sample',
  );
  execFileSync(process.execPath, [MAIN, 'set', 'near', '--enforcement', 'report', '--state', agent.state]);
  // Past the interposer and within the grant; and one that goes from inside to past it.
  const inside = start(['--gpu-memory', '12Gi', '--name', 'static'], past);
  await say(inside, 'init', 'context 0', `alloc ${200 * MIB}`);
  const turns = start(
    ['--gpu-memory', '2Gi', '--name', 'turns'],
    ['sh', '-c', `${CLIENT}; exec env -u LD_PRELOAD ${CLIENT}`],
  );
  await say(turns, 'init', 'context 0', `alloc ${200 * MIB}`);
  await eventually(
    async () =>
      (
        await prometheus.query(
          'cotenant_container_info{pod="turns", fence="interposer"} and on (pod) cotenant_container_memory_used_bytes > 0',
        )
      ).length > 0 || undefined,
    'the interposer holds what it has',
  );
  turns.write('kill-self');
  // What is written before would be read by the one that ends.
  await eventually(
    async () =>
      (await agent.snapshot())?.containers.some(({ pod, usedBytes }) => pod === 'turns' && usedBytes === 0) ||
      undefined,
    'the first of them has ended',
  );
  t.deepEqual(await say(turns, 'init', 'context 0', `alloc ${200 * MIB}`), [0, 0, 0]);
  // Whose process is a client of MPS.
  const client = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'client'], [CLIENT], {
    env: { COTENANT_SIM_PROCESS_TYPE: 'mps' },
  });
  await say(client, 'init', 'context 0');
  // Held to a tenth of a GPU, and wants all of it.
  const slow = start(['--gpu-memory', '1Gi', '--gpu-cores', '10', '--name', 'slow']);
  await say(slow, 'init', 'context 0');
  slow.write('launch 100000 500');
  slow.write('sync');
  // Who launches past the interposer on the same GPU is charged for none of it.
  inside.write('load async 600000 500');
  // A process of the host, without a grant or container; the grants leave less than it takes.
  const host = startClient(t, node);
  for (const command of ['init', 'context 0', `alloc ${7000 * MIB}`]) await host.must(command);
  const strangers = [host];
  // A process in a container without a grant.
  if ('home' in groups) {
    const group = join(groups.home, `docker-${'f0'.repeat(32)}.scope`);
    mkdirSync(group, { recursive: true });
    t.teardown(() => eventually(() => removed(group) || undefined, 'the cgroup is empty'));
    const foreign = startClient(t, node);
    strangers.push(foreign);
    writeFileSync(join(group, 'cgroup.procs'), String(foreign.pid));
    for (const command of ['init', 'context 2', `alloc ${500 * MIB}`]) await foreign.must(command);
    foreign.child.stdin?.write('load async 600000 500\n');
  }
  // On the node that stops no container.
  const over = runTenant(t, lax, report, ['--gpu-memory', '1Gi', '--name', 'over'], past);
  await say(over, 'init', 'context 0', `alloc ${2048 * MIB}`);
  // Stopped three times.
  for (let stop = 0; stop < 3; stop += 1) {
    const rogue = start(['--gpu-memory', '1Gi', '--name', 'rogue'], past);
    await say(rogue, 'init', 'context 0', `alloc ${2048 * MIB}`);
    await rogue.ended;
    const changes = 'max(changes(cotenant_container_last_kill_timestamp_seconds{pod="rogue"}[5m]))';
    await eventually(
      async () => (await prometheus.query(changes)).some(({ value }) => value === stop) || undefined,
      'the stop is scraped',
    );
  }
  const refused = async () => {
    while (!fired.has('CotenantDenialStorm')) await say(near, `alloc ${900 * MIB}`);
  };
  for (const part of ['occupancy', 'tensor', 'dram', 'fp32']) node.control('activity', '2', part, '40');
  node.control('lose', '1');
  node.control('ecc', '0', 'uncorrected', '1');
  node.control('throttle', '0', 'hw-thermal');
  await Promise.all([refused(), fires(FIRED.filter((name) => name !== 'CotenantExporterDown'))]);

  const page = await agent.metrics();
  t.true(namesOf(page).length > 110, String(namesOf(page).length));
  // A page with all there can be: stops, strangers, a lost GPU, Xids and errors, a divided GPU.
  t.deepEqual(checkMetrics(page), { status: 0, said: '' });
  for (const name of ['container_kills_total', 'mig_info', 'device_ecc_errors_total', 'process_memory_used_bytes'])
    t.regex(page, new RegExp(`^cotenant_${name}\\{`, 'm'));
  t.true(boardQuestions().length > 100, String(boardQuestions().length));
  const until = performance.now() + 70_000;
  // What is shown only while it grows: an Xid that was counted before.
  node.control('xid', '0', '31');
  const xids = setInterval(() => node.control('xid', '0', '31'), 3000);
  t.teardown(() => clearInterval(xids));
  const ask = silentOf(prometheus, `${page}\n# TYPE cotenant_nothing gauge\n`);
  // What is looked at in steps of a minute has an answer once a minute began.
  const silent = await eventually(
    async () => {
      const found = await ask();
      const isOver = performance.now() > until;
      return isOver || found.every((text) => NOT_HERE.some((name) => text.includes(name))) ? found : undefined;
    },
    'everything has an answer',
    120_000,
  );
  t.deepEqual(
    silent.filter((text) => !NOT_HERE.some((name) => text.includes(name))),
    [],
  );
  t.true(silent.includes('cotenant_nothing'), 'what is not there is found to have no answer');
  const loaded = await eventually(
    async () => {
      const rules = await shipped.rules();
      return rules.every(({ health }) => health !== 'unknown') ? rules : undefined;
    },
    'each rule as it is shipped has been evaluated',
    90_000,
  );
  t.deepEqual(
    loaded.filter(({ health }) => health !== 'ok'),
    [],
  );
  t.deepEqual(
    loaded.map(({ name }) => name).toSorted(),
    [
      ...alertRules().groups.flatMap(({ rules }) => rules.map(({ alert }) => alert)),
      ...recordingRules().groups.flatMap(({ rules }) => rules.map(({ record }) => record)),
    ].toSorted(),
  );
  await eventually(
    async () => (await shipped.query('namespace:cotenant_memory_used_gpus:sum')).length > 0 || undefined,
    'what is recorded once a minute has an answer',
    90_000,
  );
  const recorded = await prometheus.query('count by (__name__) ({__name__=~"(namespace|container|job):.+"})');
  t.deepEqual(
    recorded.map(({ metric }) => metric.__name__ ?? '').toSorted(),
    recordingRules()
      .groups.flatMap(({ rules }) => rules.map(({ record }) => record))
      .toSorted(),
  );

  await report.stop();
  await fires(FIRED);
  t.deepEqual(
    FIRED.filter((name) => !fired.has(name)),
    [],
  );
  clearInterval(xids);
  for (const { child } of [...started, client, over, ...strangers]) child.kill('SIGTERM');
  node.control('recover', '1');
  node.control('throttle', '0', 'none');
  let left: readonly string[] = FIRED;
  await eventually(
    async () => {
      const firing = await prometheus.firing();
      left = FIRED.filter((name) => name !== 'CotenantExporterDown' && firing.has(name));
      return left.length === 0 || undefined;
    },
    'all but that of the stopped agent end',
    240_000,
  ).catch((error) => t.fail(`${error}: ${left}`));
});

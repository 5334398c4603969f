// The example configuration, and the one that the chart ships, in a real Alertmanager: which alerts are held back because of another one, who is notified,
// and what comes in one notification.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { dirname, join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { parse } from 'yaml';
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { testUnless } from '../../support/gate.ts';
import { eventually, temporaryFolder } from '../../support/native/node.ts';
import { findAlertmanager } from '../../support/services/promtool.ts';
import { type AlertmanagerConfig, asOperator } from './operator.ts';

const CONFIGURATION = join(import.meta.dirname, '../../../examples/prometheus/alertmanager.yaml');
const SHIPPED = join(import.meta.dirname, '../../../charts/cotenant/files/alertmanager-config.yaml');
const found = findAlertmanager();
const program = 'path' in found ? found.path : '';
/** Debian's has its templates in a fixed folder. For one that is only unpacked, a mount namespace has them there. */
const templates = join(dirname(program), 'prometheus');
const SHOWN = 'mount -t tmpfs none /usr/share && cp -r "$1" /usr/share && shift && exec "$@"';
const SHOWING = existsSync(templates) ? ['unshare', '-rm', 'sh', '-c', SHOWN, 'sh', templates] : [];
const refused = SHOWING.length > 0 && spawnSync('unshare', ['-rm', 'true']).status !== 0;
const testWithAlertmanager = testUnless(
  'reason' in found ? found.reason : refused ? 'no mount namespace can be made here' : undefined,
);
const RULES = alertRules().groups.flatMap(({ rules }) => rules);

type Labels = Readonly<Record<string, string>>;
type Alert = {
  readonly labels: Labels;
  readonly receivers: readonly { readonly name: string }[];
  readonly status: { readonly state: string; readonly inhibitedBy: readonly string[] };
};

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  server.close();
  await once(server, 'close');
  if (typeof address !== 'object' || address === null) throw new Error('no port');
  return address.port;
}

async function startAlertmanager(t: ExecutionContext, configuration: string): Promise<string> {
  const url = `http://127.0.0.1:${await freePort()}`;
  const flags = [
    `--config.file=${configuration}`,
    `--storage.path=${temporaryFolder(t)}`,
    `--web.listen-address=${new URL(url).host}`,
    '--cluster.listen-address=',
  ];
  const [file = '', ...args] = [...SHOWING, program, ...flags];
  const child = spawn(file, args, { stdio: ['ignore', 'ignore', 'pipe'] });
  const said: string[] = [];
  child.stderr.on('data', (part: Buffer) => said.push(String(part)));
  const exited = once(child, 'exit');
  t.teardown(async () => {
    if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM');
    await exited;
  });
  await eventually(async () => {
    if (child.exitCode !== null) throw new Error(`Alertmanager ended: ${said.join('')}`);
    return (await fetch(`${url}/-/ready`).catch(() => undefined))?.ok || undefined;
  }, 'Alertmanager is ready');
  return url;
}

const AGENT = { job: 'cotenant', instance: 'node-a' };
const GPU = { ...AGENT, gpu: '0', gpu_uuid: 'GPU-0' };
const WHO = { ...AGENT, namespace: 'team', pod: 'train', container: 'main' };
const alert = (alertname: string, labels: Labels): Labels => {
  const severity = RULES.find((rule) => rule.alert === alertname)?.labels.severity;
  if (severity === undefined) throw new Error(`no alert ${alertname}`);
  return { alertname, severity, ...labels };
};

/** The first of each holds back the second, and not the third. */
const HELD: readonly (readonly [source: Labels, target: Labels, other: Labels])[] = [
  [
    alert('CotenantExporterDown', { job: 'cotenant', instance: 'node-down' }),
    alert('CotenantCollectorStale', { job: 'cotenant', instance: 'node-down' }),
    alert('CotenantCollectorStale', { job: 'cotenant', instance: 'node-up' }),
  ],
  [
    alert('CotenantGpuUnhealthy', { ...GPU, reason: 'xid_79' }),
    alert('CotenantXidCritical', { ...GPU, xid: '79' }),
    alert('CotenantXidCritical', { ...GPU, gpu_uuid: 'GPU-1', xid: '79' }),
  ],
  [
    alert('CotenantRowRemapFailure', { ...GPU, gpu_uuid: 'GPU-2' }),
    alert('CotenantRowRemapPending', { ...GPU, gpu_uuid: 'GPU-2' }),
    alert('CotenantRowRemapPending', { ...GPU, gpu_uuid: 'GPU-3' }),
  ],
  [
    alert('CotenantWebhookDown', {}),
    alert('CotenantWebhookFails', { job: 'cotenant-webhook', instance: 'a', route: 'mutate', outcome: 'internal' }),
    alert('CotenantWebhookCertificateExpires', { job: 'cotenant-webhook', instance: 'a' }),
  ],
  [
    alert('CotenantSchedulerNotLeading', {}),
    alert('CotenantSchedulerBindFailures', { job: 'cotenant-scheduler', instance: 'a' }),
    alert('CotenantContainerNearLimit', WHO),
  ],
  [
    alert('CotenantStopLoop', WHO),
    alert('CotenantContainerStopped', { ...WHO, reason: 'over-limit' }),
    alert('CotenantContainerStopped', { ...WHO, pod: 'serve', reason: 'over-limit' }),
  ],
  [
    alert('CotenantBypass', { ...WHO, ...GPU }),
    alert('CotenantIsolationWeakened', WHO),
    alert('CotenantIsolationWeakened', { ...WHO, pod: 'serve' }),
  ],
];

const same = (one: Labels, other: Labels): boolean =>
  Object.keys({ ...one, ...other }).every((name) => one[name] === other[name]);

/** All cases at once; the names of the receivers begin with the prefix. */
async function routed(t: ExecutionContext, configuration: string, prefix: string): Promise<void> {
  const url = await startAlertmanager(t, configuration);
  const sent = HELD.flat();
  const body = JSON.stringify(sent.map((labels) => ({ labels })));
  const headers = { 'content-type': 'application/json' };
  const answer = await fetch(`${url}/api/v2/alerts`, { method: 'POST', headers, body });
  t.is(answer.status, 200, await answer.text());
  const alerts = await eventually(async () => {
    const all = (await (await fetch(`${url}/api/v2/alerts`)).json()) as readonly Alert[];
    return (
      (all.length === sent.length && all.every(({ status }) => status.state !== 'unprocessed') && all) || undefined
    );
  }, 'each alert is in a group');
  const stateOf = (labels: Labels) => alerts.find((each) => same(each.labels, labels))?.status.state;
  for (const [source, target, other] of HELD) {
    const name = `${source.alertname} and ${target.alertname}`;
    t.is(stateOf(source), 'active', name);
    t.is(stateOf(target), 'suppressed', name);
    t.is(stateOf(other), 'active', `${source.alertname} and another ${other.alertname}`);
  }
  const RECEIVERS: Labels = { critical: 'cotenant-pages', warning: 'cotenant-tickets', info: 'default' };
  for (const { labels, receivers } of alerts)
    t.deepEqual(
      receivers.map(({ name }) => name),
      [`${prefix}${RECEIVERS[labels.severity ?? '']}`],
      labels.alertname,
    );
  const groups = (await (await fetch(`${url}/api/v2/alerts/groups`)).json()) as readonly { labels: Labels }[];
  const stopped = groups.filter(({ labels }) => labels.alertname === 'CotenantContainerStopped');
  t.deepEqual(
    stopped.map(({ labels }) => labels),
    [{ alertname: 'CotenantContainerStopped', job: 'cotenant', namespace: 'team' }],
    'one notification for two pods of a namespace',
  );
}

testWithAlertmanager('alerts that follow from another one are held back, and others are not', async (t) => {
  t.timeout(180_000);
  await routed(t, CONFIGURATION, '');
});

testWithAlertmanager('the same holds for the AlertmanagerConfig that the chart ships', async (t) => {
  t.timeout(180_000);
  const shipped: AlertmanagerConfig = parse(readFileSync(SHIPPED, 'utf8'));
  const { text, prefix } = asOperator(shipped, 'cotenant-system');
  const file = join(temporaryFolder(t), 'alertmanager.yaml');
  writeFileSync(file, text);
  await routed(t, file, prefix);
});

testWithAlertmanager('the configuration names existing alerts, and each of its rules has a case', (t) => {
  const { inhibit_rules } = parse(readFileSync(CONFIGURATION, 'utf8')) as {
    inhibit_rules: { source_matchers: string[]; target_matchers: string[] }[];
  };
  const text = JSON.stringify(inhibit_rules);
  const names = [...text.matchAll(/Cotenant\w+/g)].map(([name]) => name);
  const known = RULES.map((rule) => rule.alert);
  t.deepEqual(
    names.filter((name) => !known.includes(name)),
    [],
  );
  t.deepEqual(
    inhibit_rules.map(({ source_matchers }) => source_matchers),
    HELD.map(([{ alertname }]) => [`alertname="${alertname}"`]),
  );
});

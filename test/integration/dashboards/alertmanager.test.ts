// The example configuration, and the one that the chart ships, in a real Alertmanager: which alerts are held back because of another one, who is notified,
// and what comes in one notification.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { parse } from 'yaml';
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { testUnless } from '../../support/gate.ts';
import { eventually, temporaryFolder } from '../../support/native/node.ts';
import { alertmanagerReason, startAlertmanager } from '../../support/services/alertmanager.ts';
import { type AlertmanagerConfig, asOperator } from './operator.ts';

const CONFIGURATION = join(import.meta.dirname, '../../../examples/prometheus/alertmanager.yaml');
const SHIPPED = join(import.meta.dirname, '../../../charts/cotenant/files/alertmanager-config.yaml');
const testWithAlertmanager = testUnless(alertmanagerReason);
const RULES = alertRules().groups.flatMap(({ rules }) => rules);

type Labels = Readonly<Record<string, string>>;
type Alert = {
  readonly labels: Labels;
  readonly receivers: readonly { readonly name: string }[];
  readonly status: { readonly state: string; readonly inhibitedBy: readonly string[] };
};

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
  const groups = (await (await fetch(`${url}/api/v2/alerts/groups`)).json()) as readonly {
    labels: Labels;
    alerts: readonly Alert[];
  }[];
  const about = (name: string) =>
    groups.filter(({ alerts: all }) => all.some(({ labels }) => labels.alertname === name));
  for (const name of ['CotenantContainerStopped', 'CotenantStopLoop', 'CotenantBypass'])
    t.deepEqual(
      about(name).map(({ labels }) => labels),
      [{ job: 'cotenant', namespace: 'team' }],
      'one notification for a namespace',
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

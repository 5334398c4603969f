// More than thirty alerts at the same time, in a real Prometheus with the rules that ship, and what a real
// Alertmanager with the configuration that ships makes of them: how many notifications come, and of what.
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { json } from 'node:stream/consumers';
import type { ExecutionContext } from 'ava';
import { parse, stringify } from 'yaml';
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { testUnless } from '../../support/gate.ts';
import { eventually, temporaryFolder } from '../../support/native/node.ts';
import { alertmanagerReason, startAlertmanager } from '../../support/services/alertmanager.ts';
import { prometheusReason, startPrometheus } from '../../support/services/prometheus.ts';
import { badDay } from './day/bad.ts';
import type { InputSeries } from './node-page.ts';

const testOfStorm = testUnless(alertmanagerReason ?? prometheusReason());
const CONFIGURATION = join(import.meta.dirname, '../../../examples/prometheus/alertmanager.yaml');
const SEED = 7;
/** At noon of the bad day most of its troubles last. */
const NOON = 12 * 60;
/** It goes on for so long after that. */
const MORE = 30;

/** Names of alerts that are for a person. */
const LEAST = 30;

type Labels = Readonly<Record<string, string>>;
type Notification = {
  readonly receiver: string;
  readonly groupLabels: Labels;
  readonly alerts: readonly { readonly labels: Labels; readonly annotations: Labels }[];
};
type Sent = { readonly labels: Labels; readonly status: { readonly state: string } };

/** Samples of a series in promtool's notation, one a minute. */
const samplesOf = ({ values }: InputSeries): readonly (string | undefined)[] =>
  values.split(' ').flatMap((part) => {
    const [, text = '', times = '0'] = /^(.*?)(?:x(\d+))?$/.exec(part) ?? [];
    if (text === '_') return new Array<undefined>(Number(times)).fill(undefined);
    return new Array<string | undefined>(Number(times) + 1).fill(text === 'stale' ? undefined : text);
  });

/** The day up to noon, which is now. */
function recordedDay(t: ExecutionContext): string {
  const since = Math.floor(Date.now() / 1000) - NOON * 60;
  const lines = badDay(SEED).flatMap((series) =>
    samplesOf(series)
      .slice(0, NOON + MORE)
      .flatMap((value, minute) =>
        value === undefined ? [] : [`${series.series.replaceAll(', ', ',')} ${value} ${since + minute * 60}`],
      ),
  );
  const file = join(temporaryFolder(t), 'day.txt');
  writeFileSync(file, `${lines.join('\n')}\n# EOF\n`);
  return file;
}

/** What Alertmanager sends to the receivers. */
async function startReceiver(t: ExecutionContext): Promise<{ url: string; got: readonly Notification[] }> {
  const got: Notification[] = [];
  const server = createServer(async (request, response) => {
    got.push((await json(request)) as Notification);
    response.end();
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => {
    server.close();
    server.closeAllConnections();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, got };
}

testOfStorm('of thirty alerts at once few notifications come, and each says what is wrong', async (t) => {
  t.timeout(400_000);
  const receiver = await startReceiver(t);
  const configuration = parse(readFileSync(CONFIGURATION, 'utf8')) as { receivers: { name: string }[] };
  const receivers = configuration.receivers.map(({ name }) => ({
    name,
    ...(name !== 'default' && { webhook_configs: [{ url: receiver.url }] }),
  }));
  const file = join(temporaryFolder(t), 'alertmanager.yaml');
  // One that comes after a group was sent is waited for.
  const text = stringify({ ...configuration, receivers }).replace('group_interval: 5m', 'group_interval: 2s');
  writeFileSync(file, text);
  const alertmanager = await startAlertmanager(t, file);
  // How long a condition lasts before it is an alert is asked elsewhere.
  const groups = alertRules().groups.map((group) => ({
    ...group,
    rules: group.rules.map(({ for: _, ...rule }) => rule),
  }));
  await startPrometheus(t, {
    recorded: recordedDay(t),
    ruleFiles: { 'alerts.yaml': stringify({ groups }) },
    configuration: {
      global: { evaluation_interval: '5s' },
      alerting: { alertmanagers: [{ static_configs: [{ targets: [new URL(alertmanager).host] }] }] },
    },
  });
  const sent = async () =>
    ((await (await fetch(`${alertmanager}/api/v2/alerts`)).json()) as readonly Sent[]).filter(
      ({ labels }) => labels.severity !== 'info',
    );
  const keyOf = (labels: Labels) => JSON.stringify(Object.entries(labels).toSorted());
  const alerts = await eventually(
    async () => {
      const all = await sent();
      const notified = new Set(receiver.got.flatMap((one) => one.alerts.map(({ labels }) => keyOf(labels))));
      const open = all.filter(({ labels, status }) => status.state !== 'suppressed' && !notified.has(keyOf(labels)));
      return (all.length >= LEAST && open.length === 0 && all) || undefined;
    },
    'each alert that is not held back is in a notification',
    180_000,
  );
  t.true(new Set(alerts.map(({ labels }) => labels.alertname)).size >= LEAST);
  const groupsOf = (name: string) => {
    const groups = receiver.got.filter((one) => one.receiver === name).map(({ groupLabels }) => keyOf(groupLabels));
    return [...new Set(groups)].toSorted();
  };
  const criticals = alerts.filter(({ labels, status }) => labels.severity === 'critical' && status.state === 'active');
  t.is(groupsOf('cotenant-pages').length, new Set(criticals.map(({ labels }) => labels.alertname)).size);
  t.deepEqual(
    groupsOf('cotenant-tickets'),
    [
      { job: 'cotenant' },
      { job: 'cotenant', namespace: 'team' },
      { job: 'cotenant', namespace: 'x' },
      { job: 'cotenant-scheduler' },
      { job: 'cotenant-webhook' },
    ]
      .map(keyOf)
      .toSorted(),
  );
  for (const { labels, annotations } of receiver.got.flatMap((one) => one.alerts)) {
    const { summary = '', description, runbook_url, dashboard, command } = annotations;
    const names = [labels.instance, labels.pod, labels.namespace].flatMap((name) => name ?? []);
    t.true(names.some((name) => summary.includes(name)) || /webhook|scheduler/i.test(summary), summary);
    for (const text of [description, runbook_url, dashboard, command]) t.truthy(text, labels.alertname);
  }
});

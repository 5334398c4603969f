// What every alert must have, and what the documents say about alerts. promtool tests whether they fire
// (test/integration/dashboards).
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { parse } from 'yaml';
import { CONTAINER_ALERTS } from '../../../dashboards/alerts/container.ts';
import { SEEING, seenWithin } from '../../../dashboards/alerts/rule.ts';
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { CONFIGURATION } from '../../../dashboards/lib/configuration.ts';
import { grown } from '../../../dashboards/lib/expressions.ts';
import { METRICS } from '../../../dashboards/lib/metrics.ts';
import { unknownLabels } from './lint.ts';
import { readPromql } from './promql.ts';

const root = join(import.meta.dirname, '../../..');
const read = (path: string) => readFileSync(join(root, path), 'utf8');
const rules = alertRules().groups.flatMap((group) => group.rules);

/** The text of each entry of the runbook by its anchor, as GitHub and GitLab make them of headings. */
function entries(): ReadonlyMap<string, string> {
  const [, ...parts] = read(CONFIGURATION.runbook).split(/^## /m);
  return new Map(parts.map((part) => [part.split('\n', 1)[0]?.toLowerCase().replaceAll(' ', '-') ?? '', part]));
}

test('each alert has a name, severity, texts and an entry in the runbook', (t) => {
  t.true(rules.length >= 20);
  t.is(new Set(rules.map(({ alert }) => alert)).size, rules.length);
  for (const { alert, labels, annotations } of rules) {
    t.true(['critical', 'warning', 'info'].includes(labels.severity), alert);
    t.true(annotations.summary.endsWith('.') && annotations.description.endsWith('.'), alert);
    t.is(annotations.runbook_url, `${CONFIGURATION.runbook}#${alert.toLowerCase()}`);
    const entry = entries().get(alert.toLowerCase()) ?? '';
    for (const part of ['**What it means.**', '**What to look at.**', '**What to do.**']) {
      t.true(entry.includes(part), `${alert}: ${part}`);
    }
  }
  t.is(entries().size, rules.length, 'an entry without an alert');
});

test('alerts use existing metrics and labels, also in their texts', (t) => {
  for (const { alert, expr, annotations } of rules) {
    const { selectors } = readPromql(expr);
    const metrics = selectors.map(({ metric }) => metric);
    t.true(metrics.length > 0);
    for (const metric of metrics) t.true(Object.hasOwn(METRICS, metric), `${alert}: ${metric}`);
    t.deepEqual(unknownLabels(alert, expr), []);
    const first: { labels: readonly string[] } = METRICS[metrics[0] as keyof typeof METRICS];
    const said = [...`${annotations.summary} ${annotations.description}`.matchAll(/\$labels\.(\w+)/g)];
    const carried = ['job', 'instance', ...first.labels];
    t.deepEqual(
      said.map((match) => match[1] ?? '').filter((label) => !carried.includes(label)),
      [],
      alert,
    );
  }
});

/** Their counters grow for as long as the problem lasts, so the first event does not matter; or begin at 0. */
const LASTING = [
  'CotenantNvmlErrors',
  'CotenantUtilizationGaps',
  'CotenantDenialStorm',
  'CotenantComputeDrift',
  'CotenantComputeOverLimit',
  'CotenantComputeThrottled',
  'CotenantGrantIdle',
  'CotenantStopsRefused',
  'CotenantWebhookFails',
  'CotenantWebhookSlow',
  'CotenantCertificateRefused',
  'CotenantSchedulerSlow',
  'CotenantApiServerProblems',
  'CotenantSchedulerBindFailures',
];

test('no alert uses increase() alone, which misses the first event', (t) => {
  for (const { alert, expr } of rules) {
    const [, counter = '', within = ''] = /or increase\((.+?)\[(\w+)\]\)\)/.exec(expr) ?? [];
    const bare = expr.replaceAll(grown(counter, within), 'grown');
    t.is(/increase|rate\(/.test(bare), LASTING.includes(alert), `${alert}: ${bare}`);
  }
});

/** Stops are reported also while the agent has no fresh sample. */
const HAPPENED = ['CotenantContainerStopped', 'CotenantStopLoop', 'CotenantStopFailed'];

test('alerts about containers are silent without a fresh sample, except stops', (t) => {
  const seen = [SEEING, seenWithin(CONFIGURATION.notEnforced.within)];
  const unlike = CONTAINER_ALERTS.map((alert) => alert(CONFIGURATION)).filter(
    ({ alert, expr }) => seen.some((each) => expr.endsWith(` and ${each}`)) === HAPPENED.includes(alert),
  );
  t.deepEqual(
    unlike.map(({ alert }) => alert),
    [],
  );
  for (const { alert } of CONTAINER_ALERTS.map((alert) => alert(CONFIGURATION))) {
    if (HAPPENED.includes(alert)) continue;
    const { tests } = parse(read(`test/integration/dashboards/rules/${alert}.yaml`));
    const blind: { alert_rule_test: { exp_alerts: unknown[] }[] }[] = tests.filter(
      (each: { input_series: { series: string; values: string }[] }) =>
        each.input_series.some(({ series, values }) => series.startsWith('cotenant_up{') && values.startsWith('0x')),
    );
    t.true(blind.length > 0, `${alert} has no case without a fresh sample`);
  }
});

test('every alert has promtool tests in which it fires and in which it does not', (t) => {
  for (const { alert } of rules) {
    const path = `test/integration/dashboards/rules/${alert}.yaml`;
    t.true(existsSync(join(root, path)), path);
    const cases: { alert_rule_test: { alertname: string; exp_alerts: unknown[] }[] }[] = parse(read(path)).tests;
    const expected = cases.flatMap((each) => each.alert_rule_test);
    t.true(expected.every(({ alertname }) => alertname === alert));
    t.true(expected.some(({ exp_alerts }) => exp_alerts.length > 0));
    t.true(
      cases.some((each) => each.alert_rule_test.every(({ exp_alerts }) => exp_alerts.length === 0)),
      `${alert} has no case in which it stays silent`,
    );
  }
});

test('the documents have existing metrics and the thresholds of the alerts', (t) => {
  const blocks = [...read('docs/operate/runbook.md').matchAll(/^```promql\n([\s\S]*?)^```/gm)].map(
    (match) => match[1] ?? '',
  );
  const queries = blocks.flatMap((block) => block.trim().split('\n'));
  t.true(queries.length > 15);
  for (const query of queries) {
    for (const { metric } of readPromql(query).selectors) t.true(Object.hasOwn(METRICS, metric), query);
    t.deepEqual(unknownLabels('runbook', query), []);
  }
  const page = read('docs/operate/dashboards.md');
  for (const { alert, labels } of rules)
    t.true(page.includes(`(runbook.md#${alert.toLowerCase()}) | ${labels.severity} |`));
  const { nearLimit, overLimit, stopped, bypass, exporterDown } = CONFIGURATION;
  /** "for 10 minutes", where the rule waits that long. */
  const UNITS: Readonly<Record<string, string>> = { m: 'minute', h: 'hour' };
  for (const { alert, for: lasts } of rules.filter(
    (each) => each.for !== undefined && each.alert !== 'CotenantGrantIdle',
  )) {
    const count = Number.parseInt(lasts ?? '', 10);
    const words = `for ${count} ${UNITS[lasts?.at(-1) ?? '']}${count === 1 ? '' : 's'} `;
    const row = page.split('\n').find((line) => line.startsWith(`| [${alert}]`)) ?? '';
    t.true(row.includes(words), `${alert}: ${words}in ${row}`);
  }
  t.true(page.includes(`for ${Number.parseInt(exporterDown.for, 10)} minutes the agent does not answer`));
  t.true(page.includes(`for ${Number.parseInt(nearLimit.for, 10)} minutes more than ${nearLimit.ratio * 100} %`));
  t.true(page.includes(`for ${Number.parseInt(overLimit.for, 10)} minute the container is over`));
  t.true(page.includes(`within the last ${stopped.withinSeconds / 60} minutes`));
  const bytes = bypass.bytes / 2 ** 20;
  t.true(
    page.includes(
      `for ${Number.parseInt(bypass.for, 10)} minutes processes that the ledger does not know hold more than ${bytes} MiB`,
    ),
  );
});

// The alert rules and every query of the boards and the runbook, judged by Prometheus' own promtool.
// Rules are tested by the files in rules/, one per alert; and those tests by rules that are broken on purpose.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { parse, stringify } from 'yaml';
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { BOARDS } from '../../../dashboards/boards.ts';
import { testUnless } from '../../support/gate.ts';
import { findPromtool, run } from '../../support/services/promtool.ts';
import { labelValue, MINUTES, nodePage } from './node-page.ts';

const root = join(import.meta.dirname, '../../..');
const RULES = join(root, 'dashboards/output/alerts.yaml');
const found = findPromtool();
/** All mutations of the rules are judged by one call, which takes a minute of processor time. */
const HUNG_MS = 300_000;
const testWithPromtool = testUnless('reason' in found ? found.reason : undefined);

type Query = { readonly where: string; readonly expr: string; readonly legend: string };

/** What promtool says about the arguments, and whether it is content. */
function promtool(...args: readonly string[]): { readonly ok: boolean; readonly text: string } {
  const { ok, stdout, stderr } = run('path' in found ? found.path : 'promtool', args, root, HUNG_MS);
  return { ok, text: stdout + stderr };
}

function folder(t: ExecutionContext): string {
  const path = mkdtempSync(join(tmpdir(), 'cotenant-promtool-'));
  t.teardown(() => rmSync(path, { recursive: true }));
  return path;
}

const ruleTest = (alert: string) => join(import.meta.dirname, 'rules', `${alert}.yaml`);

const ALERTS = alertRules().groups.flatMap((group) => group.rules);

testWithPromtool('promtool accepts the rules', (t) => {
  const { ok, text } = promtool('check', 'rules', RULES);
  t.true(ok, text);
  t.regex(text, new RegExp(`SUCCESS: ${ALERTS.length} rules found`));
  const recording = promtool('check', 'rules', join(root, 'dashboards/output/recording.yaml'));
  t.true(recording.ok, recording.text);
});

testWithPromtool('the recording rules add up shares, whole GPUs and unused memory', (t) => {
  const { ok, text } = promtool('test', 'rules', join(import.meta.dirname, 'recording.yaml'));
  t.true(ok, text);
});

for (const { alert } of ALERTS) {
  testWithPromtool(`${alert} fires with its texts exactly when it should`, (t) => {
    const { ok, text } = promtool('test', 'rules', ruleTest(alert));
    t.true(ok, text);
  });
}

type RuleTest = {
  tests: {
    input_series: { series: string }[];
    alert_rule_test: { exp_alerts: { exp_labels: Record<string, string> }[] }[];
    promql_expr_test?: unknown;
  }[];
};

/** The same test where Prometheus adds one more label to everything that it scrapes. What no target is behind has
 * none. */
function withTargetLabel(test: RuleTest, name: string, value: string): RuleTest {
  const tests = test.tests.map(({ promql_expr_test: _, ...each }) => ({
    ...each,
    input_series: each.input_series.map((input) => ({
      ...input,
      series: input.series.replace('{', `{${name}="${value}", `),
    })),
    alert_rule_test: each.alert_rule_test.map((asked) => ({
      ...asked,
      exp_alerts: asked.exp_alerts.map((expected) => ({
        ...expected,
        exp_labels: { ...expected.exp_labels, ...('instance' in expected.exp_labels && { [name]: value }) },
      })),
    })),
  }));
  return { ...test, tests };
}

testWithPromtool('alerts fire with extra target labels, and carry them', (t) => {
  const work = folder(t);
  const files = ALERTS.map((rule) => {
    const { alert } = rule;
    const file = join(work, `${alert}.yaml`);
    // Its rule alone: all of them in each test take half a minute.
    const rules = join(work, `rules-${alert}.yaml`);
    writeFileSync(rules, stringify({ groups: [{ name: 'cotenant', rules: [rule] }] }));
    const test: RuleTest = parse(readFileSync(ruleTest(alert), 'utf8'));
    t.true(test.tests.every(({ input_series }) => input_series.every(({ series }) => series.includes('{'))));
    writeFileSync(file, stringify({ ...withTargetLabel(test, 'cluster', 'east'), rule_files: [rules] }));
    return file;
  });
  const { text } = promtool('test', 'rules', ...files);
  const verdicts = [...text.matchAll(/Unit Testing: +\S+\/(\w+)\.yaml\n( +SUCCESS)?/g)];
  t.is(verdicts.length, ALERTS.length, text);
  t.deepEqual(
    verdicts.flatMap(([, alert, verdict]) => (verdict === undefined ? [alert] : [])),
    [],
    text,
  );
});

/** What a counter has grown by without each of the conditions on its first value, and without that. */
const OF_BORN: readonly (readonly [from: RegExp, to: string])[] = [
  [/ and count_over_time\(.*?\) < .*?\]\)\)/, ''],
  [/ unless last_over_time\(.*? offset \w+\)/, ''],
  [/ unless last_over_time\((.*?)\[1h\]( offset \w+)\) and .*?(?=\) or increase)/, ' unless $1$2'],
  [/^\(\(max.*? or (increase.*)\) > 0$/, '$1 > 0'],
];
const ofBorn = (alert: string) => OF_BORN.map(([from, to]) => [alert, from, to] as const);

/** Faults that a hand could make, each of which the tests of that alert must see. */
const FAULTS: readonly (readonly [alert: string, from: string | RegExp, to: string])[] = [
  ['CotenantExporterDown', / or absent.*$/, ''],
  ['CotenantExporterDown', /^\(up.* unless on \(job, instance\) \(cotenant_up == 1\)\)/, '(up{job="cotenant"} == 0)'],
  ['CotenantExporterDown', 'on (job, instance) ', 'on (job) '],
  ['CotenantContainerNearLimit', '_limit_bytes > 0', '_limit_bytes'],
  ['CotenantContainerNearLimit', ' unless cotenant_container_memory_over_limit == 1', ''],
  ['CotenantContainerNearLimit', / and on \(job, instance\).*$/, ''],
  ['CotenantContainerNearLimit', '> 0.95', '> 0.85'],
  ['CotenantContainerOverLimit', '_limit_bytes > 0', '_limit_bytes'],
  [
    'CotenantContainerOverLimit',
    /cotenant_container_memory_over_limit == 1/,
    'cotenant_container_memory_over_limit >= 0',
  ],
  ['CotenantContainerOverLimit', / and on \(job, instance\).*$/, ''],
  ['CotenantContainerStopped', /^.*$/, 'increase(cotenant_container_kills_total[900s]) > 0'],
  ['CotenantContainerStopped', /max_over_time\((.*)\[900s\]\)/, '$1'],
  ['CotenantContainerStopped', ' without (action)', ' by (pod)'],
  ['CotenantContainerStopped', /max without \(action\) \((.*)\) </, '$1 <'],
  ['CotenantComputeDrift', '> 0.05', '> 0.02'],
  ['CotenantComputeDrift', '> 0.05', '< 0.2'],
  ['CotenantComputeDrift', / - rate\(cotenant_container_sm_charged.*?\[10m\]\)/, ''],
  ['CotenantComputeDrift', / and on \(job, instance\).*$/, ''],
  ['CotenantBypass', /_limit_bytes > 0/, '_limit_bytes >= 0'],
  ['CotenantBypass', ' and (cotenant_container_memory_limit_bytes > 0)', ''],
  ['CotenantBypass', / and on \(job, instance\).*$/, ''],
  ['CotenantBypass', '> 67108864', '> 0'],
  ['CotenantEngineRefused', '> 0', '> 1'],
  ['CotenantEngineRefused', / and on \(job, instance\).*$/, ''],
  ['CotenantCollectorStale', /time\(\) - (\w+)/, 'time() - max without (collector) ($1)'],
  ['CotenantCollectorStale', '> 120', '> 60'],
  ['CotenantNvmlErrors', '{code!="3"}', ''],
  ['CotenantNvmlErrors', '> 0.05', '> 0.01'],
  ['CotenantNvmlErrors', '> 0.05', '> 0.1'],
  ...ofBorn('CotenantDriverHung'),
  ['CotenantDriverHung', /^.*$/, 'cotenant_exporter_samplers_abandoned_total > 0'],
  ['CotenantUtilizationGaps', /^.*$/, 'cotenant_exporter_utilization_gaps_total > 0'],
  ...ofBorn('CotenantSeriesDropped'),
  ['CotenantSeriesDropped', /^.*$/, 'cotenant_exporter_series_dropped_total > 0'],
  ['CotenantVolumesNotPublished', /\{result=~"refused\|failed"\}/g, ''],
  ['CotenantVolumesNotPublished', /\{result=~"refused\|failed"\}/g, '{result=~"refused"}'],
  ['CotenantVolumesNotPublished', /\[5m\]/g, '[20m]'],
  ['CotenantAgentDisconnected', '== 0', '>= 0'],
  ['CotenantAgentDisconnected', / and on \(job, instance\).*$/, ''],
  ['CotenantGrantOfGonePod', '> 300', '> 60'],
  ['CotenantGrantOfGonePod', / and on \(job, instance\).*$/, ''],
  ['CotenantNotEnforcing', 'enforcement!="enforce"', 'enforcement="off"'],
  ['CotenantNotEnforcing', '{enforcement!="enforce"}', ''],
  ['CotenantNotEnforcing', 'by (job, enforcement)', 'by (job, instance, enforcement)'],
  ['CotenantNotEnforcing', ' == 1', ' >= 0'],
  ['CotenantGpuMissing', /\{mig_mode!=""\}/g, ''],
  ['CotenantGpuMissing', /\[6h:5m\]/, '[5m:1m]'],
  ['CotenantGpuMissing', / and on \(job, instance\).*$/, ''],
  ['CotenantGpuUnhealthy', '_reason == 1', '_reason == 2'],
  ['CotenantGpuUnhealthy', / and on \(job, instance\).*$/, ''],
  ['CotenantXidCritical', /max_over_time\((.*)\[600s\]\)/, '$1'],
  ['CotenantXidCritical', /xid=~"[^"]*"/, 'xid=~".*"'],
  ['CotenantXidCritical', '< 600', '< 6000'],
  ['CotenantXidContained', /xid=~"[^"]*"/, 'xid=~".*"'],
  ['CotenantEccUncorrected', /severity="uncorrected"/g, ''],
  ['CotenantEccUncorrected', /ecc_errors/g, 'ecc_lifetime_errors'],
  ['CotenantEccUncorrected', /^.*? > 0/, 'cotenant_device_ecc_errors_total{severity="uncorrected"} > 0'],
  ['CotenantEccUncorrected', / and on \(job, instance\).*$/, ''],
  ['CotenantRowRemapFailure', '== 1', '>= 0'],
  ['CotenantRowRemapFailure', / and on \(job, instance\).*$/, ''],
  ['CotenantRowRemapPending', / or cotenant_device_page_retirement_pending == 1/, ''],
  ['CotenantRowRemapPending', / and on \(job, instance\).*$/, ''],
  ['CotenantClocksThrottled', /\{reason=~"[^"]*"\}/, ''],
  ['CotenantClocksThrottled', '== 1', '>= 0'],
  ['CotenantClocksThrottled', / and on \(job, instance\).*$/, ''],
  ['CotenantIsolationFailed', '== 0', '== 2'],
  ['CotenantIsolationFailed', / and on \(job, instance\).*$/, ''],
  ['CotenantMemoryOvercommitted', / - cotenant_device_memory_reserved_bytes or cotenant_device_memory_total_bytes/, ''],
  [
    'CotenantMemoryOvercommitted',
    ' or cotenant_device_memory_total_bytes',
    ' or 0 * cotenant_device_memory_total_bytes',
  ],
  ['CotenantMemoryOvercommitted', '> 1)', '>= 1)'],
  ['CotenantMemoryOvercommitted', / and on \(job, instance\).*$/, ''],
  ['CotenantUnattributedMemory', '> 0.05', '>= 0.05'],
  ['CotenantUnattributedMemory', / and \(cotenant_device_memory_unattributed_bytes.*? or \w+\)\) and on/, ') and on'],
  ['CotenantUnattributedMemory', ' + cotenant_device_memory_allocated_bytes', ''],
  ['CotenantUnattributedMemory', / - cotenant_device_memory_reserved_bytes or \w+\)\) and on/, ')) and on'],
  ['CotenantUnattributedMemory', /kind="managed"/g, 'kind="device"'],
  ['CotenantUnattributedMemory', / and on \(job, instance\).*$/, ''],
  ['CotenantForeignUse', '> 0', '>= 0'],
  ['CotenantForeignUse', / and on \(job, instance\).*$/, ''],
  ['CotenantStopLoop', '>= 3', '>= 2'],
  ['CotenantStopLoop', 'max without (action)', 'sum without (action)'],
  ['CotenantStopLoop', 'without (gpu_uuid, reason)', 'without (gpu_uuid)'],
  ['CotenantStopLoop', 'without (gpu_uuid, reason)', 'without (reason)'],
  [
    'CotenantStopLoop',
    /max without \(action\) \(sum without \(gpu_uuid, reason\) (\(.*\))\) >= 3/,
    'sum without (gpu_uuid, reason) (max without (action) $1) >= 3',
  ],
  ['CotenantStopLoop', '> bool (time() - 3600)', '> bool 0'],
  ['CotenantStopLoop', '> bool (time() - 3600)', '> bool time()'],
  ['CotenantStopLoop', /3600/g, '10800'],
  ['CotenantStopFailed', /"stuck\|refused"/g, '"stuck"'],
  ['CotenantStopFailed', /result=~"stuck\|refused"/g, 'result!="none"'],
  ...ofBorn('CotenantStopFailed'),
  ['CotenantStopFailed', /sum by \(job, instance\) \((sum_over_time\(.*?\]\))\)/, '$1'],
  ['CotenantStopsRefused', '{decision="refused"}', ''],
  ['CotenantStopsRefused', 'rate', '1 +rate'],
  ['CotenantStopsRefused', '[3m]', '[15m]'],
  ['CotenantStopsRefused', / and on \(job, instance\).*$/, ''],
  ['CotenantIsolationWeakened', / and on \([^)]*\) max_over_time\(\(\S+fence=~.*?\]\)/, ''],
  ['CotenantIsolationWeakened', / and on \([^)]*\) max_over_time\(\(\S+fence="driver".*?\]\)/, ''],
  ['CotenantIsolationWeakened', / and on \([^)]*\) cotenant_container_memory_used_bytes > 0/g, ''],
  ['CotenantIsolationWeakened', /memory_used_bytes > 0/g, 'memory_used_bytes'],
  ['CotenantIsolationWeakened', / or \(max without .*?\]\)\)/, ''],
  ['CotenantIsolationWeakened', / on \(job, instance, gpu[^)]*\)/g, ''],
  ['CotenantIsolationWeakened', / and on \(job, instance\).*$/, ''],
  ['CotenantContainerNotEnforced', 'enforcement!="enforce"', 'enforcement="off"'],
  ['CotenantContainerNotEnforced', '{enforcement!="enforce"}', ''],
  ['CotenantContainerNotEnforced', / and on \(job, instance\) \(max_over_time\(cotenant_up\[15m\]\) == 1\)$/, ''],
  ['CotenantContainerNotEnforced', 'max_over_time(cotenant_up[15m])', 'cotenant_up'],
  ['CotenantContainerNotEnforced', /last_over_time\((cotenant_container_enforcement\{.*?\})\[15m\]\)/g, '$1'],
  ['CotenantContainerNotEnforced', /last_over_time\((cotenant_enforcement_mode\{.*?\})\[15m\]\)/g, '$1'],
  ['CotenantContainerNotEnforced', 'mode{enforcement="enforce"', 'mode{enforcement=~"enforce|off"'],
  [
    'CotenantContainerNotEnforced',
    /mode\{enforcement="enforce"}\[15m\]\) == 1/,
    'mode{enforcement="enforce"}[15m]) >= 0',
  ],
  ['CotenantContainerNotEnforced', /on \(job, instance\)/g, 'on (job)'],
  ['CotenantContainerNotEnforced', '{enforcement="off"}', ''],
  ['CotenantContainerNotEnforced', / or \(last_over_time\(cotenant_container_enforcement.*?== 1\)\)/, ''],
  [
    'CotenantLedgerMismatch',
    '- cotenant_container_memory_bypass_bytes',
    '+ 0 * cotenant_container_memory_bypass_bytes',
  ],
  ['CotenantLedgerMismatch', '{kind!="managed"}', ''],
  ['CotenantLedgerMismatch', / and on \(job, instance\).*$/, ''],
  ['CotenantDenialStorm', '> 0.1', '> 0.01'],
  ['CotenantDenialStorm', / and on \(job, instance\) \(cotenant_up == 1\)$/, ''],
  ['CotenantComputeOverLimit', '1.2 *', '1.05 *'],
  ['CotenantComputeOverLimit', /avg_over_time\((.*?)\[10m\]\)/, '$1'],
  [
    'CotenantComputeOverLimit',
    /\(1.2 \* .*?\[10m\]\)\)/,
    'ignoring (enforced) (1.2 * cotenant_container_sm_limit_ratio)',
  ],
  ['CotenantComputeOverLimit', / and on \(job, instance\).*$/, ''],
  ['CotenantComputeThrottled', '> 0.5', '> 0.3'],
  ['CotenantComputeThrottled', / and rate\(cotenant_container_sm_throttled.*? > rate\(.*?\)/, ''],
  ['CotenantComputeThrottled', /> rate\((.*?)\)/, '< rate($1)'],
  ['CotenantComputeThrottled', / and on \(job, instance\) \(cotenant_up == 1\)$/, ''],
  ['CotenantGrantIdle', / and \(cotenant_container_memory_limit_bytes offset 2h.*?\)\)/, ''],
  ['CotenantGrantIdle', 'cotenant_container_memory_limit_bytes offset 2h or ', ''],
  ['CotenantGrantIdle', / or \(max without .*?< 0.05\)\)/, ''],
  ['CotenantGrantIdle', '< 0.05', '< 0.5'],
  ['CotenantGrantIdle', /\{mode=~"exclusive\|mig"\}/g, ''],
  ['CotenantGrantIdle', /exclusive\|mig/g, 'exclusive'],
  ['CotenantGrantIdle', /max_over_time\((cotenant_device_sm_active_ratio)\[2h\]\)/, '$1'],
  ['CotenantGrantIdle', '== 0', '>= 0'],
  ['CotenantGrantIdle', / and on \(job, instance\).*$/, ''],
  ['CotenantWebhookDown', 'sum(', 'min('],
  ['CotenantWebhookDown', '{job="cotenant-webhook"}', ''],
  ['CotenantWebhookFails', '> 0', '>= 0'],
  ['CotenantWebhookFails', '{outcome=~"internal|overloaded"}', ''],
  ['CotenantWebhookCertificateExpires', '< 1209600', '< 604800'],
  ['CotenantWebhookCertificateExpires', '< 1209600', '< 2592000'],
  ['CotenantSchedulerNotLeading', / or 0 \* sum\(.*?\)\)/, ')'],
  ['CotenantSchedulerNotLeading', 'sum(cotenant_scheduler_leader)', 'min(cotenant_scheduler_leader)'],
  ['CotenantSchedulerNotLeading', '{job="cotenant-scheduler"}', ''],
  ['CotenantSchedulerBindFailures', '> 5', '> 0'],
  ['CotenantSchedulerBindFailures', 'verb="bind", ', ''],
  ['CotenantSchedulerBindFailures', ', outcome="failed"', ''],
  ['CotenantSchedulerInvalidObjects', '> 0', '>= 0'],
  ['CotenantSchedulerInvalidObjects', 'max by (job, kind)', 'sum by (job, kind)'],
  ['CotenantWebhookSlow', '> 0.25', '> 2'],
  ['CotenantWebhookSlow', '0.99', '0.5'],
  ['CotenantSchedulerSlow', '> 0.5', '> 5'],
  ['CotenantSchedulerSlow', '0.99', '0.5'],
  ['CotenantCertificateRefused', '{result="refused"}', ''],
  ['CotenantCertificateRefused', '> 0', '>= 0'],
  ['CotenantLiveRulesInvalid', 'min by', 'max by'],
  ['CotenantLiveRulesInvalid', '== 0', '>= 0'],
  ['CotenantApiServerProblems', '> 20', '> 2'],
  ['CotenantScrapeGaps', / and avg_over_time.*$/, ''],
  ['CotenantScrapeGaps', ' / 2', ''],
  ['CotenantScrapeGaps', /\{job="cotenant"\}/g, ''],
  ['CotenantMemoryNearlyGranted', '> 0.9', '> 0.96'],
  ['CotenantMemoryNearlyGranted', /mig_mode="disabled"/g, 'mig_mode!="enabled"'],
  ['CotenantMemoryNearlyGranted', / - cotenant_device_memory_reserved_bytes/, ''],
  ['CotenantMemoryFragmented', '< 0.5', '< 0.55'],
  ['CotenantMemoryFragmented', /mig_mode="disabled"/g, 'mig_mode!="enabled"'],
  ['CotenantMemoryFragmented', / and sum without .*$/, ''],
  ['CotenantUnknownEntryPoints', '> 0', '>= 0'],
  ['CotenantUnknownEntryPoints', / and on \(job, instance\) \(cotenant_up == 1\)$/, ''],
  ['CotenantEngineOutdated', '== 1 and', '>= 0 and'],
  ['CotenantContainerGpuMissing', '== 1 and', '>= 0 and'],
  ['CotenantContainerGpuMissing', / and on \(job, instance\).*$/, ''],
  ['CotenantEngineOutdated', / and on \(job, instance\).*$/, ''],
];

testWithPromtool('the alert tests find mutations of the rules', (t) => {
  t.timeout(HUNG_MS);
  t.deepEqual(
    ALERTS.map(({ alert }) => alert).filter((alert) => !FAULTS.some(([name]) => name === alert)),
    [],
    'an alert without mutations',
  );
  const work = folder(t);
  const file = (kind: string, index: number) => join(work, `${kind}-${index}.yaml`);
  for (const [index, [alert, from, to]] of FAULTS.entries()) {
    const rule = ALERTS.find((each) => each.alert === alert);
    const expr = rule?.expr.replace(from, to) ?? '';
    t.not(expr, rule?.expr, `${alert}: nothing to replace by ${to}`);
    writeFileSync(file('rules', index), stringify({ groups: [{ name: 'cotenant', rules: [{ ...rule, expr }] }] }));
    const test = parse(readFileSync(ruleTest(alert), 'utf8'));
    writeFileSync(file('test', index), stringify({ ...test, rule_files: [`rules-${index}.yaml`] }));
  }
  const indexes = [...FAULTS.keys()];
  const check = promtool('check', 'rules', ...indexes.map((index) => file('rules', index)));
  t.true(check.ok, check.text);
  const { text } = promtool('test', 'rules', ...indexes.map((index) => file('test', index)));
  const verdicts = [...text.matchAll(/Unit Testing: +\S+test-(\d+)\.yaml\n( +SUCCESS)?/g)];
  t.is(verdicts.length, FAULTS.length, text);
  const unnoticed = verdicts.flatMap(([, index, verdict]) => (verdict !== undefined ? [FAULTS[Number(index)]] : []));
  t.deepEqual(unnoticed, []);
});

/** Queries as Grafana would send them, with the node of the synthetic page chosen. */
function asSent(expr: string): string {
  const chosen: Readonly<Record<string, string>> = {
    job: labelValue('job'),
    instance: labelValue('instance'),
    gpu: labelValue('gpu'),
    namespace: labelValue('namespace'),
    pod: labelValue('pod'),
    container: labelValue('container'),
    __rate_interval: '5m',
    __range: '10m',
    __interval: '1m',
  };
  return expr.replace(/\$(\w+)/g, (_, name: string) => chosen[name] ?? `unknown variable ${name}`);
}

function boardQueries(): readonly Query[] {
  type Shown = { title: string; targets?: { refId: string; expr: string; legendFormat: string }[] };
  type Mark = { expr: string; titleFormat: string; textFormat: string };
  type Read = { panels: Shown[]; annotations?: { list?: Mark[] } };
  return [...BOARDS].flatMap(([name, built]) => {
    const board: Read = JSON.parse(JSON.stringify(built));
    const marks = (board.annotations?.list ?? []).map(({ expr, titleFormat, textFormat }) => ({
      where: `${name}: annotation`,
      expr,
      legend: titleFormat + textFormat,
    }));
    const shown = board.panels.flatMap(({ title, targets = [] }) =>
      targets.map(({ refId, expr, legendFormat }) => ({
        where: `${name}: ${title} ${refId}`,
        expr,
        legend: legendFormat ?? '',
      })),
    );
    return [...shown, ...marks];
  });
}

function runbookQueries(): readonly Query[] {
  const text = readFileSync(join(root, 'docs/operate/runbook.md'), 'utf8');
  const blocks = [...text.matchAll(/^```promql\n([\s\S]*?)^```/gm)].map((match) => match[1] ?? '');
  return blocks.flatMap((block) =>
    block
      .trim()
      .split('\n')
      .map((line) => ({
        where: `runbook: ${line}`,
        expr: line
          .replaceAll('NAMESPACE', labelValue('namespace'))
          .replaceAll('POD', labelValue('pod'))
          .replaceAll('NODE', labelValue('instance')),
        legend: '',
      })),
  );
}

/** Fires when the query answers with data, with a label for each that its legend names and all answers have. */
const answering = (expr: string, legend: readonly string[]): string => {
  const has = legend.reduce(
    (inner, label) => `label_replace(${inner}, "has_${label}", "yes", "${label}", ".+")`,
    `count by (${legend.join(', ')}) (${expr})`,
  );
  return `max by (${legend.map((label) => `has_${label}`).join(', ')}) (${has}) > 0`;
};

testWithPromtool("every query of dashboards and runbook has a result and its legend's labels", (t) => {
  const work = folder(t);
  const queries = [...boardQueries(), ...runbookQueries()];
  t.true(queries.length > 200);
  const legends = queries.map(({ legend }) => [...legend.matchAll(/\{\{(\w+)\}\}/g)].map((match) => match[1] ?? ''));
  const rules = queries.map(({ expr }, index) => ({
    alert: `Query${index}`,
    expr: answering(asSent(expr), legends[index] ?? []),
  }));
  const expected = queries.map((_, index) => ({
    eval_time: '30m',
    alertname: `Query${index}`,
    exp_alerts: [{ exp_labels: Object.fromEntries((legends[index] ?? []).map((label) => [`has_${label}`, 'yes'])) }],
  }));
  // Once before there is a past, and when it is asked.
  const test = { rule_files: ['rules.yaml'], evaluation_interval: '30m' };
  const page = { interval: '1m', input_series: nodePage() };
  writeFileSync(join(work, 'rules.yaml'), stringify({ groups: [{ name: 'queries', rules }] }));
  writeFileSync(join(work, 'all.yaml'), stringify({ ...test, tests: [{ ...page, alert_rule_test: expected }] }));
  const check = promtool('check', 'rules', join(work, 'rules.yaml'));
  t.true(check.ok, check.text);
  const answer = promtool('test', 'rules', join(work, 'all.yaml'));
  const failed = [...answer.text.matchAll(/alertname:\s*Query(\d+)/g)].map((match) => queries[Number(match[1])]?.where);
  t.true(answer.ok, `no data: ${failed.join('; ')}\n${answer.text}`);
  t.true(MINUTES > 30);
  // The same page without the containers: this is what an answer without data looks like, so the test above can fail.
  const empty = {
    ...page,
    input_series: page.input_series.filter(({ series }) => !series.startsWith('cotenant_container')),
  };
  writeFileSync(join(work, 'empty.yaml'), stringify({ ...test, tests: [{ ...empty, alert_rule_test: expected }] }));
  t.false(promtool('test', 'rules', join(work, 'empty.yaml')).ok);
});

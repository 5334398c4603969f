// The alert rules and every query of the boards and the runbook, judged by Prometheus' own promtool.
// Rules are tested by the files in rules/, one per alert; and those tests by rules that are broken on purpose.
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { parse, stringify } from 'yaml';
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { BOARDS } from '../../../dashboards/boards.ts';
import { testUnless } from '../../support/gate.ts';
import { findPromtool } from '../../support/services/promtool.ts';
import { FAULTS } from './mutations.ts';
import { labelValue, MINUTES, nodePage } from './node-page.ts';

const root = join(import.meta.dirname, '../../..');
const RULES = join(root, 'dashboards/output/alerts.yaml');
const found = findPromtool();
/** All mutations of the rules are judged by one call, which takes a minute of processor time. */
const HUNG_MS = 600_000;
const MOST_SAID = 64 * 2 ** 20;
const testWithPromtool = testUnless('reason' in found ? found.reason : undefined);

type Query = { readonly where: string; readonly expr: string; readonly legend: string };

type Said = { readonly ok: boolean; readonly stdout: string; readonly stderr: string; readonly text: string };

/** What promtool says about the arguments, and whether it is content. */
const promtool = (...args: readonly string[]): Promise<Said> =>
  new Promise((resolve) => {
    const program = 'path' in found ? found.path : 'promtool';
    execFile(program, args, { cwd: root, timeout: HUNG_MS, maxBuffer: MOST_SAID }, (error, stdout, said) => {
      const stderr = said || (error?.message ?? '');
      resolve({ ok: error === null, stdout, stderr, text: stdout + stderr });
    });
  });

function folder(t: ExecutionContext): string {
  const path = mkdtempSync(join(tmpdir(), 'cotenant-promtool-'));
  t.teardown(() => rmSync(path, { recursive: true }));
  return path;
}

const ALERTS = alertRules().groups.flatMap((group) => group.rules);

type RuleTest = {
  tests: {
    input_series: { series: string }[];
    alert_rule_test: { exp_alerts: { exp_labels: Record<string, string> }[] }[];
    promql_expr_test?: unknown;
  }[];
};

const ruleTest = (alert: string): RuleTest =>
  parse(readFileSync(join(import.meta.dirname, 'rules', `${alert}.yaml`), 'utf8'));

/** Judges each test by one rule alone, in the given order: a test asks of its own alert, and to evaluate all others too
 * takes minutes. */
async function judge(t: ExecutionContext, pairs: readonly { readonly rule: object; readonly test: RuleTest }[]) {
  const work = folder(t);
  const file = (kind: string, index: number) => join(work, `${kind}-${index}.yaml`);
  for (const [index, { rule, test }] of pairs.entries()) {
    writeFileSync(file('rules', index), stringify({ groups: [{ name: 'cotenant', rules: [rule] }] }));
    writeFileSync(file('test', index), stringify({ ...test, rule_files: [`rules-${index}.yaml`] }));
  }
  const indexes = [...pairs.keys()];
  const check = await promtool('check', 'rules', ...indexes.map((index) => file('rules', index)));
  t.true(check.ok, check.text);
  const { stdout, stderr } = await promtool('test', 'rules', ...indexes.map((index) => file('test', index)));
  const verdicts = [...stdout.matchAll(/Unit Testing: +\S+test-(\d+)\.yaml\n( +SUCCESS)?/g)];
  t.deepEqual(
    verdicts.map(([, index]) => Number(index)),
    indexes,
    stderr,
  );
  return { passed: verdicts.map(([, , verdict]) => verdict !== undefined), failures: stderr };
}

testWithPromtool('promtool accepts the rules', async (t) => {
  const { ok, text } = await promtool('check', 'rules', RULES);
  t.true(ok, text);
  t.regex(text, new RegExp(`SUCCESS: ${ALERTS.length} rules found`));
  const recording = await promtool('check', 'rules', join(root, 'dashboards/output/recording.yaml'));
  t.true(recording.ok, recording.text);
});

testWithPromtool('the recording rules add up shares, whole GPUs and unused memory', async (t) => {
  const { ok, text } = await promtool('test', 'rules', join(import.meta.dirname, 'recording.yaml'));
  t.true(ok, text);
});

type RuleFile = { groups: { rules: { alert: string }[] }[] };
const shipped = (parse(readFileSync(RULES, 'utf8')) as RuleFile).groups.flatMap(({ rules }) => rules);
let judged: ReturnType<typeof judge> | undefined;

for (const [index, { alert }] of ALERTS.entries()) {
  testWithPromtool(`${alert} fires with its texts exactly when it should`, async (t) => {
    t.is(shipped[index]?.alert, alert);
    judged ??= judge(
      t,
      shipped.map((rule) => ({ rule, test: ruleTest(rule.alert) })),
    );
    const { passed, failures } = await judged;
    t.true(passed[index], failures);
  });
}

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

testWithPromtool('alerts fire with extra target labels, and carry them', async (t) => {
  const pairs = ALERTS.map((rule) => ({ rule, test: ruleTest(rule.alert) }));
  for (const { test } of pairs)
    t.true(test.tests.every(({ input_series }) => input_series.every(({ series }) => series.includes('{'))));
  const { passed, failures } = await judge(
    t,
    pairs.map(({ rule, test }) => ({ rule, test: withTargetLabel(test, 'cluster', 'east') })),
  );
  t.deepEqual(
    ALERTS.flatMap(({ alert }, index) => (passed[index] ? [] : [alert])),
    [],
    failures,
  );
});

testWithPromtool('the alert tests find mutations of the rules', async (t) => {
  t.timeout(HUNG_MS);
  t.deepEqual(
    ALERTS.map(({ alert }) => alert).filter((alert) => !FAULTS.some(([name]) => name === alert)),
    [],
    'an alert without mutations',
  );
  const pairs = FAULTS.map(([alert, from, to]) => {
    const rule = ALERTS.find((each) => each.alert === alert);
    const expr = rule?.expr.replace(from, to) ?? '';
    t.not(expr, rule?.expr, `${alert}: nothing to replace by ${to}`);
    return { rule: { ...rule, expr }, test: ruleTest(alert) };
  });
  const { passed } = await judge(t, pairs);
  t.deepEqual(
    FAULTS.filter((_, index) => passed[index]),
    [],
  );
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
  return expr.replace(/\$([a-z_]\w*)/gi, (_, name: string) => chosen[name] ?? `unknown variable ${name}`);
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

testWithPromtool("every query of dashboards and runbook has a result and its legend's labels", async (t) => {
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
  const check = await promtool('check', 'rules', join(work, 'rules.yaml'));
  t.true(check.ok, check.text);
  const answer = await promtool('test', 'rules', join(work, 'all.yaml'));
  const failed = [...answer.text.matchAll(/alertname:\s*Query(\d+)/g)].map((match) => queries[Number(match[1])]?.where);
  t.true(answer.ok, `no data: ${failed.join('; ')}\n${answer.text}`);
  t.true(MINUTES > 30);
  // The same page without the containers: this is what an answer without data looks like, so the test above can fail.
  const empty = {
    ...page,
    input_series: page.input_series.filter(({ series }) => !series.startsWith('cotenant_container')),
  };
  writeFileSync(join(work, 'empty.yaml'), stringify({ ...test, tests: [{ ...empty, alert_rule_test: expected }] }));
  t.false((await promtool('test', 'rules', join(work, 'empty.yaml'))).ok);
});

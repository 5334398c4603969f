// The example queries of the page on metrics, judged by Prometheus' own promtool on a node that serves every metric.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { blocks, ROOT, readPage } from '../../support/docs.ts';
import { testUnless } from '../../support/gate.ts';
import { findPromtool, run } from '../../support/services/promtool.ts';
import { nodePage } from './node-page.ts';

const found = findPromtool();
const testWithPromtool = testUnless('reason' in found ? found.reason : undefined);
const QUERIES = blocks(readPage('docs/reference/metrics.md'), 'promql').flatMap((block) => block.trim().split('\n'));
/** Comparisons that have an answer only on a node that is in trouble; they are read, not answered. */
const ON_CONDITION = / [<>] /;

function promtool(...args: readonly string[]): { readonly ok: boolean; readonly text: string } {
  const { ok, stdout, stderr } = run('path' in found ? found.path : 'promtool', args, ROOT, 60_000);
  return { ok, text: stdout + stderr };
}

testWithPromtool('every example query is valid and has a result', (t) => {
  const work = mkdtempSync(join(tmpdir(), 'cotenant-promtool-'));
  t.teardown(() => rmSync(work, { recursive: true }));
  const ruleFile = (expressions: readonly string[]) => {
    const rules = expressions.map((expr, index) => ({ alert: `Query${index}`, expr }));
    writeFileSync(join(work, 'rules.yaml'), stringify({ groups: [{ name: 'queries', rules }] }));
    return promtool('check', 'rules', join(work, 'rules.yaml'));
  };
  t.true(QUERIES.length >= 8);
  const readable = ruleFile(QUERIES);
  t.true(readable.ok, readable.text);
  t.false(ruleFile([...QUERIES, 'rate(cotenant_up[5m']).ok, 'a query that is none is noticed');

  const answering = QUERIES.filter((query) => !ON_CONDITION.test(query));
  t.true(answering.length >= 5);
  ruleFile(answering.map((query) => `count(${query}) > 0`));
  const alert_rule_test = answering.map((_, index) => ({
    eval_time: '30m',
    alertname: `Query${index}`,
    exp_alerts: [{ exp_labels: {} }],
  }));
  const test = (series: readonly unknown[]) => {
    const tests = [{ interval: '1m', input_series: series, alert_rule_test }];
    writeFileSync(join(work, 'test.yaml'), stringify({ rule_files: ['rules.yaml'], evaluation_interval: '1m', tests }));
    return promtool('test', 'rules', join(work, 'test.yaml'));
  };
  const answered = test(nodePage());
  t.true(answered.ok, answered.text);
  t.false(test([]).ok, 'an empty node is noticed');
});

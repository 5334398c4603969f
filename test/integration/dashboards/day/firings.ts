// How often each alert begins to fire over a day, by the shipped rules in promtool.
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { alertRules } from '../../../../dashboards/alerts/rules.ts';
import { findPromtool } from '../../../support/services/promtool.ts';
import type { InputSeries } from '../node-page.ts';
import { MINUTES } from './fleet.ts';

const RULES = join(import.meta.dirname, '../../../../dashboards/output/alerts.yaml');
const FIRING = 'ALERTS{alertstate="firing"}';
const BEGINS = { record: 'began_to_fire', expr: `${FIRING} unless ${FIRING} offset 1m` };
const LIMIT_MS = 380_000;

/** By alert: how often the same thing made it begin to fire, at most. Alerts that did not fire are not there. */
export async function firings(series: readonly InputSeries[]): Promise<ReadonlyMap<string, number>> {
  const promtool = findPromtool();
  if ('reason' in promtool) throw new Error(promtool.reason);
  const work = mkdtempSync(join(tmpdir(), 'cotenant-day-'));
  try {
    writeFileSync(join(work, 'begins.yaml'), stringify({ groups: [{ name: 'later', rules: [BEGINS] }] }));
    // promtool says what it got where that is not what was expected.
    const asked = {
      expr: `max by (alertname) (count_over_time(${BEGINS.record}[${MINUTES}m])) or vector(0)`,
      eval_time: `${MINUTES}m`,
      exp_samples: [],
    };
    const test = {
      rule_files: [RULES, 'begins.yaml'],
      evaluation_interval: '1m',
      // promtool takes groups in the order of a Go map otherwise: the record before the alerts never sees one begin.
      group_eval_order: [...alertRules().groups.map(({ name }) => name), 'later'],
      tests: [{ interval: '1m', input_series: series, promql_expr_test: [asked] }],
    };
    writeFileSync(join(work, 'test.yaml'), stringify(test, { lineWidth: 0 }));
    const said = await new Promise<string>((resolve) => {
      const args = ['test', 'rules', join(work, 'test.yaml')];
      execFile(promtool.path, args, { timeout: LIMIT_MS }, (_, stdout, stderr) => resolve(stdout + stderr));
    });
    const [, got] = /got: (.+)/.exec(said) ?? [];
    if (got === undefined) throw new Error(said);
    const found = got.matchAll(/alertname="(\w+)"\} ([\d.E+]+)/g);
    return new Map([...found].map(([, alert = '', count]) => [alert, Number(count)] as const));
  } finally {
    rmSync(work, { recursive: true });
  }
}

// Each board passes every rule, and each rule catches a board that breaks it: a rule that cannot fail says nothing.
import test from 'ava';
import { BOARDS } from '../../../dashboards/boards.ts';
import { nodeGpu } from '../../../dashboards/node-gpu.ts';
import { type Board, type LintPanel, lint, queries, RULES, type Target, type Variable } from './lint.ts';
import { readPromql } from './promql.ts';

const board = (): Board => JSON.parse(JSON.stringify(nodeGpu));

const all = (): readonly (readonly [string, Board])[] => JSON.parse(JSON.stringify([...BOARDS]));

for (const rule of Object.keys(RULES)) {
  test(`the dashboards pass ${rule}`, (t) => {
    for (const [name, each] of all()) t.deepEqual(lint(each, rule), [], name);
  });
}

const firstPanel = ({ panels = [] }: Board): LintPanel => panels[0] ?? { type: 'none' };
const firstTarget = (given: Board): Target => firstPanel(given).targets?.[0] ?? {};
const variable = ({ templating }: Board, name: string): Variable =>
  templating.list?.find((each) => each.name === name) ?? { type: 'none', name };
const ask = (expr: string) => (given: Board) => {
  firstTarget(given).expr = expr;
};
/** Of the first panel with lines, whose other queries stay. */
const series = (expr: string) => (given: Board) => {
  const target = given.panels?.find(({ type }) => type === 'timeseries')?.targets?.[0];
  if (target) target.expr = expr;
};
const RIGHT = 'job=~"$job", instance=~"$instance"';

/** One change per row; the rule of that name must see it. */
const BROKEN: readonly (readonly [rule: string, change: (given: Board) => unknown])[] = [
  ['template-datasource-rule', (given) => (variable(given, 'datasource').name = 'source')],
  ['template-datasource-rule', (given) => (given.templating.list = [])],
  ['template-job-rule', (given) => (variable(given, 'job').multi = false)],
  ['template-job-rule', (given) => (variable(given, 'job').datasource = { uid: 'abc' })],
  ['template-instance-rule', (given) => (variable(given, 'instance').allValue = '.*')],
  ['template-instance-rule', (given) => (variable(given, 'instance').label = 'Node')],
  ['template-label-promql-rule', (given) => (variable(given, 'gpu').query = 'label_values(cotenant_up, gpu)')],
  ['template-label-promql-rule', (given) => (variable(given, 'gpu').query = 'values(cotenant_device_info)')],
  ['template-on-time-change-reload-rule', (given) => (variable(given, 'gpu').refresh = 1)],
  ['panel-datasource-rule', (given) => (firstPanel(given).datasource = { uid: 'abc' })],
  ['panel-datasource-rule', (given) => (firstTarget(given).datasource = { uid: 'abc' })],
  ['panel-title-description-rule', (given) => (firstPanel(given).title = '')],
  ['panel-title-description-rule', (given) => (firstPanel(given).description = '')],
  ['panel-units-rule', (given) => (firstPanel(given).fieldConfig = {})],
  ['panel-units-rule', (given) => (firstPanel(given).fieldConfig = { defaults: { unit: 'MiB' } })],
  ['panel-no-targets-rule', (given) => (firstPanel(given).targets = [])],
  ['target-promql-rule', ask(`sum(cotenant_up{${RIGHT}}`)],
  ['target-promql-rule', ask(`cotenant_up{${RIGHT}, gpu="$missing"}`)],
  ['target-promql-rule', ask('1 + 1')],
  ['target-rate-interval-rule', ask(`sum(rate(cotenant_container_sm_seconds_total{${RIGHT}}[5m]))`)],
  ['target-job-rule', ask('cotenant_up{instance=~"$instance"}')],
  ['target-job-rule', ask(`cotenant_up{${RIGHT}} * on (job, instance) cotenant_up`)],
  ['target-instance-rule', ask('cotenant_up{job=~"$job", instance="$instance"}')],
  ['target-counter-agg-rule', ask(`sum(cotenant_container_kills_total{${RIGHT}})`)],
  ['target-counter-agg-rule', ask(`max_over_time(cotenant_container_kills_total{${RIGHT}}[$__rate_interval])`)],
  ['uneditable-dashboard-rule', (given) => (given.editable = true)],
  ['ours: series are bounded', series(`cotenant_device_power_watts{${RIGHT}}`)],
  ['ours: series are bounded', series(`topk(11, cotenant_device_power_watts{${RIGHT}})`)],
  ['ours: descriptions explain', (given) => (firstPanel(given).description = 'GPUs.')],
  ['ours: metrics exist', ask(`cotenant_container_memory_bytes{${RIGHT}}`)],
  ['ours: labels exist', ask(`cotenant_up{${RIGHT}, gpu="0"}`)],
  ['ours: labels exist', ask(`sum by (pod) (cotenant_device_memory_used_bytes{${RIGHT}})`)],
];

test('every lint rule finds a dashboard that breaks it', (t) => {
  for (const [rule, change] of BROKEN) {
    const broken = board();
    change(broken);
    t.is(lint(broken, rule).length, 1, `${rule}: ${change}`);
  }
  t.deepEqual([...new Set(BROKEN.map(([rule]) => rule))].sort(), Object.keys(RULES).sort());
});

test('dashboards have fixed uids, a current schema and separate panels', (t) => {
  const uids = ['cluster', 'node-gpu', 'namespace', 'container', 'health', 'exporters'].map(
    (name) => `cotenant-${name}`,
  );
  t.deepEqual(
    [...BOARDS.values()].map(({ uid }) => uid),
    uids,
  );
  for (const { uid, schemaVersion, panels = [] } of BOARDS.values()) {
    t.true(schemaVersion >= 39);
    t.deepEqual(
      panels.map(({ id }) => id),
      panels.map((_, index) => index + 1),
    );
    const cells = panels.flatMap(({ gridPos }) => {
      const { x = 0, y = 0, w = 0, h = 0 } = gridPos ?? {};
      t.true(w > 0 && h > 0 && x + w <= 24);
      return Array.from({ length: w * h }, (_, cell) => `${x + (cell % w)},${y + Math.floor(cell / w)}`);
    });
    t.is(new Set(cells).size, cells.length, uid);
  }
});

test('the queries of a panel have different ids', (t) => {
  for (const [name, { panels = [] }] of all()) {
    for (const { title, targets = [] } of panels) {
      const names = targets.map(({ refId }) => refId);
      t.deepEqual([...new Set(names)], names, `${name}: ${title}`);
    }
  }
  t.true(all().flatMap(([, each]) => queries(each)).length > 80);
});

test('the PromQL reader finds selectors, ranges and functions', (t) => {
  const { selectors, groupings } = readPromql(
    'sum by (pod, "x") (rate(a_total{job=~"$job", x!="}{"}[$__rate_interval]) / on (job) group_left () b) and c offset 5m > bool 0.5',
  );
  t.deepEqual(selectors, [
    {
      metric: 'a_total',
      matchers: [
        { label: 'job', operator: '=~', value: '$job' },
        { label: 'x', operator: '!=', value: '}{' },
      ],
      range: '$__rate_interval',
      call: 'rate',
    },
    { metric: 'b', matchers: [], range: undefined, call: undefined },
    { metric: 'c', matchers: [], range: undefined, call: undefined },
  ]);
  t.deepEqual(groupings, ['pod', '"x"', 'job']);
  for (const wrong of ['sum(a', 'a]', 'a # b', '{job="x"}']) t.throws(() => readPromql(wrong));
});

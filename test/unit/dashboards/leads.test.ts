// Where each alert leads: its board and variables exist, its command is one that can be typed, and what it names is a
// label of the alert. By the alerts that promtool expects (test/integration/dashboards/rules), texts filled in.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { parse as parseYaml } from 'yaml';
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { BOARDS } from '../../../dashboards/boards.ts';
import { COMPONENT_LABEL } from '../../../src/api/names.ts';
import { inspect } from '../../../src/cli/commands/status/inspect.ts';
import { why } from '../../../src/cli/commands/status/why.ts';
import { type Command, parse } from '../../../src/cli/lib/command.ts';
import { podNamed } from '../../../src/cli/options/target.ts';

type Texts = Readonly<Record<'dashboard' | 'command' | 'runbook_url', string>>;
type Expected = { readonly exp_labels: Readonly<Record<string, string>>; readonly exp_annotations: Texts };

const root = join(import.meta.dirname, '../../..');
const COMMANDS: Readonly<Record<string, Command>> = { why, inspect };
const COMPONENTS = ['webhook', 'scheduler'];

/** Names of the variables of each board by its uid. */
const boards = new Map(
  [...BOARDS.values()].map(({ uid, templating }) => [uid, (templating?.list ?? []).map(({ name }) => name)] as const),
);

const expected = alertRules().groups.flatMap(({ rules }) =>
  rules.flatMap(({ alert }) => {
    const file = join(root, 'test/integration/dashboards/rules', `${alert}.yaml`);
    const { tests } = parseYaml(readFileSync(file, 'utf8')) as {
      tests: { alert_rule_test: { exp_alerts: Expected[] }[] }[];
    };
    const alerts = tests.flatMap((each) => each.alert_rule_test.flatMap(({ exp_alerts }) => exp_alerts));
    return alerts.map(({ exp_labels, exp_annotations }) => ({ alert, labels: exp_labels, texts: exp_annotations }));
  }),
);

test('each alert links to a board that exists, by variables that it has', (t) => {
  t.true(new Set(expected.map(({ alert }) => alert)).size > 50);
  for (const { alert, labels, texts } of expected) {
    const { pathname, searchParams } = new URL(texts.dashboard, 'http://grafana');
    const variables = boards.get(pathname.replace(/^\/d\//, ''));
    if (variables === undefined) return t.fail(`${alert}: no board at ${pathname}`);
    for (const [name, value] of searchParams) {
      const label = name.replace(/^var-/, '');
      t.true(variables.includes(label), `${alert}: ${pathname} has no variable ${label}`);
      t.is(value, String(labels[label]), `${alert}: ${label}`);
    }
    // Whatever the alert says of the thing is chosen on the board.
    const chosen = ['namespace', 'pod', 'container'].filter((label) => variables.includes(label) && label in labels);
    for (const label of chosen) t.true(searchParams.has(`var-${label}`), `${alert}: ${label} is not chosen`);
  }
});

test("each alert's command can be parsed and names the alert's own thing", (t) => {
  for (const { alert, labels, texts } of expected) {
    const [program, name = '', ...args] = texts.command.split(' ');
    t.is(program, 'kubectl', alert);
    if (name === 'get') {
      const component = COMPONENTS.find((one) => texts.command.endsWith(` -l ${COMPONENT_LABEL}=${one}`));
      t.truthy(component, `${alert}: ${texts.command}`);
      continue;
    }
    t.is(name, 'cotenant', alert);
    const [verb = '', ...rest] = args;
    const command = COMMANDS[verb];
    if (command === undefined) return t.fail(`${alert}: ${verb}`);
    const parsed = parse(command, rest);
    if (parsed === 'help') return t.fail(alert);
    if (verb === 'why') {
      const pod = podNamed(parsed.operands[0] ?? '', undefined, undefined);
      t.deepEqual(pod, { namespace: labels.namespace, name: labels.pod ?? '' }, alert);
    } else {
      t.true('instance' in labels || !('node' in parsed.values), alert);
      if (labels.instance !== undefined) t.is(parsed.values.node, labels.instance, alert);
    }
  }
});

test('each part has an example of where its alerts lead', (t) => {
  const leads = new Set(expected.map(({ texts }) => texts.dashboard.replace(/\?.*/, '')));
  t.deepEqual([...leads].toSorted(), [
    '/d/cotenant-cluster',
    '/d/cotenant-container',
    '/d/cotenant-health',
    '/d/cotenant-node-gpu',
  ]);
});

// The mode of a node: its agent's settings, a label of its Node before them, and what an agent that starts anew goes
// by.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { openNodeMode } from '../../../../src/agent/enforcement/node-mode.ts';
import { loggerTo } from '../../../support/product/logger.ts';

const LABEL = 'cotenant.io/enforcement';

function open(t: ExecutionContext, stateFolder = mkdtempSync(join(tmpdir(), 'ct-')), hears = true) {
  t.teardown(() => rmSync(stateFolder, { recursive: true, force: true }));
  const [problems, changes]: [string[], string[]] = [[], []];
  const node = openNodeMode(
    { stateFolder, configured: 'enforce', hears },
    { warn: loggerTo(problems).warn, info: loggerTo(changes).info },
  );
  return { node, problems, changes, stateFolder };
}

test('a label takes precedence over the settings, and each change is logged once', (t) => {
  const { node, problems, changes } = open(t);
  t.is(node.mode(), 'enforce');
  node.label({ other: 'x' });
  for (let times = 0; times < 2; times += 1) node.label({ [LABEL]: 'report' });
  t.is(node.mode(), 'report');
  node.label({});
  t.is(node.mode(), 'enforce');
  t.deepEqual(changes, [
    'the mode of this node is report, by its label',
    "the mode of this node is enforce again, by the agent's settings",
  ]);
  t.deepEqual(problems, []);
});

test('an unknown mode is reported once and ignored', (t) => {
  const { node, problems } = open(t);
  for (let times = 0; times < 2; times += 1) node.label({ [LABEL]: 'kill' });
  t.is(node.mode(), 'enforce');
  t.deepEqual(problems, [`label ${LABEL} of this node is "kill", not one of off, report, enforce, and is ignored`]);
});

test('a restarted agent keeps the last label until it reads another one', (t) => {
  const { node, stateFolder } = open(t);
  node.label({ [LABEL]: 'off' });
  const again = open(t, stateFolder);
  t.is(again.node.mode(), 'off');
  again.node.label({});
  t.is(open(t, stateFolder).node.mode(), 'enforce');
});

test('without a cluster a stored label is ignored', (t) => {
  const { node, stateFolder } = open(t);
  node.label({ [LABEL]: 'off' });
  t.is(open(t, stateFolder, false).node.mode(), 'enforce');
});

test('a file that cannot be read is reported, and the settings apply', (t) => {
  const { stateFolder } = open(t);
  const path = join(stateFolder, 'enforcement.json');
  writeFileSync(path, '{"version":1,"mode":"kill"}');
  const { node, problems } = open(t, stateFolder);
  t.is(node.mode(), 'enforce');
  t.regex(
    problems[0] ?? '',
    /enforcement\.json is ignored, so the mode of this node is enforce .*mode: "kill" is not one of off, report, enforce/,
  );
  node.label({ [LABEL]: 'report' });
  t.regex(readFileSync(path, 'utf8'), /"mode": "report"/);
});

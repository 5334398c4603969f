// The environment that figures of the agent's memory are taken with is the one that the chart gives it.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { CHART_ENV } from '../../support/product/agent.ts';

const TEMPLATE = join(import.meta.dirname, '../../../charts/cotenant/templates/agent/daemonset.yaml');

test('memory is measured with the environment that the chart gives both containers', (t) => {
  const template = readFileSync(TEMPLATE, 'utf8');
  for (const [name, value] of Object.entries(CHART_ENV)) {
    const values = [...template.matchAll(new RegExp(`- name: ${name}\\n +value: (.*)`, 'g'))].map(([, found]) => found);
    t.deepEqual(
      values.map((found) => found?.replaceAll('"', '')),
      [value, value],
      name,
    );
  }
});

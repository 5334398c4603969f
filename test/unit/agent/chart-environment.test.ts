// The environment that figures of memory are taken with is the one that the chart gives agent and extender.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { CHART_ENV } from '../../support/product/agent.ts';
import { EXTENDER_ENV } from '../../support/product/daemon.ts';

const TEMPLATES = join(import.meta.dirname, '../../../charts/cotenant/templates');

for (const [file, environment, containers] of [
  ['agent/daemonset.yaml', CHART_ENV, 2],
  ['scheduler/deployment.yaml', EXTENDER_ENV, 1],
] as const) {
  test(`memory is measured with the environment of ${file}`, (t) => {
    const template = readFileSync(join(TEMPLATES, file), 'utf8');
    for (const [name, value] of Object.entries(environment)) {
      const values = [...template.matchAll(new RegExp(`- name: ${name}\\n +value: (.*)`, 'g'))].map(([, found]) =>
        found?.replaceAll('"', ''),
      );
      t.deepEqual(values, Array(containers).fill(value), name);
    }
  });
}

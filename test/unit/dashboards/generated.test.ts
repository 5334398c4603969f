// What is committed is what the code writes, and the check that says so sees each way in which it may not be.
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import test from 'ava';
import { parse } from 'yaml';
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { generatedFiles, staleFiles } from '../../../dashboards/generate.ts';

const root = join(import.meta.dirname, '../../..');

test('the generated files are up to date, also in the chart', (t) => {
  t.deepEqual(staleFiles(root), []);
});

test('changed, missing and extra files are reported by name', (t) => {
  const copy = mkdtempSync(join(tmpdir(), 'cotenant-generated-'));
  t.teardown(() => rmSync(copy, { recursive: true }));
  for (const path of generatedFiles().keys()) {
    mkdirSync(dirname(join(copy, path)), { recursive: true });
    cpSync(join(root, path), join(copy, path));
  }
  t.deepEqual(staleFiles(copy), []);
  writeFileSync(join(copy, 'dashboards/output/node-gpu.json'), '{}\n');
  rmSync(join(copy, 'charts/cotenant/files/alerts.yaml'));
  writeFileSync(join(copy, 'dashboards/output/old.json'), '{}\n');
  t.deepEqual(staleFiles(copy), [
    'dashboards/output/node-gpu.json',
    'charts/cotenant/files/alerts.yaml',
    'dashboards/output/old.json',
  ]);
});

test('the rules as YAML are the same', (t) => {
  t.deepEqual(parse(generatedFiles().get('dashboards/output/alerts.yaml') ?? ''), alertRules());
});

// The rules in a Prometheus of the third major version, whose ranges leave out their older end: Debian's newest, beside
// the older one of the other tests.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse, stringify } from 'yaml';
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { recordingRules } from '../../../dashboards/recording.ts';
import { testUnless } from '../../support/gate.ts';
import { eventually, temporaryFolder } from '../../support/native/node.ts';
import { startPrometheus } from '../../support/services/prometheus.ts';
import { run } from '../../support/services/promtool.ts';
import { debianPackages, packagesFolder, type Wanted } from '../../support/toolchains/debian.ts';

const OUTPUT = join(import.meta.dirname, '../../../dashboards/output');
const HUNG_MS = 300_000;
const WANTED: readonly Wanted[] = [
  { name: 'prometheus', from: 'sid' },
  { name: 'promtool', from: 'sid' },
];
const packages = debianPackages(packagesFolder('prometheus-3', WANTED), WANTED, console.log);
const programOf = (name: string) => (packages.ok ? join(packages.root, 'usr/bin', name) : '');
const testWithThird = testUnless(packages.ok ? undefined : packages.reason);

testWithThird('Prometheus 3 loads and evaluates all rules that ship', async (t) => {
  t.timeout(HUNG_MS);
  const shipped = ['alerts.yaml', 'recording.yaml'].map((name) => [name, readFileSync(join(OUTPUT, name), 'utf8')]);
  const prometheus = await startPrometheus(t, {
    program: programOf('prometheus'),
    configuration: { global: { evaluation_interval: '1s' } },
    ruleFiles: Object.fromEntries(shipped),
  });
  const { data } = (await (await fetch(`${prometheus.url}/api/v1/status/buildinfo`)).json()) as {
    data: { version: string };
  };
  t.regex(data.version, /^3\./);
  const loaded = await eventually(
    async () => {
      const rules = await prometheus.rules();
      return rules.every(({ health }) => health !== 'unknown') ? rules : undefined;
    },
    'each rule has been evaluated',
    90_000,
  );
  const groups = [...alertRules().groups, ...recordingRules().groups];
  t.is(loaded.length, groups.flatMap(({ rules }): readonly unknown[] => rules).length);
  t.deepEqual(
    loaded.filter(({ health }) => health !== 'ok'),
    [],
  );
});

testWithThird('in Prometheus 3 each rule does what its test says', (t) => {
  t.timeout(HUNG_MS);
  const work = temporaryFolder(t);
  const rules = alertRules().groups.flatMap((group) => group.rules);
  const files = rules.map((rule) => {
    const test = parse(readFileSync(join(import.meta.dirname, 'rules', `${rule.alert}.yaml`), 'utf8')) as object;
    // Its rule alone: all of them in each test take minutes.
    const alone = join(work, `rules-${rule.alert}.yaml`);
    writeFileSync(alone, stringify({ groups: [{ name: 'cotenant', rules: [rule] }] }));
    const file = join(work, `${rule.alert}.yaml`);
    writeFileSync(file, stringify({ ...test, rule_files: [alone] }));
    return file;
  });
  const recording = join(import.meta.dirname, 'recording.yaml');
  const { ok, stdout, stderr } = run(programOf('promtool'), ['test', 'rules', ...files, recording], work, HUNG_MS);
  t.true(ok, stdout + stderr);
  t.is([...(stdout + stderr).matchAll(/^ +SUCCESS$/gm)].length, files.length + 1);
});

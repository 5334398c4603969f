// The chart's settings: every one is known to the schema, anything else is refused, and older sets of values still
// work.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse, parseAllDocuments } from 'yaml';
import { inspect } from '../../../src/cli/commands/status/inspect.ts';
import { why } from '../../../src/cli/commands/status/why.ts';
import { answerOf, creation } from '../../unit/webhook/reviews.ts';
import {
  CHART,
  find,
  helm,
  type Json,
  NAMESPACE,
  objectsOf,
  render,
  resolved,
  SCHEMA,
  type Schema,
  schemaAt,
  testWithHelm,
  type Values,
} from './chart.ts';

const values: Readonly<Record<string, unknown>> = parse(readFileSync(join(CHART, 'values.yaml'), 'utf8'));

const isMap = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Paths of values that the schema does not name. A map that is open by intent (labels, resources) may hold
 * anything. */
function unnamed(value: unknown, part: Schema, path: string): readonly string[] {
  const { properties, additionalProperties } = resolved(part);
  if (!isMap(value) || (properties === undefined && additionalProperties !== false)) return [];
  return Object.entries(value).flatMap(([key, entry]) => {
    const next = properties?.[key];
    return next === undefined ? [`${path}.${key}`] : unnamed(entry, next, `${path}.${key}`);
  });
}

/** Paths of maps that take the settings they name and no others. */
function closed(part: Schema, path: readonly string[]): readonly (readonly string[])[] {
  const { properties = {}, additionalProperties } = resolved(part);
  const here = additionalProperties === false ? [path] : [];
  return [...here, ...Object.entries(properties).flatMap(([key, next]) => closed(next, [...path, key]))];
}

function at(path: readonly string[], value: unknown): Readonly<Record<string, unknown>> {
  return path.reduceRight((inner: unknown, key) => ({ [key]: inner }), value) as Readonly<Record<string, unknown>>;
}

testWithHelm('values.yaml and the schema have the same settings', (t) => {
  t.deepEqual(unnamed(values, SCHEMA, ''), []);
  // Settings of the programs are described with them, resources are Kubernetes' own, and `global` is helm's.
  const described = closed(SCHEMA, []).filter((path) => !path.includes('configuration') && !path.includes('resources'));
  t.true(described.length > 8);
  const missing = described.flatMap((path) => {
    const given = path.reduce((value: unknown, key) => (isMap(value) ? value[key] : undefined), values as unknown);
    const names = Object.keys(schemaAt(path).properties ?? {});
    return names.filter((key) => !isMap(given) || !(key in given)).map((key) => [...path, key].join('.'));
  });
  t.deepEqual(missing, ['global']);
});

testWithHelm('an unknown setting is refused at every level, with its path', (t) => {
  const paths = closed(SCHEMA, []);
  t.true(paths.length > 15, String(paths.length));
  for (const each of paths) {
    const { ok, text } = render(at([...each, 'unheardOf'], 1));
    t.false(ok, each.join('.'));
    t.regex(text, /unheardOf/, each.join('.'));
    t.regex(text, /additional properties/i, each.join('.'));
  }
});

const WRONG: readonly (readonly [path: string, value: unknown])[] = [
  ['agent.configuration.enforcement.mode', 'kill'],
  ['agent.configuration.interposerEngine', -1],
  ['agent.configuration.interposerEngine', 'next'],
  ['agent.enabled', 'yes'],
  ['agent.stateDirectory', 'var/lib'],
  ['agent.exporter.port', 80],
  ['agent.tolerations', { operator: 'Exists' }],
  ['kubelet.root', '/var/lib/kubelet/'],
  ['image.tag', 'latest'],
  ['image.digest', 'sha256:1'],
  ['image.repository', ''],
  ['webhook.replicas', 0],
  // A user without capabilities cannot listen there.
  ['webhook.port', 443],
  ['webhook.mutateTimeoutSeconds', 31],
  ['webhook.certificate.source', 'acme'],
  ['policies.enabled', 'yes'],
  ['webhook.configuration.rules.dialects', 'ack'],
  ['webhook.configuration.rules.ack.unit', 'GB'],
  ['webhook.configuration.deviceRoute', 'cdi'],
  ['agent.maxUnavailable', 0],
  ['agent.maxUnavailable', '0%'],
  ['nri.cdiFolders', '/var/run/cdi'],
  ['nri.cdiFolders', ['/var/run/cdi', '/var/run/cdi']],
  ['scheduler.replicas', 0],
  ['scheduler.placement', 'tetris'],
  ['scheduler.overcommittedAfterSeconds', 0],
  ['scheduler.kubeScheduler.image.tag', 'latest'],
  ['serviceMonitor.interval', '15'],
  ['nameOverride', 'two words'],
  ['fullnameOverride', 'a_b'],
  ['webhook.extraEnv', [{ name: 'LEVEL', value: 1 }]],
  ['agent.node.extraEnv', [{ value: '1' }]],
];

testWithHelm('a setting of the wrong type or out of its bounds is refused, with its place', (t) => {
  for (const [name, value] of WRONG) {
    const { ok, text } = render(at(name.split('.'), value));
    t.false(ok, name);
    t.true(text.includes(`/${name.replaceAll('.', '/')}`), `${name}: ${text}`);
  }
});

const CLASHING: readonly (readonly [values: Values, said: string])[] = [
  [{ nameOverride: 'my.name' }, 'no Service can be named cotenant-my.name-agent: set fullnameOverride to'],
  [{ commonLabels: { 'app.kubernetes.io/name': 'a' } }, 'the chart sets app.kubernetes.io/name itself; leave it out'],
  [
    { agent: { podLabels: { 'cotenant.io/component': 'a' } } },
    'the chart sets cotenant.io/component itself; leave it out',
  ],
  [{ webhook: { port: 8080 } }, 'webhook.healthPort and webhook.port are both 8080'],
  [{ scheduler: { port: 9841 } }, 'scheduler.healthPort and scheduler.port are both 9841'],
  [{ scheduler: { kubeScheduler: { port: 9840 } } }, 'scheduler.kubeScheduler.port and scheduler.port are both 9840'],
  [
    { webhook: { configuration: { schedulerName: 'default-scheduler' } } },
    "default-scheduler is the cluster's own, and a second one of that name would bind its pods; name another one",
  ],
];

testWithHelm('settings that exclude each other are refused, with what is right', (t) => {
  for (const [values, said] of CLASHING) {
    const { ok, text } = render(values);
    t.false(ok, said);
    t.true(text.includes(said), text);
  }
});

testWithHelm('a release may have any name that helm takes, and its labels are texts', (t) => {
  const labelsOf = (release: string, ...args: readonly string[]) => {
    const { ok, text } = helm(['template', release, CHART, ...args]);
    if (!ok) return text;
    const found = find(
      parseAllDocuments(text, { version: '1.1' }).map((document) => document.toJS() as Json),
      'DaemonSet',
      'gpus-agent',
    );
    return found.spec?.selector?.matchLabels?.['app.kubernetes.io/instance'] as unknown;
  };
  for (const release of ['1', '1e3', 'on', 'a.b']) t.is(labelsOf(release, '--set', 'fullnameOverride=gpus'), release);
  t.regex(String(labelsOf('a.b')), /no Service can be named a\.b-cotenant-agent: set fullnameOverride/);
  t.regex(String(labelsOf('1')), /no Service can be named 1-cotenant-agent: set fullnameOverride/);
});

testWithHelm("labels of a component's pods take precedence over common ones, each key once", (t) => {
  const labels = { commonLabels: { team: 'a', site: 'x' }, webhook: { podLabels: { team: 'b' } } };
  const { metadata, spec } = find(objectsOf(t, labels), 'Deployment', 'cotenant-webhook');
  t.like(metadata?.labels, { team: 'a', site: 'x' });
  t.like(spec?.template?.metadata?.labels, { team: 'b', site: 'x' });
});

testWithHelm('a dialect that does not exist is refused, with those that do', (t) => {
  for (const path of ['webhook.configuration.rules.dialects', 'webhook.configuration.namespaces.research.dialects']) {
    const { ok, text } = render(at(path.split('.'), ['gaia']));
    t.false(ok, path);
    t.regex(
      text,
      /dialects\/0': value must be one of 'ack', 'metagpu', 'hami', 'volcano', 'vgpu-manager', 'tke', 'koordinator'/,
    );
  }
});

testWithHelm('values of an older chart still work (helm upgrade --reuse-values)', (t) => {
  const rendered = (given: object) => objectsOf(t, { ...given }).map((object) => JSON.stringify(object));
  const parts = ['csi', 'nri', 'webhook', 'policies', 'scheduler', 'uninstallCheck'];
  const off = (names: readonly string[]) => Object.fromEntries(names.map((part) => [part, { enabled: false }]));
  // What such values do not speak of is off, however it is by default.
  const agentAlone = rendered(off(parts));
  const older = [...parts, 'serviceMonitor', 'prometheusRule', 'alertmanagerConfig', 'grafanaDashboard'];
  t.deepEqual(rendered(Object.fromEntries(older.map((part) => [part, null]))), agentAlone);
  for (const part of older) t.deepEqual(rendered({ ...off(parts), [part]: null }), agentAlone, part);
});

testWithHelm('names follow the release and can be set; a default node label can be removed', (t) => {
  const name = (given: object, release = 'cotenant') => {
    const { text } = helm([
      'template',
      release,
      CHART,
      '--namespace',
      NAMESPACE,
      ...Object.entries(given).flatMap(([key, value]) => ['--set', `${key}=${value}`]),
    ]);
    return /kind: DaemonSet\nmetadata:\n {2}name: (\S+)/.exec(text)?.[1];
  };
  t.is(name({}), 'cotenant-agent');
  t.is(name({}, 'gpu'), 'gpu-cotenant-agent');
  t.is(name({ nameOverride: 'sharing' }, 'gpu'), 'gpu-sharing-agent');
  t.is(name({ fullnameOverride: 'own' }, 'gpu'), 'own-agent');
  const chosen = { agent: { nodeSelector: { 'nvidia.com/gpu.present': null, pool: 'gpu' } } };
  const { spec } = find(objectsOf(t, chosen), 'DaemonSet', 'cotenant-agent');
  t.deepEqual(spec?.template?.spec?.nodeSelector as unknown, { pool: 'gpu' });
});

testWithHelm('the notes after installation list the parts installed, to do and missing', (t) => {
  const notes = (...switches: readonly string[]) => {
    const { ok, text } = helm([
      'install',
      'cotenant',
      CHART,
      '--namespace',
      NAMESPACE,
      '--dry-run=client',
      ...switches.flatMap((each) => ['--set', each]),
    ]);
    t.true(ok, text);
    return text.split('NOTES:')[1] ?? '';
  };
  const NOT_WHOLE = /NO POD GETS A SHARE OF A GPU LIKE THIS/;
  const all = notes();
  t.notRegex(all, NOT_WHOLE);
  t.regex(all, /agent {6}on nodes with the labels \{"nvidia.com\/gpu.present":"true"\}; metrics on port 9837/);
  t.regex(all, /webhook {4}patches pods[^\n]*\n {2}policies[^\n]*\n {2}scheduler {2}"cotenant-scheduler"/);
  t.regex(all, /kubectl label namespace cotenant-system pod-security.kubernetes.io\/enforce=privileged/);
  t.regex(all, /containerd 2\.1 or newer[^\n]*\/var\/run\/nri\/nri\.sock/);
  t.regex(all, /replicas create and renew its certificate/);
  t.regex(all, /`helm uninstall` is refused while pods/);
  for (const [part, missing] of [
    ['agent', /The agent is off \(agent.enabled\)/],
    ['csi', /csi.enabled is off/],
    ['webhook', /The webhook is off/],
    ['scheduler', /The scheduler is off/],
  ] as const) {
    const rendered = notes(`${part}.enabled=false`);
    t.regex(rendered, NOT_WHOLE, part);
    t.regex(rendered, missing);
    t.notRegex(rendered, /first-share/, part);
  }
  t.regex(notes('nri.enabled=false'), /CONTAINERS GET NO GPUS/);
  t.regex(
    notes('nri.enabled=false', 'webhook.configuration.deviceRoute=environment'),
    /must run under NVIDIA's runtime \(webhook.configuration.runtimeClassName\)[^\n]*\n {2}driverCapabilities [^\n]* mode "legacy" only/,
  );
  t.notRegex(all, /legacy/);
  t.regex(notes('webhook.certificate.source=generated'), /helm created the webhook's certificate, valid for 365 days/);

  // The pod to try is one that the webhook makes one with a share, and the commands are there.
  const manifest = /<<'EOF'\n([\s\S]*?)\n {2}EOF/.exec(all)?.[1] ?? '';
  t.like(answerOf(creation(parse(manifest.replace(/^ {2}/gm, '')))), { outcome: 'patched', denial: undefined });
  const commands = [...all.matchAll(/kubectl cotenant (\S+)(.*)/g)].map(([, name = '', rest = '']) => [
    name,
    rest.trim(),
  ]);
  t.deepEqual(commands, [
    [inspect.name, ''],
    [why.name, 'first-share'],
  ]);
});

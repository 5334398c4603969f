// `cotenant convert` and `cotenant templates`: what is found in manifests, and that it is what the webhook does.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'ava';
import { parse, parseAllDocuments } from 'yaml';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import { convertDocument } from '../../../src/cli/commands/planning/convert.ts';
import { templateLines } from '../../../src/cli/commands/planning/templates.ts';
import type { JsonObject } from '../../../src/common/json.ts';
import { blocks, ROOT, readPage, section } from '../../support/docs.ts';
import { answerOf, configured, creation } from '../webhook/reviews.ts';

const all = configured({ rules: { dialects: FOREIGN_DIALECT_NAMES } });
const limited = (limits: object, name = 'main') => ({ name, resources: { limits } });
const podSpec = (limits: object) => ({ containers: [limited(limits), { name: 'side' }] });
const HAMI = { 'nvidia.com/gpu': 1, 'nvidia.com/gpumem': 10240 };

const TRAIN = {
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name: 'train' },
  spec: { template: { metadata: { labels: { app: 'x' } }, spec: podSpec(HAMI) } },
};
const NOTEBOOK = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'notebook' },
  spec: { containers: [limited({ 'tencent.com/vcuda-core': 150 })] },
};

/** The program with manifests on its standard input. */
function run(input: string | Buffer, ...args: readonly string[]) {
  const program = join(ROOT, 'src/cli/main.ts');
  const { stdout, stderr, status } = spawnSync(process.execPath, [program, ...args], { input, encoding: 'utf8' });
  return { stdout, stderr, status };
}
const yamlOf = (...objects: readonly object[]) => objects.map((object) => JSON.stringify(object)).join('\n---\n');

test('the share of each container, and the refusal, as the page on commands shows them', (t) => {
  const [example = ''] = blocks(section(readPage('docs/use/cli.md'), '## cotenant convert'), '');
  const { stdout, status } = run(yamlOf(TRAIN, NOTEBOOK), 'convert', '-f', '-');
  t.deepEqual([...stdout.trimEnd().split('\n'), String(status)], example.trimEnd().split('\n').slice(1));
});

test('pods are found in objects of any kind, with their places', (t) => {
  const template = { spec: podSpec({ 'aliyun.com/gpu-mem': 3 }) };
  const objects: Record<string, object> = {
    'spec.jobTemplate.spec.template': { jobTemplate: { spec: { template } } },
    'spec.headGroupSpec.template': { headGroupSpec: { template } },
    'spec.replicatedJobs[0].template.spec.template': { replicatedJobs: [{ template: { spec: { template } } }] },
    'spec.leaderWorkerTemplate.workerTemplate': { leaderWorkerTemplate: { workerTemplate: template } },
    'spec.tasks[0].template': { tasks: [{ template }] },
    'spec.pytorchReplicaSpecs.Worker.template': { pytorchReplicaSpecs: { Worker: { template } } },
  };
  for (const [place, spec] of Object.entries(objects)) {
    const { pods } = convertDocument({ kind: 'Some', metadata: { name: 'x' }, spec }, all);
    t.like(pods, { length: 1, 0: { object: 'Some/x', place, outcome: 'share' } }, place);
  }
  t.deepEqual(convertDocument({ kind: 'Service', metadata: { name: 'x' }, spec: { ports: [] } }, all).pods, []);
});

test('a manifest becomes what the webhook would make of its pods, and so again', (t) => {
  const { after } = convertDocument(TRAIN, all);
  const { template } = (after as typeof TRAIN).spec;
  t.deepEqual(template as unknown as JsonObject, answerOf(creation(TRAIN.spec.template), all).pod);
  t.deepEqual(convertDocument(after as JsonObject, all).after, after);
  t.deepEqual(convertDocument(NOTEBOOK, all).after, NOTEBOOK);
});

test('lists, several documents and forms of output', (t) => {
  const list = { apiVersion: 'v1', kind: 'List', items: [TRAIN, { kind: 'Service', metadata: { name: 's' } }] };
  const yaml = run(yamlOf(list, TRAIN), 'convert', '-f', '-', '-o', 'yaml');
  const documents = [parseAllDocuments(yaml.stdout)].flat().map((document) => document.toJS());
  t.deepEqual(
    documents.map(({ kind }) => kind),
    ['Deployment', 'Service', 'Deployment'],
  );
  const json = run(yamlOf(TRAIN), 'convert', '-f', '-', '-o', 'json');
  t.like(parse(json.stdout)[0], { object: 'Deployment/train', outcome: 'share' });
  t.is(run('', 'convert', '-f', '-').stdout, 'there are no pods in these manifests\n');
});

// sigs.k8s.io/yaml, goyaml.v2/resolve.go: keys merge, `on` and `yes` are true, dates and 1:30 stay texts.
test('manifests are read as kubectl reads them, and can be read back by it', (t) => {
  const text = `
x: &amounts {nvidia.com/gpu: 1, nvidia.com/gpumem: 4_096}
kind: Pod
metadata: {annotations: {a: "on", b: "0777", c: "0o17", d: 1:30, e: 2001-01-01, f: "1_000"}}
spec:
  hostNetwork: yes
  containers:
    - name: main
      image: x
      resources: {limits: &limits {<<: *amounts, cpu: 1}, requests: *limits}
`;
  const [pod] = parse(run(text, 'convert', '-f', '-', '-o', 'json').stdout);
  t.is(pod.containers[0].share.meaning, '4096 MiB of one GPU');
  const yaml = run(text, 'convert', '-f', '-', '-o', 'yaml').stdout;
  const after = parseAllDocuments(yaml, { version: '1.1' })[0]?.toJS();
  t.like(after.metadata.annotations, { a: 'on', b: '0777', c: '0o17', d: '1:30', e: '2001-01-01', f: '1_000' });
  t.is(after.spec.hostNetwork, true);
  t.like(parse(yaml), after);
  t.notRegex(yaml, /[&*]\w/);
});

test('objects of JSON may follow one another, and a key may be there once', (t) => {
  const stream = `${JSON.stringify(TRAIN, null, 2)}\n\n${JSON.stringify(NOTEBOOK)}\n${JSON.stringify(TRAIN)}\n`;
  t.is(parse(run(stream, 'convert', '-f', '-', '-o', 'json').stdout).length, 3);
  t.is(run('\n{"kind": "A", "kind": "B"}', 'convert', '-f', '-').status, 0, 'JSON is parsed as JSON');
  t.regex(run('a: 1\na: 2', 'convert', '-f', '-').stderr, /^cotenant: -: Map keys must be unique at line 2,/);
});

test('a pod from a cluster is read as it was created, without its node and grant', (t) => {
  const metadata = { name: 'p', uid: '8f0b', annotations: { a: 'b', 'cotenant.io/grant': '{}' } };
  const spec = { ...podSpec({ 'nvidia.com/gpu': '1', 'nvidia.com/gpumem': '3k' }), nodeName: 'node-1' };
  const live = { kind: 'Pod', metadata, spec, status: { phase: 'Running' } };
  for (const given of [live, { kind: 'List', items: [live] }]) {
    const { stdout, status } = run(JSON.stringify(given), 'convert', '-f', '-', '-o', 'yaml');
    t.is(status, 0, stdout);
    const after = parse(stdout, { version: '1.1' });
    t.is(after.metadata.annotations.a, 'b');
    t.false('cotenant.io/grant' in after.metadata.annotations);
    t.is(after.spec.nodeName, undefined);
  }
  // As written, it is refused all the same.
  const written = { ...live, metadata: { name: 'p' } };
  t.regex(run(JSON.stringify(written), 'convert', '-f', '-').stdout, /spec\.nodeName: "node-1" bypasses the scheduler/);
});

test('the manifests of a folder are read in the order of their names', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'manifests-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  t.regex(run('', 'convert', '-f', folder).stderr, /: has no files that end with \.yaml, \.yml or \.json\n$/);
  for (const [name, object] of [
    ['b.yaml', 'Pod/b'],
    ['a.json', 'Pod/a'],
    ['README.md', 'Pod/c'],
  ] as const)
    writeFileSync(
      join(folder, name),
      JSON.stringify({ kind: 'Pod', metadata: { name: object.slice(4) }, spec: { containers: [] } }),
    );
  const pods = parse(run('', 'convert', '-f', folder, '-o', 'json').stdout);
  t.deepEqual(
    pods.map(({ object }: { object: string }) => object),
    ['Pod/a', 'Pod/b'],
  );
});

test('faults of the command line and of files are one sentence', (t) => {
  const cases: readonly (readonly [input: string | Buffer, args: readonly string[], expected: RegExp])[] = [
    ['', [], /^cotenant: want at least one -f FILE\n$/],
    ['', ['-f', '/nowhere'], /^cotenant: \/nowhere: there is no such file\n$/],
    ['a: [', ['-f', '-'], /^cotenant: -: /],
    ['', ['-f', ''], /^cotenant: "": there is no such file\n$/],
    ['a: *b', ['-f', '-'], /^cotenant: -: document 1: Unresolved alias .*: b\n$/],
    ['a: &a [*a]', ['-f', '-'], /^cotenant: -: document 1: Converting circular structure to JSON\n$/],
    [
      'a:\n  {{- if .b }}',
      ['-f', '-'],
      /\nit has marks of a template \({{ }}\): render it first, as with "helm template"\n$/,
    ],
    [
      '{}\n---\n{}',
      ['-f', '/dev/null', '--config', '-'],
      /^cotenant: -: has several documents; want one, with the settings\n$/,
    ],
    [Buffer.from('a: 1', 'utf16le').fill(0xff, 0, 1), ['-f', '-'], /^cotenant: -: is no text in UTF-8; save it in /],
    ['7', ['-f', '-'], /^cotenant: -: document 1 is not an object of Kubernetes\n$/],
  ];
  for (const [input, args, expected] of cases) {
    const { stderr, status } = run(input, 'convert', ...args);
    t.regex(stderr, expected);
    t.is(status, 2);
  }
});

test('names of a dialect that is off are named', (t) => {
  const { pods } = convertDocument(TRAIN, configured({}));
  t.like(pods[0], { outcome: 'untouched' });
  t.deepEqual(pods[0]?.unread, ['nvidia.com/gpu', 'nvidia.com/gpumem']);
  const unknown = {
    kind: 'Pod',
    spec: podSpec({ cpu: 1, 'nvidia.com/vgpu': 1, 'amd.com/gpu': 1, 'example.com/fpga': 1, 'example.com/gpu': 0 }),
  };
  t.deepEqual(convertDocument(unknown, all).pods[0]?.unread, ['nvidia.com/vgpu', 'amd.com/gpu']);
  t.regex(
    run(yamlOf(unknown), 'convert', '-f', '-').stdout,
    /: asks for no share.*\n {2}nvidia\.com\/vgpu is not read: no dialect has it, and the pod waits for a node that does\n/,
  );
  const fraction = {
    kind: 'Pod',
    metadata: { annotations: { 'gpu-fraction': '0.5' } },
    spec: { containers: [{ name: 'a' }] },
  };
  t.deepEqual(convertDocument(fraction, configured({})).pods[0]?.unread, ['gpu-fraction']);
});

test('templates of a namespace, from settings or the ConfigMap with them', (t) => {
  const settings = 'rules: {templates: {small: {gpuMemory: 4Gi}, large: {gpu: 2, gpuMemory: 64Gi, gpuCores: 100}}}';
  const [, ...expected] = (blocks(section(readPage('docs/use/cli.md'), '## cotenant templates'), '')[0] ?? '')
    .trimEnd()
    .split('\n');
  const configMap = JSON.stringify({ kind: 'ConfigMap', data: { 'configuration.yaml': settings } });
  const values = JSON.stringify({ agent: {}, webhook: { configuration: parse(settings) } });
  for (const input of [settings, configMap, values])
    t.deepEqual(run(input, 'templates', '--config', '-').stdout.trimEnd().split('\n'), expected);
  const other = run('{"kind": "ConfigMap", "data": {"a": "b"}}', 'templates', '--config', '-').stderr;
  t.is(other, 'cotenant: -: the ConfigMap has no settings: want the key configuration.yaml or rules.yaml\n');
  t.deepEqual(templateLines(new Map()), ['no templates are configured']);
});

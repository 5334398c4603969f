// What the pages say in examples and tables is what the code does.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { parse } from 'yaml';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import { parsePodRequest } from '../../../src/api/request-annotation.ts';
import { parseConfiguration } from '../../../webhook/config.ts';
import { createMetrics } from '../../../webhook/metrics.ts';
import { answerOf, configured, creation, sharePod } from './reviews.ts';

const page = (name: string) => readFileSync(join(import.meta.dirname, '../../../docs', name), 'utf8');
const blocks = (name: string, language: string) =>
  [...page(name).matchAll(new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\``, 'gm'))].map((match) => match[1] ?? '');

test('every pod of the page on requests is patched', (t) => {
  const pods = blocks('use/requests.md', 'yaml').map((text) => parse(text));
  t.is(pods.length, 8);
  const all = configured({ rules: { dialects: FOREIGN_DIALECT_NAMES } });
  for (const pod of pods)
    t.like(answerOf(creation(pod), all), { outcome: 'patched', denial: undefined }, pod.metadata.name);
});

test('the refusal and the record that the page shows are the real ones', (t) => {
  const [refusal = ''] = blocks('use/requests.md', 'text');
  const limits = { 'cotenant.io/gpu-memory': '4G' };
  t.is(answerOf(creation(sharePod({ resources: { limits } }))).denial, `422 Invalid: ${refusal.trim()}`);
  const [record = ''] = blocks('use/requests.md', 'json');
  t.true(parsePodRequest(record.trim()).ok);
});

test('the configuration in the page is valid and has every setting', (t) => {
  const [text = ''] = blocks('operate/webhook.md', 'yaml');
  const settings = parse(text);
  const read = parseConfiguration(settings);
  t.true(read.ok);
  if (!read.ok) return;
  t.deepEqual(Object.keys(read.value).sort(), Object.keys(settings).sort());
  t.deepEqual(Object.keys(read.value.rules).sort(), Object.keys(settings.rules).sort());
  t.deepEqual(read.value.namespaces.get('research')?.dialects, ['ack', 'metagpu']);
});

test('a pod patched under another setting is refused with the field’s name', (t) => {
  const [old, now] = [configured(), configured({ deviceRoute: 'environment' })];
  for (const [one, other] of [
    [old, now],
    [now, old],
  ]) {
    const { pod } = answerOf(creation(sharePod()), one);
    t.true(answerOf(creation(pod), one, 'validate').allowed);
    t.regex(
      answerOf(creation(pod), other, 'validate').denial ?? '',
      /^403 Forbidden: [a-z]+\..* is not what the mutating/,
    );
  }
});

test('exactly the variables that the page lists are removed', (t) => {
  const rows = page('operate/webhook.md').split('Variables that are removed')[1]?.split('## ')[0] ?? '';
  const [table = '', after = ''] = rows.split('\n`LD_PRELOAD`');
  const cells = table.split('\n').map((row) => row.split('|')[1] ?? '');
  const removed = cells.flatMap((cell) => [...cell.matchAll(/`([A-Z_]+)\*?`/g)].map((match) => match[1] ?? ''));
  const kept = ['LD_PRELOAD', ...[...after.matchAll(/`([A-Z_]+)`/g)].map((match) => match[1] ?? '')];
  t.true(removed.length >= 12 && kept.length === 3, `${removed} ${kept}`);
  const env = [...removed.map((name) => (name.endsWith('_') ? `${name}X` : name)), ...kept].map((name) => ({ name }));
  const { pod } = answerOf(creation(sharePod({ env })));
  const [main] = (pod.spec as { containers: { env: { name: string }[] }[] }).containers;
  const left = main?.env.map(({ name }) => name).filter((name) => !name.startsWith('NVIDIA_'));
  t.deepEqual(left, kept);
});

test('the metrics that the page names are those that are served', async (t) => {
  const named = [...page('operate/webhook.md').matchAll(/^\| `(cotenant_webhook_\w+)/gm)].map((match) => match[1]);
  const served = [...(await createMetrics().render()).matchAll(/^# TYPE (cotenant_\S+)/gm)].map((match) => match[1]);
  t.deepEqual(named.sort(), served.sort());
});

test('the dialects of the page are switched on by their names', (t) => {
  const limitsOf: Record<(typeof FOREIGN_DIALECT_NAMES)[number], object> = {
    ack: { 'aliyun.com/gpu-mem': '1' },
    metagpu: { 'cnvrg.io/metagpu': '1' },
    hami: { 'nvidia.com/gpu': '1' },
    volcano: { 'volcano.sh/vgpu-number': '1' },
    'vgpu-manager': { 'nvidia.com/vgpu-number': '1' },
    tke: { 'tencent.com/vcuda-core': '100' },
    koordinator: { 'koordinator.sh/gpu': '100' },
    kai: {},
    kubeshare: {},
    nos: { 'nvidia.com/gpu-10gb': '1' },
    nvidia: { 'nvidia.com/gpu': '1' },
    huawei: { 'volcano.sh/gpu-mem.128Mi': '16' },
    volcengine: { 'vke.volcengine.com/mgpu-core': '100' },
    baidu: { 'baidu.com/t4_16g_cgpu': '1' },
  };
  const keysOf: Record<string, object> = {
    kai: { annotations: { 'gpu-fraction': '0.5' } },
    kubeshare: { labels: { 'sharedgpu/gpu_request': '0.5' } },
  };
  for (const [name, limits] of Object.entries(limitsOf)) {
    const pod = creation(sharePod({ resources: { limits } }, {}, keysOf[name]));
    t.true(page('operate/webhook.md').includes(name));
    t.is(answerOf(pod, configured({ rules: { dialects: [name] } })).outcome, 'patched');
    t.is(answerOf(pod, configured({ rules: {} })).outcome, 'allowed');
  }
});

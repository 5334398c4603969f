// docs/operate/scheduler.md: its metrics, sentences, configuration and commands are those of the code and the chart.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { parse as parseYaml } from 'yaml';
import { scheduler } from '../../../src/cli/daemons/scheduler.ts';
import { parse } from '../../../src/cli/lib/command.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { findOvercommittedGpus } from '../../../src/placement/overcommit.ts';
import { EVICTED } from '../../../src/scheduler/evictions/overcommit-evictor.ts';
import { createMetrics } from '../../../src/scheduler/metrics.ts';
import { blocks, quoted, ROOT, readPage, rowsWith, section } from '../../support/docs.ts';
import { clusterOf, parsedRequest, uuid } from '../scheduler/cluster.ts';

const page = readPage('docs/operate/scheduler.md');

test('the metrics of the page are those that are served, with their labels', async (t) => {
  const none = () => 0;
  const metrics = createMetrics();
  metrics.addState({
    ...{ epoch: () => 1, nodes: none, grantedPods: none, bindingsInFlight: none, overcommittedGpus: none },
    invalid: () => ({ nodes: 0, pods: 0 }),
  });
  // A histogram has no labels before its first value.
  metrics.observe('filter', 'ok', 1);
  const text = await metrics.render();
  const served = [...text.matchAll(/^# TYPE (cotenant_\S+)/gm)].map(([, name = '']) => {
    const labels = new RegExp(`^${name}(?:_sum)?\\{(.*)\\} `, 'm').exec(text)?.[1] ?? '';
    const names = [...labels.matchAll(/(\w+)="/g)].map(([, label]) => label);
    return names.length === 0 ? name : `${name}{${names.join(', ')}}`;
  });
  const documented = rowsWith(section(page, '## Metrics'), 'metric').map((row) => quoted(row.metric)[0] ?? '');
  t.deepEqual(documented.toSorted(), served.toSorted());
});

test('the reason of a Pending pod on the page is the one that the extender gives', (t) => {
  const { allocations, decider } = clusterOf({ 'gpu-2': 16_000 });
  const demand = new Map([[uuid(0), { memoryBytes: 15_488 * MIB, coresPercent: 0, tenants: 1 }]]);
  allocations.allocate({ podUid: 'p', nodeName: 'gpu-2', demand });
  const said = decider.filter(parsedRequest(decider, 2048), ['gpu-2']).failed['gpu-2'] ?? '';
  const [shown = ''] = blocks(section(page, '## What a Pending pod shows'), '');
  t.true(shown.replace(/GPU-[0-9a-f-]+/, uuid(0)).includes(said), said);
});

test('the Event on the page about an overcommitted GPU is the one that is written', (t) => {
  const [shown = ''] = blocks(section(page, '## Overcommitted GPUs'), '');
  const gpu = { gpuUuid: uuid(0), index: 0, model: 'x', usableBytes: 16_384 * MIB, healthy: true };
  const demand = new Map([[uuid(0), { memoryBytes: 9216 * MIB, coresPercent: 0, tenants: 1 }]]);
  const pod = { podUid: 'p', demand, epoch: 0, createdMs: 0, state: 'waiting' as const };
  const [said] = findOvercommittedGpus('gpu-2', { mostTenantsPerGpu: 5, gpus: [gpu] }, [pod, pod]);
  const [because, ...what] = shown.trim().split('; ');
  t.is(because?.replace(/GPU-[0-9a-f-]+/, uuid(0)), said?.text);
  t.deepEqual(what, [EVICTED]);
});

test('the configuration of the page is that of the chart, and its command parses', (t) => {
  const [text = ''] = blocks(page, 'yaml');
  const [own] = parseYaml(text).extenders;
  const chart = readFileSync(join(ROOT, 'charts/cotenant/templates/scheduler/_configuration.tpl'), 'utf8');
  for (const key of [
    'filterVerb',
    'prioritizeVerb',
    'preemptVerb',
    'bindVerb',
    'httpTimeout',
    'nodeCacheCapable',
    'ignorable',
  ]) {
    t.true(chart.includes(`${key}: ${own[key]}\n`), key);
  }
  for (const { name, ignoredByScheduler = false } of own.managedResources) {
    t.true(chart.includes(`- name: ${name}\n        ignoredByScheduler: ${ignoredByScheduler}\n`), name);
  }
  const [, shell = ''] = blocks(page, 'sh');
  const words = shell.replaceAll('\\\n', ' ').trim().split(/\s+/);
  t.deepEqual(words.slice(0, 2), ['cotenant', scheduler.name]);
  const parsed = parse(scheduler, words.slice(2));
  t.like(parsed, { operands: [], values: { 'lease-holder': 'self', host: '0.0.0.0' } });
});

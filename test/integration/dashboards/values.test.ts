// What panels say of a small recording that is known: one GPU with two containers, one whole GPU, one that MIG divides
// in two, one soft stop. Judged by promtool, which evaluates each panel's query as Grafana would send it.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { ROOT } from '../../support/docs.ts';
import { testUnless } from '../../support/gate.ts';
import { findPromtool, run } from '../../support/services/promtool.ts';
import { panelQueries } from './answers.ts';
import type { InputSeries } from './node-page.ts';

const found = findPromtool();
const testWithPromtool = testUnless('reason' in found ? found.reason : undefined);

const MINUTES = 120;
const AT = '100m';

type Labels = Readonly<Record<string, string>>;
const TARGET = { job: 'cotenant', instance: 'node-a' };
const written = (labels: Labels) =>
  Object.entries(labels)
    .map(([name, value]) => `${name}="${value}"`)
    .join(', ');
const made = (name: string, labels: Labels, values: string): InputSeries => ({
  series: `${name}{${written({ ...TARGET, ...labels })}}`,
  values,
});
const stands = (name: string, labels: Labels, value: number) => made(name, labels, `${value}x${MINUTES}`);
/** Of a counter: what it gains in each minute. */
const grows = (name: string, labels: Labels, by: number) => made(name, labels, `0+${by}x${MINUTES}`);

/** 0: shared; 1: whole; 2: divided, into 3 and 4. */
const GPUS: readonly (readonly [gpu: string, uuid: string, migMode: string, allocation: string])[] = [
  ['0', 'GPU-0', 'disabled', 'shared'],
  ['1', 'GPU-1', 'disabled', 'exclusive'],
  ['2', 'GPU-2', 'enabled', 'mig'],
  ['3', 'MIG-3', '', 'mig'],
  ['4', 'MIG-4', '', 'none'],
];
/** Total, the driver's own, used and granted. A divided GPU has no memory: its instances have. */
const MEMORY: Readonly<Record<string, readonly [total: number, own: number, used: number, granted: number]>> = {
  '0': [110, 10, 50, 80],
  '1': [100, 0, 20, 0],
  '3': [40, 0, 10, 0],
  '4': [60, 0, 0, 0],
};

const gpus: readonly InputSeries[] = GPUS.flatMap(([gpu, gpu_uuid, mig_mode, allocation]) => {
  const of = { gpu, gpu_uuid };
  const memory = MEMORY[gpu];
  const [total = 0, own = 0, used = 0, granted = 0] = memory ?? [];
  const what = { model: 'NVIDIA H100', pci_bus_id: '0', minor: gpu, driver_version: '580', cuda_version: '13.0' };
  return [
    stands('cotenant_device_info', { ...of, ...what, mig_mode }, 1),
    ...['exclusive', 'shared', 'mig', 'none'].map((mode) =>
      stands('cotenant_device_allocation_mode', { ...of, mode }, mode === allocation ? 1 : 0),
    ),
    // An instance of a GPU that is well counts for no GPU.
    stands('cotenant_device_healthy', of, gpu === '1' || gpu === '3' ? 0 : 1),
    stands('cotenant_device_memory_allocated_bytes', of, granted),
    stands('cotenant_device_sm_allocated_ratio', of, gpu === '0' ? 0.5 : 0),
    stands('cotenant_device_containers', of, { '0': 2, '1': 1, '3': 1 }[gpu] ?? 0),
    ...(memory
      ? [
          stands('cotenant_device_memory_total_bytes', of, total),
          stands('cotenant_device_memory_used_bytes', of, used),
          stands('cotenant_device_memory_unattributed_bytes', of, gpu === '0' ? 5 : 0),
          ...(own > 0 ? [stands('cotenant_device_memory_reserved_bytes', of, own)] : []),
        ]
      : []),
    ...(gpu === '3' || gpu === '4'
      ? [
          stands(
            'cotenant_mig_info',
            {
              ...of,
              parent_gpu: '2',
              parent_uuid: 'GPU-2',
              gpu_instance_id: gpu,
              compute_instance_id: '0',
              profile: '3g.40gb',
            },
            1,
          ),
        ]
      : []),
  ];
});

const who = (pod: string, gpu: string, gpu_uuid: string, mode: string) => ({
  gpu,
  gpu_uuid,
  namespace: pod === 'slice' || pod === 'whole' ? 'lab' : 'team',
  pod,
  container: 'main',
  mode,
});
const [train, serve, whole, slice] = [
  who('train', '0', 'GPU-0', 'shared'),
  who('serve', '0', 'GPU-0', 'shared'),
  who('whole', '1', 'GPU-1', 'exclusive'),
  who('slice', '3', 'MIG-3', 'mig'),
];
/** Two that share, one with a quarter of a minute in each and one that rests; one with a whole GPU; one with an
 * instance. */
const containers: readonly InputSeries[] = [
  stands('cotenant_container_memory_limit_bytes', train, 50),
  stands('cotenant_container_memory_used_bytes', train, 40),
  stands('cotenant_container_memory_limit_bytes', serve, 30),
  stands('cotenant_container_memory_used_bytes', serve, 5),
  stands('cotenant_container_memory_used_bytes', whole, 20),
  stands('cotenant_container_memory_used_bytes', slice, 10),
  grows('cotenant_container_sm_seconds_total', train, 15),
  grows('cotenant_container_sm_seconds_total', serve, 0),
  grows('cotenant_container_sm_seconds_total', whole, 30),
  grows('cotenant_container_allocations_denied_total', train, 2),
  grows('cotenant_container_allocations_denied_total', serve, 0),
  ...(['train', 'serve'] as const).map((pod) =>
    stands('cotenant_container_memory_over_limit', pod === 'train' ? train : serve, 0),
  ),
];

/** One that ended after its SIGTERM had been followed by a SIGKILL; neither has a series before. */
const stop = { namespace: 'team', pod: 'old', container: 'main', gpu_uuid: 'GPU-0', reason: 'over-limit' };
const stops: readonly InputSeries[] = [
  made('cotenant_container_last_kill_timestamp_seconds', { ...stop, action: 'terminate' }, `_x30 1790x${MINUTES}`),
  made('cotenant_container_last_kill_timestamp_seconds', { ...stop, action: 'kill' }, `_x30 1800x${MINUTES}`),
];

const agents: readonly InputSeries[] = [
  ...(['node-a', 'node-b'] as const).flatMap((instance) => [
    stands('up', { instance }, 1),
    stands('cotenant_up', { instance }, instance === 'node-a' ? 1 : 0),
  ]),
  // Something else that the same Prometheus scrapes.
  stands('up', { job: 'other', instance: 'node-a' }, 0),
  stands('cotenant_enforcement_mode', { enforcement: 'enforce' }, 1),
  grows('cotenant_exporter_samplers_abandoned_total', {}, 0),
];

const RECORDED = [...gpus, ...containers, ...stops, ...agents];

type Expected = number | Readonly<Record<string, number>>;
/** By board and panel: of its first query, or of the one with that letter, the one value, or each value by its
 * labels. */
const EXPECTED: Readonly<Record<string, Readonly<Record<string, Expected>>>> = {
  cluster: {
    GPUs: 3,
    // Of the two that are not divided: 80 of 200, and half of one of them.
    'Memory granted': 0.4,
    'Memory used': 80 / 300,
    'Compute granted': 0.25,
    'Agents down': 1,
    // The MIG instance in use has no activity counters.
    'Idle GPUs': 0,
    'Unhealthy GPUs': 1,
    'Stops in 24 h': 1,
    'Memory by namespace': { 'namespace="team"': 45, 'namespace="lab"': 30 },
    'Memory by namespace B': 0,
    'Memory by namespace C': 80,
    'Memory by namespace D': 300,
    'Compute by namespace': { 'namespace="team"': 0.25, 'namespace="lab"': 0.5 },
    'Compute by namespace B': 0,
    'Compute by namespace C': 0.5,
    'Compute by namespace D': 3,
    'Largest free block': { 'instance="node-a", node="node-a"': 100 },
    'Containers per GPU': Object.fromEntries(
      [
        ['0', 'GPU-0', 2],
        ['1', 'GPU-1', 1],
        ['3', 'MIG-3', 1],
        ['4', 'MIG-4', 0],
      ].map(([gpu, gpu_uuid, count]) => [`gpu="${gpu}", gpu_uuid="${gpu_uuid}", ${written(TARGET)}`, Number(count)]),
    ),
    'Granted but unused': { 'namespace="team"': 35 },
    'Namespaces A': { 'namespace="team"': 2 },
    'Namespaces B': { 'namespace="team"': 80 },
    'Namespaces C': { 'namespace="team"': 45, 'namespace="lab"': 30 },
    'Namespaces D': { 'namespace="team"': 0.25, 'namespace="lab"': 0.5 },
    'Namespaces E': { 'namespace="team"': 10 },
    'Nodes A': { 'instance="node-a", node="node-a"': 1, 'instance="node-b", node="node-b"': 0 },
    'Nodes B': { 'instance="node-a", node="node-a"': 3 },
    'Nodes C': { 'instance="node-a", node="node-a"': 4 },
    'Nodes D': { 'instance="node-a", node="node-a"': 200 },
    'Nodes E': { 'instance="node-a", node="node-a"': 80 },
    'Nodes F': { 'instance="node-a", node="node-a"': 80 },
    'Nodes G': { 'instance="node-a", node="node-a"': 100 },
  },
  health: {
    'Agents down': 1,
    'Driver hangs': 0,
    'Nodes A': { 'instance="node-a", node="node-a"': 1, 'instance="node-b", node="node-b"': 0 },
    'Nodes B': { 'instance="node-a", node="node-a"': 3 },
  },
  'node-gpu': {
    Agent: 0,
    'Memory granted': 0.4,
    'Memory used': 80 / 300,
    'Compute used': 0.25,
    'Over their grant': 0,
    'Unhealthy GPUs': 1,
    'Memory by container B': 0,
    'Memory by container D': 5,
    'Memory by container E': 80,
    'Memory by container F': 310,
    'Compute by container B': 0,
    'Compute by container D': 0.5,
  },
  namespace: {
    Containers: 2,
    'Memory granted': 80,
    // Of what is granted: 45 of 80, and 30 of what has no grant.
    'Memory used': 75 / 80,
    'Compute used': 0.75,
    'Memory by container B': 0,
    'Memory by container C': 80,
  },
};

/** `The panel` is its first query, `The panel B` its second. */
function queryOf(board: string, name: string): string {
  const queries = panelQueries({ rateInterval: '5m' }).filter((query) => query.board === board);
  const query = queries.find(({ title, refId }) => name === title || name === `${title} ${refId}`);
  if (query === undefined) throw new Error(`${board} asks nothing as ${name}`);
  return query.expr;
}

const rounded = (value: number) => Math.round(value * 1000) / 1000;
const samplesOf = (expected: Expected) =>
  typeof expected === 'number'
    ? [{ labels: '{}', value: rounded(expected) }]
    : Object.entries(expected).map(([labels, value]) => ({ labels: `{${labels}}`, value: rounded(value) }));

type Asked = { readonly where: string; readonly expr: string; readonly expected: Expected };
const ASKED: readonly Asked[] = Object.entries(EXPECTED).flatMap(([board, panels]) =>
  Object.entries(panels).map(([name, expected]) => ({
    where: `${board}: ${name}`,
    expr: queryOf(board, name),
    expected,
  })),
);

/** Those of which promtool has something else than what is expected. */
function wrong(
  work: string,
  asked: readonly Asked[],
  recorded: readonly InputSeries[] = RECORDED,
): { readonly text: string; readonly where: readonly string[] } {
  const promql_expr_test = asked.map(({ expr, expected }) => ({
    expr: `round(${expr}, 0.001)`,
    eval_time: AT,
    exp_samples: samplesOf(expected),
  }));
  const tests = [{ interval: '1m', input_series: recorded, promql_expr_test }];
  const file = join(work, 'values.yaml');
  writeFileSync(file, stringify({ rule_files: [], evaluation_interval: '1m', tests }));
  const path = 'path' in found ? found.path : 'promtool';
  const { ok, stdout, stderr } = run(path, ['test', 'rules', file], ROOT, 60_000);
  const text = stdout + stderr;
  const failed = new Set([...text.matchAll(/expr: (".*"), time: /g)].map(([, expr]) => JSON.parse(expr ?? '')));
  const where = asked.filter((_, place) => failed.has(promql_expr_test[place]?.expr)).map((each) => each.where);
  return { text, where: ok || where.length > 0 ? where : ['promtool'] };
}

function folder(t: { teardown(end: () => void): void }): string {
  const work = mkdtempSync(join(tmpdir(), 'cotenant-values-'));
  t.teardown(() => rmSync(work, { recursive: true }));
  return work;
}

testWithPromtool('panels that count are right with shared, whole and divided GPUs', (t) => {
  t.true(ASKED.length > 35);
  const { text, where } = wrong(folder(t), ASKED);
  t.deepEqual(where, [], text);
});

testWithPromtool('what a stack leaves out is in its series of others', (t) => {
  // With those of 45 and 30 ten namespaces, of which seven are drawn.
  const more = [1, 2, 3, 4, 5, 6, 7, 8].map((used) =>
    stands('cotenant_container_memory_used_bytes', { ...train, namespace: `small-${used}` }, used),
  );
  const asked = ASKED.filter(({ where }) => where === 'cluster: Memory by namespace B');
  t.is(asked.length, 1);
  const { text, where } = wrong(
    folder(t),
    asked.map((each) => ({ ...each, expected: 1 + 2 + 3 })),
    [...RECORDED, ...more],
  );
  t.deepEqual(where, [], text);
});

testWithPromtool('idle GPUs by kernels, and idle MIG instances by hardware counters', (t) => {
  const where = 'cluster: Idle GPUs';
  const rest = RECORDED.filter(({ series }) => !/sm_seconds_total.*pod="(whole|train)"/.test(series));
  const resting = [whole, train].map((of) => grows('cotenant_container_sm_seconds_total', of, 0));
  const active = (value: number) =>
    stands('cotenant_device_sm_active_ratio', { gpu: slice.gpu, gpu_uuid: slice.gpu_uuid }, value);
  for (const [recorded, expected] of [
    [[...rest, ...resting], 2],
    [[...rest, ...resting, active(0)], 3],
    [[...rest, ...resting, active(0.2)], 2],
    [[...RECORDED, active(0)], 1],
  ] as const) {
    const { text, where: failed } = wrong(
      folder(t),
      ASKED.filter((each) => each.where === where).map((each) => ({ ...each, expected })),
      recorded,
    );
    t.deepEqual(failed, [], text);
  }
});

/** What a hand could get wrong about the divided GPU, the instance of which nothing is reported, and the stop with two
 * steps. */
const FAULTS: readonly (readonly [where: string, from: string | RegExp, to: string])[] = [
  ['cluster: GPUs', ', mig_mode!=""', ''],
  ['cluster: Memory granted', ', mig_mode="disabled"', ''],
  ['node-gpu: Memory granted', ', mig_mode="disabled"', ''],
  ['node-gpu: Memory granted', / - cotenant_device_memory_reserved_bytes\{.*?\}/, ''],
  ['cluster: Memory used', / - cotenant_device_memory_reserved_bytes\{.*?\} or/, ' or'],
  ['cluster: Compute granted', 'mig_mode="disabled"', 'mig_mode!=""'],
  ['cluster: Idle GPUs', ' and on (instance, gpu_uuid) ((', ' unless on (instance, gpu_uuid) (('],
  ['cluster: Idle GPUs', ' == 0', ' < 1'],
  ['cluster: Unhealthy GPUs', ', mig_mode!=""', ''],
  ['cluster: Stops in 24 h', 'max without (action)', 'sum without (action)'],
  ['cluster: Stops in 24 h', /\(min_over_time.*?\(time\(\) - \d+\)\)/, '0'],
  ['cluster: Compute by namespace D', ', mig_mode!=""', ''],
  ['cluster: Containers per GPU', ', mig_mode!="enabled"', ''],
  ['cluster: Nodes B', ', mig_mode!=""', ''],
  ['cluster: Nodes D', ', mig_mode="disabled"', ''],
  ['health: Agents down', ', job="cotenant"', ''],
  ['health: Nodes B', ', mig_mode!=""', ''],
];

testWithPromtool('mutations of such panels are found', (t) => {
  const broken = FAULTS.map(([where, from, to]) => {
    const right = ASKED.find((each) => each.where === where);
    const expr = right?.expr.replace(from, to) ?? '';
    t.not(expr, right?.expr, `${where}: nothing to replace by ${to}`);
    return { where: `${where}: ${to}`, expr, expected: right?.expected ?? 0 };
  });
  const { text, where } = wrong(folder(t), broken);
  t.deepEqual(
    where,
    broken.map((each) => each.where),
    text,
  );
});

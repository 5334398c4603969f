// Pods of another system while it is alive in the cluster: what shows that it is, and that its pods are left to it.
// Names of webhooks and schedulers: charts of Project-HAMi/HAMi (webhook vgpu.hami.io) and NVIDIA/KAI-Scheduler
// (Deployment kai-scheduler-default in its namespace).
import test from 'ava';
import { FOREIGN_DIALECTS } from '../../../src/request/dialects/index.ts';
import {
  type ForeignSystems,
  signsOfDeployment,
  signsOfNode,
  signsOfWebhooks,
  systemsOf,
} from '../../../webhook/foreign-systems.ts';
import { answerOf, configured, creation, sharePod } from './reviews.ts';

const node = (allocatable: Record<string, string>) => ({ metadata: { name: 'n1' }, status: { allocatable } });
const webhooks = (...names: string[]) => ({ webhooks: names.map((name) => ({ name })) }) as never;
const deployment = (namespace: string, name: string, availableReplicas = 1) => ({
  metadata: { namespace, name },
  status: { availableReplicas },
});
const asking = (limits: object, metadata: object = {}, spec: object = {}) =>
  sharePod({ resources: { limits } }, spec, metadata);

test('a device plugin is alive while a node has an amount of its resource', (t) => {
  const alive = (allocatable: Record<string, string>) => [...systemsOf(signsOfNode(node(allocatable)))];
  t.deepEqual(alive({ cpu: '8', 'aliyun.com/gpu-mem': '15' }), [['ack', 'node n1 has aliyun.com/gpu-mem']]);
  t.deepEqual(alive({ 'aliyun.com/gpu-mem': '0', 'cotenant.io/gpu': '16' }), []);
  t.deepEqual(alive({ 'nvidia.com/gpu': '8' }), [
    ['hami', 'node n1 has nvidia.com/gpu'],
    ['nvidia', 'node n1 has nvidia.com/gpu'],
  ]);
  t.deepEqual(alive({ 'nvidia.com/gpu-10gb': '4' }), [['nos', 'node n1 has nvidia.com/gpu-10gb']]);
  t.deepEqual(signsOfNode({}), []);
});

test('a webhook and a scheduler that runs show their system, by name and namespace', (t) => {
  t.deepEqual(signsOfWebhooks(webhooks('x.example.com', 'vgpu.hami.io')), [
    { dialect: 'hami', found: 'webhook vgpu.hami.io' },
  ]);
  t.deepEqual(signsOfWebhooks({}), []);
  const kai = ['kai-scheduler', 'kai-scheduler-default'] as const;
  t.deepEqual(signsOfDeployment(deployment(...kai)), [
    { dialect: 'kai', found: 'Deployment kai-scheduler/kai-scheduler-default' },
  ]);
  t.deepEqual(signsOfDeployment(deployment(...kai, 0)), []);
  // Tenants can make Deployments of any name in their own namespaces.
  t.deepEqual(signsOfDeployment(deployment('team-a', 'kai-scheduler-default')), []);
});

test('each dialect has a sign by which its system is found', (t) => {
  for (const { name, resources, signs } of FOREIGN_DIALECTS)
    t.true(resources.length + (signs?.webhooks ?? []).length + (signs?.deployments ?? []).length > 0, name);
});

const everywhere = { dialects: ['ack', 'hami', 'kai', 'tke'] };
const withSystems = (systems: [string, string][], settings: object = {}) => ({
  ...configured({ rules: everywhere, ...settings }),
  systems: new Map(systems) as unknown as ForeignSystems,
});

const HAMI: [string, string] = ['hami', 'webhook vgpu.hami.io'];
const KAI: [string, string] = ['kai', 'Deployment kai-scheduler/kai-scheduler-default'];

test('a pod of a living system is left as it is, with one warning', (t) => {
  const configuration = withSystems([HAMI, KAI]);
  const left: Record<string, [pod: ReturnType<typeof asking>, dialect: string]> = {
    resources: [asking({ 'nvidia.com/gpu': '1', 'nvidia.com/gpumem': '1024' }), 'hami'],
    'two containers': [
      asking(
        { 'nvidia.com/gpu': '1' },
        {},
        { initContainers: [{ name: 'i', resources: { limits: { 'nvidia.com/gpu': '1' } } }] },
      ),
      'hami',
    ],
    annotations: [asking({}, { annotations: { 'gpu-fraction': '0.5' } }), 'kai'],
    'what it would refuse': [asking({ 'nvidia.com/gpu': '1', 'nvidia.com/gpumem': 'x' }), 'hami'],
    'its variables and rights': [
      sharePod({
        env: [
          { name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' },
          { name: 'CUDA_DISABLE_CONTROL', value: 'true' },
        ],
        securityContext: { privileged: true },
        resources: { limits: { 'nvidia.com/gpu': '1' } },
      }),
      'hami',
    ],
  };
  for (const [what, [pod, dialect]] of Object.entries(left)) {
    const { outcome, warnings, patch } = answerOf(creation(pod), configuration);
    t.deepEqual([outcome, patch, warnings.length], ['allowed', [], 1], what);
    t.regex(warnings[0] ?? '', new RegExp(`^rule foreignSystems: left to ${dialect}, which is alive here: `), what);
    t.like(answerOf(creation(pod), configuration, 'validate'), { outcome: 'allowed', warnings: [] }, what);
  }
});

test('other dialects and our own names are read while a system is alive', (t) => {
  const configuration = withSystems([HAMI]);
  for (const limits of [{ 'aliyun.com/gpu-mem': 1 }, { 'cotenant.io/gpu-memory': '1Gi' }])
    t.like(answerOf(creation(asking(limits)), configuration), { outcome: 'patched', warnings: [] });
  t.is(answerOf(creation(asking({ cpu: '1' })), configuration).warnings.length, 0);
  t.like(answerOf(creation(asking({ 'nvidia.com/gpu': 1 })), withSystems([])), { outcome: 'patched' });
});

test('a share beside a resource of a living system stays refused', (t) => {
  const spec = { initContainers: [{ name: 'i', resources: { limits: { 'nvidia.com/gpu': '1' } } }] };
  t.regex(
    answerOf(creation(asking({ 'cotenant.io/gpu-memory': '1Gi' }, {}, spec)), withSystems([HAMI])).denial ?? '',
    /^422 Invalid: spec\.initContainers\[0\].*is given by NVIDIA's device plugin/,
  );
});

test('a namespace that ignores living systems reads their dialects', (t) => {
  const configuration = withSystems([HAMI], { namespaces: { 'team-b': { foreignSystems: 'ignore' } } });
  const pod = asking({ 'nvidia.com/gpu': '1', 'nvidia.com/gpumem': '1024' });
  t.is(answerOf(creation(pod), configuration).outcome, 'allowed');
  const there = answerOf(creation(pod, { namespace: 'team-b' }), configuration);
  t.is(there.outcome, 'patched');
  // What was patched there stays so.
  t.deepEqual(answerOf(creation(there.pod, { namespace: 'team-b' }), configuration).patch, []);
});

test('a dialect that is off gets no warning of its system', (t) => {
  const configuration = withSystems([['koordinator', 'node n1 has koordinator.sh/gpu-core']]);
  t.like(answerOf(creation(asking({ 'koordinator.sh/gpu': '50' })), configuration), {
    outcome: 'allowed',
    warnings: [],
  });
});

import test from 'ava';
import { formatNodeGpus, type NodeGpus, parseNodeGpus } from '../../../src/api/node-annotation.ts';
import {
  buildCondition,
  buildNodePatch,
  FENCES_HOLD,
  GPUS_HEALTHY,
  type NodePatch,
  shows,
} from '../../../src/kube/node-status.ts';

const GPUS: NodeGpus = {
  mostTenantsPerGpu: 50,
  gpus: [22_600, 22_601, 14_940].map((mib, index) => ({
    gpuUuid: `GPU-00000000-0000-4000-8000-00000000000${index}`,
    index,
    model: 'NVIDIA L4',
    usableBytes: mib * 2 ** 20,
    healthy: index < 2,
  })),
};
const patch = buildNodePatch(GPUS, 0);

test('amounts include unhealthy GPUs, which the annotation marks', (t) => {
  const amounts = { 'cotenant.io/gpu-memory': String(60_141 * 2 ** 20), 'cotenant.io/gpu-cores': '300' };
  const withSlots = { ...amounts, 'cotenant.io/gpu': '150' };
  t.deepEqual(patch.status, { capacity: withSlots, allocatable: withSlots });
  t.deepEqual(
    buildNodePatch(GPUS, undefined).status,
    { capacity: amounts, allocatable: amounts },
    'a device plugin counts slots',
  );
  t.deepEqual(parseNodeGpus(patch.metadata.annotations['cotenant.io/gpus'] ?? ''), { ok: true, value: GPUS });
});

const nodeOf = ({ metadata, status }: NodePatch) => ({
  metadata: { name: 'node-1', annotations: { other: 'x', ...metadata.annotations } },
  status: {
    capacity: { cpu: '2', ...status.capacity },
    allocatable: { cpu: '1900m', ...status.allocatable },
  },
});

test('a Node is up to date however the server writes the amounts', (t) => {
  const node = nodeOf(patch);
  t.true(shows(node, patch));
  for (const text of ['60141Mi', `${60_141 * 1024}Ki`, '63062409216.0'])
    t.true(
      shows(
        { ...node, status: { ...node.status, capacity: { ...node.status.capacity, 'cotenant.io/gpu-memory': text } } },
        patch,
      ),
      text,
    );
});

test('a Node that lacks a value, or has another one, is not up to date', (t) => {
  const node = nodeOf(patch);
  t.false(shows({}, patch));
  t.false(shows({ ...node, metadata: { annotations: {} } }, patch));
  t.false(shows({ ...node, metadata: { annotations: { 'cotenant.io/gpus': 'x' } } }, patch));
  for (const kind of ['capacity', 'allocatable'] as const) {
    for (const name of Object.keys(patch.status[kind])) {
      for (const wrong of ['0', '60142Mi', '60141.5Mi', 'nonsense', '']) {
        const amounts = { ...node.status[kind], [name]: wrong };
        t.false(shows({ ...node, status: { ...node.status, [kind]: amounts } }, patch), `${kind} ${name} ${wrong}`);
      }
      const { [name]: _, ...without }: Record<string, string> = node.status[kind];
      t.false(shows({ ...node, status: { ...node.status, [kind]: without } }, patch), `${kind} without ${name}`);
    }
  }
});

test('a condition is written when it changes, and keeps its transition time', (t) => {
  const [first, later] = [new Date('2026-01-01T00:00:00Z'), new Date('2026-01-02T00:00:00Z')];
  const state = { status: 'False', reason: 'FenceFails', message: 'GPU-0: why' } as const;
  t.is(buildCondition(FENCES_HOLD, undefined, {}, first), undefined);
  const condition = buildCondition(FENCES_HOLD, state, {}, first);
  t.like(condition, { ...state, type: 'CotenantFencesHold', lastTransitionTime: first.toISOString() });
  const withCondition = buildNodePatch(GPUS, 0, condition);
  const plain = nodeOf(patch);
  t.false(shows(plain, withCondition));
  const conditions = [
    { type: 'Ready', status: 'True' },
    { ...state, type: 'CotenantFencesHold', lastTransitionTime: first, lastHeartbeatTime: first },
  ];
  const shown = { ...plain, status: { ...plain.status, conditions } };
  t.true(shows(shown, withCondition));
  t.true(shows(shown, patch), 'what is not known changes nothing');
  t.is(
    buildCondition(FENCES_HOLD, { ...state, message: 'other' }, shown, later)?.lastTransitionTime,
    first.toISOString(),
  );
  const fixed = { status: 'True', reason: 'FencesHold', message: '' } as const;
  t.is(buildCondition(FENCES_HOLD, fixed, shown, later)?.lastTransitionTime, later.toISOString());
  for (const change of [fixed, { ...state, message: 'other' }])
    t.false(shows(shown, buildNodePatch(GPUS, 0, buildCondition(FENCES_HOLD, change, shown, later))));
});

test('a GPU that does not enforce limits has the reason, and its amounts stay', (t) => {
  const gpus = GPUS.gpus.map((gpu, index) =>
    index === 0 ? { ...gpu, unfenced: 'why', mode: 'exclusive' as const } : gpu,
  );
  const unfenced = buildNodePatch({ ...GPUS, gpus }, 0);
  t.deepEqual(unfenced.status, patch.status);
  t.deepEqual(parseNodeGpus(unfenced.metadata.annotations['cotenant.io/gpus'] ?? ''), {
    ok: true,
    value: { ...GPUS, gpus },
  });
  const text = formatNodeGpus({ ...GPUS, gpus });
  t.false(parseNodeGpus(text.replace('"why"', '1')).ok);
  t.false(parseNodeGpus(text.replace('"exclusive"', '"other"')).ok);
});

test('an unhealthy GPU has the reason, and both conditions are written', (t) => {
  const gpus = GPUS.gpus.map((gpu, index) => (index === 2 ? { ...gpu, fault: 'Xid 79' } : gpu));
  const shown = { status: 'False', reason: 'GpuUnhealthy', message: 'GPU-0: Xid 79' } as const;
  const fences = { status: 'True', reason: 'FencesHold', message: '' } as const;
  const now = new Date('2026-01-01T00:00:00Z');
  const both = buildNodePatch(
    { ...GPUS, gpus },
    0,
    buildCondition(FENCES_HOLD, fences, {}, now),
    buildCondition(GPUS_HEALTHY, shown, {}, now),
  );
  t.deepEqual(
    both.status.conditions?.map(({ type, status }) => [type, status]),
    [
      ['CotenantFencesHold', 'True'],
      ['CotenantGpusHealthy', 'False'],
    ],
  );
  t.deepEqual(parseNodeGpus(both.metadata.annotations['cotenant.io/gpus'] ?? ''), {
    ok: true,
    value: { ...GPUS, gpus },
  });
  t.false(parseNodeGpus(formatNodeGpus({ ...GPUS, gpus }).replace('"Xid 79"', '1')).ok);
});

test('fewer tenants per GPU do not lower a node below what holds a grant', (t) => {
  const perNode = GPUS.mostTenantsPerGpu * GPUS.gpus.length;
  for (const kind of ['capacity', 'allocatable'] as const) {
    t.is(buildNodePatch(GPUS, perNode - 1).status[kind]['cotenant.io/gpu'], String(perNode));
    t.is(buildNodePatch(GPUS, perNode + 3).status[kind]['cotenant.io/gpu'], String(perNode + 3));
  }
});

// A pod's grant is accepted if it matches the request and fits on this node's GPUs; a grant that would overcommit a GPU
// is refused.
import test from 'ava';
import { type NodeGpu, verifyGrant } from '../../../../src/agent/allocation/verify-grant.ts';
import { grantedOn } from '../../../../src/agent/grants/sums.ts';
import { formatPodGrant, type PodGrant } from '../../../../src/api/grant-annotation.ts';
import { GRANT_ANNOTATION, MEMORY_ANNOTATION, REQUEST_ANNOTATION } from '../../../../src/api/names.ts';
import type { ContainerRequest, GpuShare, PodRequest } from '../../../../src/api/request.ts';
import { formatPodRequest } from '../../../../src/api/request-annotation.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { grantOf } from '../node.ts';

const A = 'GPU-0a000000-0000-4000-8000-000000000001';
const B = 'GPU-0b000000-0000-4000-8000-000000000002';
const bytes = (mib: number): GpuShare => ({ memory: { kind: 'bytes', bytes: mib * MIB } });
const asks = (name: string, ...gpus: GpuShare[]): ContainerRequest => ({
  name,
  kind: 'app',
  dialect: 'cotenant',
  asked: {},
  memoryIsolation: 'on',
  gpus,
});
const got = (
  name: string,
  ...gpus: readonly (readonly [string, number, number?])[]
): PodGrant['containers'][number] => ({
  name,
  kind: 'app',
  memoryIsolation: 'on',
  gpus: gpus.map(([gpuUuid, mib, coresPercent = 0]) => ({
    gpuUuid,
    memoryBytes: mib * MIB,
    limitBytes: mib * MIB,
    coresPercent,
  })),
});
const annotations = (containers: ContainerRequest[], granted: PodGrant['containers']) => {
  const request: PodRequest = { priority: 'normal', gpuModels: [], gpuUuids: [], containers };
  return {
    [REQUEST_ANNOTATION]: formatPodRequest(request),
    [GRANT_ANNOTATION]: formatPodGrant({ epoch: 1, containers: granted }),
  };
};
const gpu = (gpuUuid: string, grantedMib = 0, more: Partial<NodeGpu> = {}): NodeGpu => ({
  gpuUuid,
  usableBytes: 1000 * MIB,
  healthy: true,
  granted: { memoryBytes: grantedMib * MIB, coresPercent: 0, tenants: 1 },
  ...more,
});

test('a grant that matches the request on GPUs with capacity is accepted', (t) => {
  const pod = annotations(
    [asks('a', bytes(400), bytes(400)), asks('b', bytes(200))],
    [got('a', [A, 400], [B, 400]), got('b', [B, 200])],
  );
  const ruling = verifyGrant(pod, [gpu(A, 600), gpu(B, 400)]);
  t.true(ruling.ok, JSON.stringify(ruling));
  if (ruling.ok)
    t.deepEqual(
      ruling.grant.containers.map(({ name }) => name),
      ['a', 'b'],
    );
});

test('a percentage grant stays valid though a new driver leaves a little less memory', (t) => {
  const half = annotations([asks('a', { memory: { kind: 'percent', percent: 50 } })], [got('a', [A, 12_000])]);
  t.true(verifyGrant(half, [gpu(A, 0, { usableBytes: 24_000 * MIB })]).ok);
  t.true(verifyGrant(half, [gpu(A, 0, { usableBytes: 23_500 * MIB })]).ok);
  t.false(verifyGrant(half, [gpu(A, 0, { usableBytes: 20_000 * MIB })]).ok);
});

const wanted = [asks('a', bytes(400))];
const fine = annotations(wanted, [got('a', [A, 400])]);
const cores = { memory: { kind: 'bytes' as const, bytes: 400 * MIB }, coresPercent: 60 };
for (const [what, pod, gpus, why, later] of [
  ['no request', { ...fine, [REQUEST_ANNOTATION]: undefined }, [gpu(A)], /it did not pass the webhook$/, false],
  ['a forged request', { ...fine, [REQUEST_ANNOTATION]: '{}' }, [gpu(A)], /is not what the webhook writes$/, false],
  [
    'no grant',
    { ...fine, [GRANT_ANNOTATION]: undefined },
    [gpu(A)],
    /it was not bound by a scheduler that grants/,
    false,
  ],
  ['half a grant', { ...fine, [GRANT_ANNOTATION]: '{"version":1' }, [gpu(A)], /cannot be read: it is not JSON$/, false],
  [
    'more than was asked for',
    annotations(wanted, [got('a', [A, 401])]),
    [gpu(A)],
    /400 MiB of GPU-0a.* were asked for, 401 MiB granted$/,
    false,
  ],
  ['less than was asked for', annotations(wanted, [got('a', [A, 399])]), [gpu(A)], /399 MiB granted$/, false],
  [
    'more GPUs',
    annotations(wanted, [got('a', [A, 400], [B, 400])]),
    [gpu(A), gpu(B)],
    /1 GPUs were asked for, 2 granted$/,
    false,
  ],
  ['another container', annotations(wanted, [got('b', [A, 400])]), [gpu(A)], /leaves out container a$/, false],
  [
    'one container more',
    annotations(wanted, [got('a', [A, 400]), got('b', [A, 1])]),
    [gpu(A)],
    /names container b, which asked for no share$/,
    false,
  ],
  [
    'isolation switched off',
    annotations(wanted, [{ ...got('a', [A, 400]), memoryIsolation: 'off' }]),
    [gpu(A)],
    /memory isolation differs$/,
    false,
  ],
  [
    'another kind of container',
    annotations(wanted, [{ ...got('a', [A, 400]), kind: 'init' }]),
    [gpu(A)],
    /of kind app, not init$/,
    false,
  ],
  [
    'compute not asked for',
    annotations(wanted, [got('a', [A, 400, 50])]),
    [gpu(A)],
    /compute of GPU-0a.* differs$/,
    false,
  ],
  ['a GPU of another node', fine, [gpu(B)], /^GPU-0a.*, which was granted, is not on this node$/, false],
  ['a GPU that is ill', fine, [gpu(A, 0, { healthy: false })], /is not healthy$/, true],
  [
    'a GPU that was given away twice',
    fine,
    [gpu(A, 601)],
    /^GPU-0a.* would be overcommitted: 400 MiB of cotenant.io\/gpu-memory were granted, 399 MiB are left$/,
    true,
  ],
  [
    'compute that was given away twice',
    annotations([asks('a', cores)], [got('a', [A, 400, 60])]),
    [gpu(A, 0, { granted: { memoryBytes: 0, coresPercent: 50, tenants: 1 } })],
    /overcommitted: 60 % of cotenant.io\/gpu-cores were granted, 50 % are left$/,
    true,
  ],
] as const) {
  test(`refused: ${what}`, (t) => {
    const ruling = verifyGrant(pod, gpus);
    t.false(ruling.ok);
    if (ruling.ok) return;
    t.regex(ruling.why, why);
    t.is(ruling.later, later);
  });
}

test("process grants count one by one on a GPU, a pod's containers by concurrent need", (t) => {
  const podUid = '2f0a3c1e-9f4b-4a52-8a3e-5f1d7c9b0e11';
  const ofPod = (container: string, mib: number, kind: 'init' | 'app' | 'sidecar', uid = podUid) =>
    grantOf(container, mib, [0], { container, owner: { podUid: uid, target: '/t', kind } });
  const grants = [
    grantOf('p1', 100),
    grantOf('p2', 50),
    ofPod('i', 300, 'init'),
    ofPod('a', 200, 'app'),
    ofPod('s', 40, 'sidecar'),
    ofPod('x', 70, 'app', '7d0a6a52-1111-4222-8333-444455556666'),
  ];
  t.deepEqual(grantedOn(grants, 'GPU-0'), { memoryBytes: (150 + 340 + 70) * MIB, coresPercent: 0, tenants: 5 });
  t.deepEqual(grantedOn(grants, 'GPU-1'), { memoryBytes: 0, coresPercent: 0, tenants: 0 });
});

test('amounts of containers that an operator resized are not those of the request', (t) => {
  const pod = annotations([asks('a', bytes(400)), asks('b', bytes(200))], [got('a', [A, 700]), got('b', [A, 200])]);
  t.like(verifyGrant(pod, [gpu(A)]), { ok: false, later: false });
  t.true(verifyGrant({ ...pod, [MEMORY_ANNOTATION]: '{"a":"700Mi"}' }, [gpu(A)]).ok);
  t.like(verifyGrant({ ...pod, [MEMORY_ANNOTATION]: '{"b":"200Mi"}' }, [gpu(A)]), { ok: false, later: false });
  t.like(verifyGrant({ ...pod, [MEMORY_ANNOTATION]: '{"a":"700Mi"}' }, [gpu(A, 200)]), { ok: false, later: true });
});

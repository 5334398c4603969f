// Which GPUs of a node a pod gets.
import test from 'ava';
import type { ContainerRequest, PodRequest } from '../../../src/api/request.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { container, gpu, nodeOf, placed, pod, share } from './pods.ts';

test('containers go together or apart by placement; init containers reuse GPUs', (t) => {
  const node = nodeOf(gpu('a', 9000), gpu('b', 4000), gpu('c', 16_000, { tenants: 0 }));
  const cases: [what: string, containers: ContainerRequest[], binpack: string, spread: string][] = [
    ['one', [container('m', 'app', share(3000))], 'm:b', 'm:c'],
    [
      'two that fit together',
      [container('m', 'app', share(2000)), container('n', 'app', share(2000))],
      'm:b n:b',
      'm:c n:c',
    ],
    ['two that do not', [container('m', 'app', share(3000)), container('n', 'app', share(2000))], 'm:b n:a', 'm:c n:c'],
    ['several GPUs each', [container('m', 'app', share(4000), share(4000))], 'm:b,a', 'm:c,a'],
    [
      'an init container as large as the rest',
      [container('i', 'init', share(3000)), container('m', 'app', share(3000))],
      'i:b m:b',
      'i:c m:c',
    ],
    [
      'an init container that needs more',
      [container('i', 'init', share(8000)), container('m', 'app', share(3000))],
      'i:a m:b',
      'i:c m:c',
    ],
    [
      'a sidecar beside both',
      [container('i', 'init', share(3000)), container('m', 'app', share(3000)), container('s', 'sidecar', share(1001))],
      'i:b m:b s:a',
      'i:c m:c s:c',
    ],
  ];
  for (const [what, containers, binpack, spread] of cases) {
    t.is(placed(pod(containers), node), binpack, what);
    t.is(placed(pod(containers, { placement: 'spread' }), node), spread, `${what}, spread`);
    t.is(placed(pod(containers, { placement: 'fragmentation' }), node), binpack, `${what}, fragmentation`);
  }
});

test('a pod gets only the models and GPUs that it names', (t) => {
  const node = nodeOf(gpu('a', 9000), gpu('b', 9000, { model: 'Tesla T4' }), gpu('c', 9000, { model: 'Tesla T4' }));
  const main = [container('m', 'app', share(1000))];
  t.is(placed(pod(main, { gpuModels: ['tesla t4'] }), node), 'm:b');
  t.is(placed(pod(main, { gpuUuids: ['GPU-c', 'GPU-elsewhere'] }), node), 'm:c');
  t.is(
    placed(pod(main, { gpuModels: ['NVIDIA L4'], gpuUuids: ['GPU-c'] }), node),
    'the node has none of the requested GPUs GPU-c; its GPUs are GPU-a, GPU-b, GPU-c',
  );
});

test('a pod gets no model and no GPU that it leaves out', (t) => {
  const node = nodeOf(gpu('a', 8000), gpu('b', 9000, { model: 'Tesla T4' }), gpu('c', 9500, { model: 'Tesla T4' }));
  const main = [container('m', 'app', share(1000))];
  t.is(placed(pod(main, { gpuModels: ['!nvidia l4'] }), node), 'm:b');
  t.is(placed(pod(main, { gpuModels: ['!nvidia l4'], gpuUuids: ['!GPU-b'] }), node), 'm:c');
  t.is(placed(pod(main, { gpuUuids: ['!GPU-b', 'GPU-b', 'GPU-c'] }), node), 'm:c');
  t.is(
    placed(pod(main, { gpuModels: ['!NVIDIA L4', '!Tesla T4'] }), node),
    'no GPU is other than NVIDIA L4, Tesla T4; the node has NVIDIA L4, Tesla T4',
  );
  t.is(
    placed(pod(main, { gpuUuids: ['!GPU-a', '!GPU-b', '!GPU-c'] }), node),
    'the node has none of the requested GPUs other than GPU-a, GPU-b, GPU-c; its GPUs are GPU-a, GPU-b, GPU-c',
  );
});

// Amounts after KEP-753's formula; the node has one GPU of 8 GiB.
test('an init container that ends before a sidecar starts may need the whole GPU', (t) => {
  const node = nodeOf(gpu('a', 8192, { usableBytes: 8192 * MIB, grantedBytes: 0, tenants: 0 }));
  const [app, side] = [container('app', 'app', share(2048)), container('side', 'sidecar', share(2048))];
  const inOrder = (...inits: ContainerRequest[]) =>
    placed(pod([...inits.map((one, initIndex) => ({ ...one, initIndex })), app]), node);
  const prep = (mib: number) => container('prep', 'init', share(mib));
  t.is(inOrder(prep(8192), side), 'app:a prep:a side:a');
  t.is(inOrder(side, prep(6144)), 'app:a prep:a side:a');
  t.regex(inOrder(side, prep(6145)), /8193 MiB are requested/);
  const whole = container('prep', 'init', { memory: { kind: 'whole' } });
  t.is(inOrder(whole, side), 'app:a prep:a side:a');
});

test('a node chooses its GPUs by its own placement, unless the pod has one', (t) => {
  const node = { ...nodeOf(gpu('a', 9000), gpu('b', 4000)), placement: 'spread' as const };
  const containers = [container('m', 'app', share(3000))];
  t.is(placed(pod(containers), { ...node, placement: 'binpack' }), 'm:b');
  t.is(placed(pod(containers), node), 'm:a');
  t.is(placed(pod(containers, { placement: 'binpack' }), node), 'm:b');
});

test('containers that belong on one GPU get one that takes all of them, or none', (t) => {
  const containers = [container('m', 'app', share(3000)), container('n', 'app', share(2000))];
  const together = (more: Partial<PodRequest> = {}) => pod(containers, { sameGpu: true, ...more });
  const node = nodeOf(gpu('a', 9000), gpu('b', 4000), gpu('c', 6000));
  t.is(placed(together(), node), 'm:c n:c');
  t.is(placed(together({ placement: 'spread' }), node), 'm:a n:a');
  t.is(placed(together({ gpuUuids: ['GPU-a', 'GPU-b'] }), node), 'm:a n:a');
  // Apart they would fit.
  const small = nodeOf(gpu('a', 4000), gpu('b', 3000));
  t.is(placed(pod(containers), small), 'm:b n:a');
  t.regex(placed(together(), small), /^GPU-a .*5000 MiB are requested/);
  t.is(placed(together(), nodeOf()), 'the agent reports no GPU (cotenant.io/gpu)');
});

// GPUs of one node that are shared, kept for containers that ask for all their memory, or left to other software.
import test from 'ava';
import type { GpuMode, PlaceableGpu } from '../../../src/api/gpu.ts';
import { type GpuShare, PLACEMENTS, type Placement, type PodRequest } from '../../../src/api/request.ts';
import { createFragmentation } from '../../../src/placement/fragmentation.ts';
import { placePod } from '../../../src/placement/place-pod.ts';
import { container, gpu, nodeOf, pod, share } from './pods.ts';

const WHOLE: GpuShare = { memory: { kind: 'whole' } };
const asks = (...shares: readonly GpuShare[]): PodRequest => pod([container('main', 'app', ...shares)]);
const empty = (name: string, mode?: GpuMode): PlaceableGpu =>
  gpu(name, 16_000, { tenants: 0, ...(mode !== undefined && { mode }) });
const WORTH = createFragmentation(
  [{ gpus: 1, milli: 500, cores: 0, models: [], frequency: 1 }],
  [{ model: 'nvidia l4', gpus: 3 }],
);
const chosen = (request: PodRequest, gpus: readonly PlaceableGpu[], placement: Placement = 'binpack'): string => {
  const found = placePod(request, nodeOf(...gpus), placement, WORTH);
  return found.ok
    ? found.containers.flatMap((one) => one.gpus.map(({ gpuUuid }) => gpuUuid)).join()
    : found.reason('all');
};

for (const placement of PLACEMENTS) {
  test(`shares go to shared GPUs and whole requests to exclusive ones first: ${placement}`, (t) => {
    for (const order of [
      [empty('s'), empty('x', 'exclusive'), empty('n', 'none')],
      [empty('n', 'none'), empty('x', 'exclusive'), empty('s')],
    ]) {
      t.is(chosen(asks(share(1000)), order, placement), 'GPU-s');
      t.is(chosen(asks(WHOLE), order, placement), 'GPU-x');
      t.is(chosen(asks(WHOLE, WHOLE), order, placement).split(',').toSorted().join(), 'GPU-s,GPU-x');
    }
  });
}

test('a refusal says for whom the GPU is, and that waiting does not help', (t) => {
  const share1 = asks(share(1));
  t.is(chosen(share1, [empty('x', 'exclusive')]), 'GPU-x is for a container that asks for all its memory');
  t.is(chosen(share1, [empty('n', 'none')]), "GPU-n is left to other software by its node's agent");
  const found = placePod(share1, nodeOf(empty('x', 'exclusive'), empty('n', 'none')), 'binpack');
  t.like(found, { ok: false, temporary: false });
  // All of its memory in bytes is all of it, too; what is granted already counts as elsewhere.
  t.is(chosen(asks(share(16_000)), [empty('x', 'exclusive')]), 'GPU-x');
  t.regex(chosen(asks(WHOLE), [gpu('x', 0, { mode: 'exclusive' })]), /it lacks 16000 MiB/);
});

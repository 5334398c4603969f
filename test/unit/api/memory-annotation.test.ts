// The annotation with another amount of memory: which texts it may have, and the grant that follows.
import test from 'ava';
import type { PodGrant } from '../../../src/api/grant-annotation.ts';
import { addMemorySize, grantWithSizes, parseMemorySizes } from '../../../src/api/memory-annotation.ts';
import { GIB, MIB } from '../../../src/common/quantity.ts';

const GPUS = ['GPU-00000000-0000-4000-8000-000000000001', 'GPU-00000000-0000-4000-8000-000000000002'];
const granted = (mib: number) =>
  GPUS.map((gpuUuid) => ({ gpuUuid, memoryBytes: mib * MIB, limitBytes: mib * MIB, coresPercent: 25 }));
const grant: PodGrant = {
  epoch: 7,
  containers: [
    { name: 'main', kind: 'app', memoryIsolation: 'on', gpus: granted(1024) },
    { name: 'side', kind: 'sidecar', memoryIsolation: 'on', gpus: granted(512) },
  ],
};

test('amounts are whole MiB by container, as Kubernetes writes quantities', (t) => {
  t.deepEqual(parseMemorySizes('{"main":"6Gi","side":536870912}'), {
    ok: true,
    value: new Map([
      ['main', 6 * GIB],
      ['side', 512 * MIB],
    ]),
  });
  const wrong: Record<string, string> = {
    '{': 'it is not JSON',
    '[]': 'a list of 0 is not an object',
    '{"Main":"6Gi"}': 'Main: "Main" is not a container name',
    '{"main":"6"}': 'main: "6" is not an amount in whole MiB, such as "6Gi"',
    '{"main":"1025Ki"}': 'main: "1025Ki" is not an amount in whole MiB, such as "6Gi"',
    '{"main":"lots"}': 'main: "lots" is not an amount in whole MiB, such as "6Gi"',
    '{"main":null}': 'main: null is not an amount in whole MiB, such as "6Gi"',
    '{"main":-1048576}': 'main: "-1048576" is not an amount in whole MiB, such as "6Gi"',
  };
  for (const [text, error] of Object.entries(wrong)) t.deepEqual(parseMemorySizes(text), { ok: false, error }, text);
});

test('one more change keeps those of other containers', (t) => {
  t.is(addMemorySize(undefined, ['main'], 6 * GIB), '{"main":"6Gi"}');
  t.is(addMemorySize('{"side":"512Mi","main":"1Gi"}', ['main'], 1536 * MIB), '{"main":"1536Mi","side":"512Mi"}');
  t.is(addMemorySize('broken', ['main'], MIB), '{"main":"1Mi"}');
});

test('a grant takes the amounts on all GPUs of the container, also as limits', (t) => {
  const next = grantWithSizes(grant, new Map([['main', 2048 * MIB]]));
  t.deepEqual(next, {
    ok: true,
    value: { ...grant, containers: [{ ...grant.containers[0], gpus: granted(2048) }, grant.containers[1]] },
  });
  const same = grantWithSizes(grant, new Map([['side', 512 * MIB]]));
  t.true(same.ok && same.value === grant);
  t.deepEqual(grantWithSizes(grant, new Map([['other', MIB]])), {
    ok: false,
    error: 'other: no container with a grant has this name; the pod has main, side',
  });
});

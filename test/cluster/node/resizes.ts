// The memory of a running pod, changed from the cluster: the scheduler grants it, the agent applies it, the program's next
// allocation follows, without a restart.
import type { ExecutionContext } from 'ava';
import type { User } from '../bed/api.ts';
import { eventually } from '../bed/eventually.ts';
import type { Whole } from '../bed/whole.ts';
import { cotenant, gpusOf, OUT_OF_MEMORY, refusedBy } from '../pod-lifecycle/common.ts';
import { attach, clientOf, containerOf, eventsOf, MIB, podOf, podPath, untilRunning } from '../support/pods.ts';

const NAME = 'resized';
const MEMORY = 'cotenant.io/memory';
const TENANT: User = { name: 'alice', groups: ['system:masters'] };

/** Its commands need the annotation writer `admin`. */
export async function resized(t: ExecutionContext, { bed }: Whole): Promise<void> {
  bed.apply(podOf(NAME, [clientOf({ 'cotenant.io/gpu-memory': '1Gi' }, ['init', 'context 0'])]));
  await untilRunning(bed, NAME);
  const client = attach(bed, NAME);
  const has = async () => gpusOf(t, await untilRunning(bed, NAME)).map(({ memoryBytes }) => memoryBytes / MIB);
  const conditions = async () => (await untilRunning(bed, NAME)).status?.conditions ?? [];
  t.is((await client.ask(`alloc ${512 * MIB}`))[0], 0);
  t.is((await client.ask(`alloc ${512 * MIB}`))[0], OUT_OF_MEMORY);

  const wish = { metadata: { annotations: { [MEMORY]: '{"main":"2Gi"}' } } };
  t.is((await bed.api.ask('PATCH', podPath(NAME), wish, TENANT)).status, 403, 'a tenant cannot raise itself');
  t.is(cotenant(bed, 'set', `default/${NAME}`, '-m', '2Gi'), `pod default/${NAME}: memory {"main":"2Gi"}\n`);
  t.deepEqual(await has(), [2048]);
  const began = performance.now();
  await eventually(
    async () => ((await client.ask(`alloc ${512 * MIB}`))[0] === 0 ? true : undefined),
    'its next allocations follow',
  );
  t.log(`the grown grant is allocated from ${((performance.now() - began) / 1000).toFixed(2)} s after it was granted`);
  await eventually(
    async () => (await eventsOf(bed, NAME)).some(({ reason }) => reason === 'GPUMemoryResized') || undefined,
    'an Event says so',
  );

  const tooMuch = refusedBy(bed, 'set', `default/${NAME}`, '-m', '400Gi');
  t.regex(
    tooMuch,
    /^cotenant: annotation cotenant\.io\/memory is not applied: GPU-\S+ has \S+ for the pod, but 400Gi are/,
  );
  t.like(
    (await conditions()).find(({ type }) => type === 'cotenant.io/MemoryResized'),
    { status: 'False' },
  );
  t.is((await untilRunning(bed, NAME)).metadata.annotations?.[MEMORY], '{"main":"2Gi"}', 'the wish is taken back');
  cotenant(bed, 'set', `default/${NAME}`, '-m', '1536Mi');
  t.deepEqual(await has(), [1536]);
  await eventually(
    async () => ((await client.ask(`alloc ${256 * MIB}`))[0] === OUT_OF_MEMORY ? true : undefined),
    'and it shrinks',
  );
  t.is(containerOf(await untilRunning(bed, NAME))?.restartCount, 0);
  await client.leave();
}

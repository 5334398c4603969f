// Programs whose work waits for other work, or is captured, under shares of compute: they end as they would without a
// share, later by what the share takes. Real processes on the simulated driver (test/native/programs/streams.c).
import test, { type ExecutionContext } from 'ava';
import { type Arbiter, type Policy, startArbiter, type Tenant } from '../../support/native/arbiter.ts';
import { readyClient } from '../../support/native/client.ts';
import { type SimulatedNode, startNode } from '../../support/native/node.ts';
import { streams } from '../../support/native/streams.ts';
import { type GrantFiles, MIB, makeGrant } from '../../support/product/grant.ts';

type Share = { readonly percent: number; readonly gpus?: readonly number[] };
type Bench = { readonly node: SimulatedNode; readonly arbiter: Arbiter; readonly grants: readonly GrantFiles[] };

/** A container for each share, on GPU 0 unless it names others. */
async function bench(t: ExecutionContext, shares: readonly Share[], policy: Policy = 'fixed'): Promise<Bench> {
  const used = new Set(shares.flatMap(({ gpus = [0] }) => gpus));
  const node = await startNode(t, ...[...used].flatMap(() => ['--gpu', 't4']));
  const arbiter = startArbiter(t);
  const grants = shares.map(({ percent, gpus = [0] }) =>
    makeGrant(
      t,
      node,
      gpus.map((gpu) => ({ gpu, memoryBytes: 512 * MIB, coresPercent: percent })),
    ),
  );
  const tenants: Tenant[] = shares.map(({ percent, gpus = [0] }, index) => {
    const grant = grants[index];
    if (!grant) throw new Error('no grant');
    return { id: `tenant-${index}`, grant, gpus: gpus.map((gpu) => ({ gpu, percent })) };
  });
  await arbiter.plan(policy, tenants);
  return { node, arbiter, grants };
}

const NO_CAPTURE_FAILED = { failed: 0, end: 0 };
const CAPTURES: readonly (readonly [what: string, words: readonly string[]])[] = [
  ['of a stream with work', ['capture', '20', '1']],
  ['of a blocking stream with work', ['capture', '20', '0']],
  ['of a blocking stream after work on the default one', ['capture-other', '20', '0']],
  ['that a stream with work joins', ['join', '20']],
];
for (const [what, words] of CAPTURES) {
  test.serial(`a capture ${what} succeeds under a share`, async (t) => {
    const { node, grants } = await bench(t, [{ percent: 50 }]);
    t.deepEqual(await streams(t, node, words, { preload: grants[0]?.cuda ?? '' }).result, NO_CAPTURE_FAILED);
  });
}

test.serial('captures succeed in a container without a share beside one that has one', async (t) => {
  const { node, grants } = await bench(t, [{ percent: 50 }, { percent: 0 }]);
  await readyClient(t, node, { preload: grants[0]?.cuda ?? '' });
  for (const [what, words] of CAPTURES) {
    t.deepEqual(await streams(t, node, words, { preload: grants[1]?.cuda ?? '' }).result, NO_CAPTURE_FAILED, what);
  }
});

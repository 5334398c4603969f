// What becomes of a pod's annotation on the node: done, or refused and reported once, and done when shares are free.
import test from 'ava';
import { createNodeCompute, type RefusedChange } from '../../../../src/agent/compute/node-policy.ts';
import type { Shares } from '../../../../src/agent/compute/shares.ts';
import type { Grant } from '../../../../src/agent/grants/grant.ts';
import type { LiveGrant } from '../../../../src/agent/grants/live-grant.ts';
import type { Registry } from '../../../../src/agent/grants/registry.ts';
import { loggerTo } from '../../../support/product/logger.ts';
import { grantOf } from '../node.ts';

const grant = (id: string, coresPercent: number, podUid: string): Grant => {
  const made = grantOf(id, 100, [0], { pod: id, owner: { podUid, target: `/${podUid}`, kind: 'app' } });
  return { ...made, gpus: made.gpus.map((gpu) => ({ ...gpu, coresPercent })) };
};

function nodeWith(...grants: Grant[]) {
  const books = new Map(grants.map((one) => [one.id, one]));
  const refused: RefusedChange[] = [];
  const registry = {
    list: () => [...books.values()].map((one) => ({ grant: one })) as unknown as LiveGrant[],
    change(id: string, parts: Partial<Grant>) {
      books.set(id, { ...(books.get(id) as Grant), ...parts });
      return {} as LiveGrant;
    },
  } as unknown as Registry;
  const compute = createNodeCompute({
    shares: {} as Shares,
    registry,
    gpus: () => [],
    log: loggerTo({
      push(text) {
        throw new Error(text);
      },
    }),
    onRefused: (change) => refused.push(change),
  });
  const has = (id: string) => books.get(id)?.gpus[0]?.coresPercent;
  return { compute, books, refused, has };
}

const saying = (change: object, more: object = {}) => ({ 'cotenant.io/compute': JSON.stringify(change), ...more });

test('a refused share is reported once per text and applied when the GPU has capacity', (t) => {
  const { compute, books, refused, has } = nodeWith(grant('one', 20, 'a'), grant('two', 70, 'b'));
  compute.onPod('a', saying({ main: { coresPercent: 40 } }));
  for (const label of ['x', 'y']) compute.onPod('a', saying({ main: { coresPercent: 40 } }, { label }));
  compute.retryRefused();
  t.deepEqual(refused, [
    {
      namespace: 'local',
      pod: 'one',
      podUid: 'a',
      reason: 'GPUComputeChangeRefused',
      message:
        'annotation cotenant.io/compute is not applied: GPU-0 has 30 % of its compute left for the pod, but 40 % are requested',
    },
  ]);
  t.is(has('one'), 20);
  compute.onPod('a', saying({ main: { coresPercent: 50 } }));
  t.is(refused.length, 2, 'another text');
  books.delete('two');
  compute.retryRefused();
  t.is(has('one'), 50);
  compute.retryRefused();
  t.is(refused.length, 2);
});

test('a corrected or removed annotation, or one of a deleted pod, is not tried again', (t) => {
  const { compute, books, refused, has } = nodeWith(grant('one', 20, 'a'), grant('two', 20, 'b'));
  const wrong = { 'cotenant.io/compute': '{' };
  compute.onPod('a', wrong);
  compute.onPod('b', wrong);
  t.deepEqual(
    refused.map(({ pod, message }) => `${pod}: ${message}`),
    ['one', 'two'].map((pod) => `${pod}: annotation cotenant.io/compute is not applied: it is not JSON`),
  );
  compute.onPod('a', saying({ main: { coresPercent: 30 } }));
  books.delete('two');
  compute.retryRefused();
  t.is(has('one'), 30);
  compute.onPod('a', wrong);
  t.is(refused.length, 3, 'wrong again');
  compute.onPod('another', wrong);
  t.is(refused.length, 3, 'a pod without a share is none of ours');
});

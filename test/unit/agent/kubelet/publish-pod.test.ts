// What the kubelet is answered when it wants a pod's volume: from the watch, else from the API server, and never a
// refusal of what a pod has already.

import test from 'ava';
import type { PodVolume } from '../../../../src/agent/allocation/pod-grants.ts';
import type { Refusal } from '../../../../src/agent/grants/refusal.ts';
import { type RequestedVolume, VolumeRefused } from '../../../../src/agent/kubelet/csi/driver.ts';
import { createPublisher, type KubePod, type PodSource } from '../../../../src/agent/kubelet/csi/publish-pod.ts';
import { err, ok } from '../../../../src/common/result.ts';
import { loggerTo } from '../../../support/product/logger.ts';

const UID = '2f0a3c1e-9f4b-4a52-8a3e-5f1d7c9b0e11';
const ASK: RequestedVolume = { podUid: UID, namespace: 'team', pod: 'one', target: '/t' };
const pod = (more: object = {}): KubePod => ({
  metadata: { uid: UID, annotations: { from: 'somewhere' } },
  spec: { nodeName: 'node-a' },
  ...more,
});
const GRANT = { epoch: 1, containers: [] };

function setUp(source: Partial<PodSource>, refusal?: Refusal, holds = false) {
  const asked: PodVolume[] = [];
  const adopted: PodVolume[] = [];
  const problems: string[] = [];
  const ended: string[] = [];
  const answer = refusal ? err(refusal) : ok(GRANT);
  const publisher = createPublisher({
    node: {
      publish: (ask) => {
        asked.push(ask);
        return answer;
      },
      adopt: (ask) => {
        adopted.push(ask);
        return answer;
      },
      unpublish: (podUid, target) => ended.push(`${podUid} ${target}`),
      holds: (podUid, target) => holds && podUid === UID && target === '/t',
    },
    nodeName: 'node-a',
    pods: {
      cached: () => undefined,
      read: () => Promise.reject(new Error('no request is expected')),
      ...source,
    },
    problemOf: (error) => (error as Error).message,
    log: loggerTo(problems),
  });
  return { publisher, asked, adopted, problems, ended };
}

test('a pod that the watch shows on this node is not asked for again', async (t) => {
  const { publisher, asked } = setUp({ cached: () => pod() });
  await publisher.publish({ ...ASK, mounted: false });
  t.like(asked[0], { podUid: UID, namespace: 'team', pod: 'one', target: '/t', object: pod() });
});

test('a pod that the watch does not show, or not yet bound, is read', async (t) => {
  for (const cached of [() => undefined, () => pod({ spec: {}, metadata: { uid: UID } })]) {
    const { publisher, asked } = setUp({ cached, read: async () => pod() });
    await publisher.publish({ ...ASK, mounted: false });
    t.deepEqual(asked[0]?.object, pod());
  }
});

for (const [what, source, refused, why, later] of [
  [
    'gone',
    { read: async () => undefined },
    undefined,
    /^pod team\/one has another UID: it was deleted and created again$/,
    false,
  ],
  [
    'another',
    { read: async () => pod({ metadata: { uid: 'x' } }) },
    undefined,
    /has another UID: it was deleted and created again$/,
    false,
  ],
  [
    'bound elsewhere',
    { read: async () => pod({ spec: { nodeName: 'b' } }) },
    undefined,
    /is not bound to this node$/,
    false,
  ],
  [
    'not to be read',
    {},
    undefined,
    /^the API server did not answer a request for the pod: no request is expected$/,
    true,
  ],
  ['refused', { cached: () => pod() }, { refused: 'no room' }, /^no room$/, false],
  ['refused for now', { cached: () => pod() }, { refused: 'no room', later: true }, /^no room$/, true],
] as const) {
  test(`a first volume is refused for a pod that is ${what}`, async (t) => {
    const { publisher } = setUp(source, refused);
    const refusal = await t.throwsAsync(publisher.publish({ ...ASK, mounted: false }), { instanceOf: VolumeRefused });
    t.regex(refusal?.message ?? '', why);
    t.is(refusal?.later, later);
  });
}

test('a published volume is never refused: it is kept, and problems are reported', async (t) => {
  const known = setUp({}, { refused: 'no room' }, true);
  await t.notThrowsAsync(known.publisher.publish({ ...ASK, mounted: true }));
  t.deepEqual([known.asked, known.problems], [[], []], 'no request is made for what is known');
  const lost = setUp({});
  await t.notThrowsAsync(lost.publisher.publish({ ...ASK, mounted: true }));
  t.regex(lost.problems[0] ?? '', /^pod team\/one keeps its volume of cotenant\.io, but the API server did not answer/);
  const found = setUp({ read: async () => pod() });
  await found.publisher.publish({ ...ASK, mounted: true });
  t.is(found.adopted.length, 1, 'an agent that lost its grants adopts them again');
});

test('an unpublished volume ends its grants without an API call', (t) => {
  const { publisher, ended } = setUp({});
  publisher.unpublish({ podUid: UID, target: '/t' });
  t.deepEqual(ended, [`${UID} /t`]);
});

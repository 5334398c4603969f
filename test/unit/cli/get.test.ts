// What `cotenant get` says of a pod: what it chose, and what operators changed since.
import test from 'ava';
import { podShares } from '../../../src/cli/get.ts';

const REQUEST =
  '{"version":1,"priority":"normal","computePolicy":"fixed","containers":[{"name":"main","kind":"app","dialect":"cotenant","asked":{},"memoryIsolation":"on","cards":[{"memory":{"kind":"bytes","bytes":1073741824},"coresPercent":20,"coresLimitPercent":50}]}]}';
const pod = (annotations: Readonly<Record<string, string>>) => ({
  metadata: { name: 'one', namespace: 'team', annotations },
  spec: { nodeName: 'node-1', containers: [] },
});
const CHOSEN = {
  name: 'team/one/main',
  where: 'node-1',
  policy: 'fixed',
  priority: 'normal',
  weight: 20,
  coresPercent: 20,
  coresLimitPercent: 50,
  guaranteedRatio: null,
  mostRatio: null,
};

const CASES: readonly [string, string | undefined, object][] = [
  ['what it chose', undefined, CHOSEN],
  [
    'what was changed',
    '{"main":{"policy":null,"priority":"high","weight":5,"coresLimitPercent":null}}',
    { ...CHOSEN, policy: null, priority: 'high', weight: 5, coresLimitPercent: null },
  ],
  ['what it chose, where the change is of another container', '{"helper":{"weight":5}}', CHOSEN],
  ['what it chose, where the change cannot be read', '{"main":{"weight":0}}', CHOSEN],
];
for (const [what, compute, expected] of CASES) {
  test(`of a pod: ${what}`, (t) => {
    const annotations = {
      'cotenant.io/request': REQUEST,
      ...(compute !== undefined && { 'cotenant.io/compute': compute }),
    };
    t.deepEqual(podShares(pod(annotations)), [expected]);
  });
}

test('a pod without a share is not among them', (t) => {
  t.deepEqual(podShares(pod({})), []);
});

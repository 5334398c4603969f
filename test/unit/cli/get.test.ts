// What `cotenant get` says of a pod: what it chose, what operators changed since, and how far it is held to that.
import test from 'ava';
import type { Mode } from '../../../src/api/request.ts';
import { type Use, useOf } from '../../../src/cli/cluster/use.ts';
import { podShares } from '../../../src/cli/commands/status/get.ts';
import type { EffectiveMode } from '../../../src/policy/mode.ts';
import { exampleContainer, exampleSnapshot, idleSelf } from '../../support/product/snapshots.ts';

const REQUEST =
  '{"version":1,"priority":"normal","computePolicy":"fixed","containers":[{"name":"main","kind":"app","dialect":"cotenant","asked":{},"memoryIsolation":"on","gpus":[{"memory":{"kind":"bytes","bytes":1073741824},"coresPercent":20,"coresLimitPercent":50}]}]}';
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
  enforcement: { mode: 'enforce', by: 'node', atMost: true },
};

const CASES: readonly [string, string | undefined, object][] = [
  ['its choice', undefined, CHOSEN],
  [
    'the change',
    '{"main":{"policy":null,"priority":"high","weight":5,"coresLimitPercent":null}}',
    { ...CHOSEN, policy: null, priority: 'high', weight: 5, coresLimitPercent: null },
  ],
  ['its choice, with a change of another container', '{"helper":{"weight":5}}', CHOSEN],
  ['its choice, with an unreadable change', '{"main":{"weight":0}}', CHOSEN],
];
for (const [what, compute, expected] of CASES) {
  test(`compute of a pod: ${what}`, (t) => {
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

const use = (mode: Mode, ...containers: readonly (readonly [name: string, enforcement: EffectiveMode])[]): Use =>
  useOf({
    ...exampleSnapshot,
    self: { ...idleSelf, mode },
    containers: containers.map(([container, enforcement]) => ({
      ...exampleContainer,
      ...{ namespace: 'team', pod: 'one', container, enforcement },
    })),
  });
const OVERRIDE = { 'cotenant.io/enforcement-override': 'report' };

const MODE_CASES: readonly [string, Readonly<Record<string, string>>, Use | undefined, object][] = [
  [
    'by the annotations at most, where its agent is not heard',
    OVERRIDE,
    undefined,
    { mode: 'report', by: 'administrator', atMost: true },
  ],
  [
    'by the annotations, for a container unknown to the agent',
    OVERRIDE,
    use('enforce'),
    { mode: 'report', by: 'administrator' },
  ],
  ['the node’s, where that is weaker', OVERRIDE, use('off'), { mode: 'off', by: 'node' }],
  [
    'the one in force by the agent',
    OVERRIDE,
    use('enforce', ['main', { mode: 'off', by: 'namespace' }]),
    { mode: 'off', by: 'namespace' },
  ],
  [
    'not the value of another container',
    {},
    use('enforce', ['other', { mode: 'off', by: 'namespace' }]),
    { mode: 'enforce', by: 'node' },
  ],
];
for (const [what, annotations, reported, expected] of MODE_CASES) {
  test(`the mode of a pod: ${what}`, (t) => {
    const [row] = podShares(pod({ 'cotenant.io/request': REQUEST, ...annotations }), reported);
    t.deepEqual(row?.enforcement, expected as never);
  });
}

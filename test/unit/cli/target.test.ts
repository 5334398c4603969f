// Whom inspect and why ask: an agent of this machine, or a cluster.
import test from 'ava';
import { chooseWhere, podNamed, requestTimeout } from '../../../src/cli/options/target.ts';

const nothing = { plugin: false, stateNamed: false, agentHere: false, clusterConfigured: false };

const CASES: readonly (readonly [name: string, Parameters<typeof chooseWhere>, ReturnType<typeof chooseWhere>])[] = [
  ['an agent here', [[], { ...nothing, agentHere: true }], 'local'],
  ['an agent here beside a kubeconfig', [[], { ...nothing, agentHere: true, clusterConfigured: true }], 'local'],
  ['a kubeconfig alone', [[], { ...nothing, clusterConfigured: true }], 'cluster'],
  ['a state folder without an agent', [[], { ...nothing, stateNamed: true, clusterConfigured: true }], 'local'],
  ['an option of a cluster', [['node'], { ...nothing, agentHere: true }], 'cluster'],
  ['as a plugin of kubectl', [[], { ...nothing, plugin: true, agentHere: true }], 'cluster'],
  ['as a plugin of kubectl, with --state', [[], { ...nothing, plugin: true, stateNamed: true }], 'local'],
  ['neither', [[], nothing], 'nowhere'],
];

for (const [name, args, where] of CASES) {
  test(`${name}: ${where}`, (t) => t.is(chooseWhere(...args), where));
}

test('a pod is named as kubectl names it', (t) => {
  const named = { namespace: 'team', name: 'a' };
  for (const [argument, given] of [
    ['team/a'],
    ['a', 'team'],
    ['pod/a', 'team'],
    ['pods/a', 'team'],
    ['po/a', 'team'],
  ] as const)
    t.deepEqual(podNamed(argument, given, 'usual'), named);
  t.deepEqual(podNamed('pod/a', undefined, 'usual'), { namespace: 'usual', name: 'a' });
  for (const wrong of ['a/b/c', 'pod/', 'A'])
    t.throws(() => podNamed(wrong, undefined, 'usual'), { message: `${wrong}: want POD or NAMESPACE/POD` });
});

// pkg.go.dev/time#ParseDuration, and kubectl's help: "Non-zero values should contain a corresponding time unit".
test('a timeout is written as for kubectl', (t) => {
  const times = { 30: 30_000, '1m30s': 90_000, '1.5h': 5_400_000, '500ms': 500, 0: 0 };
  for (const [time, ms] of Object.entries(times)) t.is(requestTimeout(time), ms);
  for (const time of ['', 'soon', '1d', '-1s', '1 m', '1m30', '.5s'])
    t.throws(() => requestTimeout(time), { message: /^--request-timeout .*: want a time such as 30s, 1m30s or 0$/ });
});

import test from 'ava';
import type { Pod } from '../../../src/cli/cluster/objects.ts';
import { isServing, listed, needsUs } from '../../../src/cli/commands/maintenance/uninstall-check.ts';

const NOW = Date.parse('2026-11-21T22:10:00Z');
const SERVED = new Set(['n1']);

const pod = (name: string, driver: string | undefined, spec: object = {}, more: Partial<Pod> = {}): Pod => ({
  metadata: { name, namespace: 'team' },
  spec: {
    containers: [],
    volumes: [{ name: 'a' }, ...(driver === undefined ? [] : [{ name: 'b', csi: { driver } }])],
    ...spec,
  },
  status: { phase: 'Running' },
  ...more,
});
const ended = (phase: string, secondsAgo: number, more: Partial<Pod> = {}, nodeName = 'n1'): Pod => {
  const state = { terminated: { exitCode: 0, finishedAt: new Date(NOW - secondsAgo * 1000).toISOString() } };
  const earlier = { terminated: { exitCode: 0, finishedAt: '2026-11-21T20:00:00Z' } };
  const status = {
    phase,
    initContainerStatuses: [{ name: 'init', restartCount: 0, state: earlier }],
    containerStatuses: [{ name: 'main', restartCount: 0, state }],
  };
  return pod('a', 'cotenant.io', { nodeName }, { status, ...more });
};
const deleted = { metadata: { name: 'a', namespace: 'team', deletionTimestamp: '2026-11-21T22:09:00Z' } };

const CASES: readonly (readonly [name: string, of: Pod, needs: boolean])[] = [
  ['runs', pod('a', 'cotenant.io', { nodeName: 'n1' }), true],
  ['waits for a node', pod('a', 'cotenant.io', {}, { status: { phase: 'Pending' } }), true],
  ['has a volume of others', pod('a', 'secrets.example.com'), false],
  ['has no such volume', pod('a', undefined), false],
  ['has no volumes', { ...pod('a', undefined), spec: { containers: [] } }, false],
  ['has long succeeded', ended('Succeeded', 61), false],
  ['has long failed', ended('Failed', 61), false],
  ['has just ended', ended('Failed', 59), true],
  ['has long ended on a node without an agent that is ready', ended('Succeeded', 600, {}, 'n2'), true],
  ['has long ended and is being deleted', ended('Succeeded', 600, deleted), true],
  [
    'was refused by its kubelet',
    pod('a', 'cotenant.io', { nodeName: 'n2' }, { status: { phase: 'Failed', reason: 'UnexpectedAdmissionError' } }),
    false,
  ],
];

for (const [name, of, needs] of CASES) {
  test(`a pod that ${name} ${needs ? 'needs us' : 'does not need us'}`, (t) => t.is(needsUs(of, SERVED, NOW), needs));
}

test('agents are those of the release alone, and only while they are ready', (t) => {
  const agent = (nodeName: string, namespace: string, status: string, component = 'agent'): Pod => ({
    metadata: { name: 'x', namespace, labels: { 'cotenant.io/component': component } },
    spec: { nodeName, containers: [] },
    status: { phase: 'Running', conditions: [{ type: 'Ready', status }] },
  });
  const pods = [
    agent('n1', 'ours', 'True'),
    agent('n2', 'ours', 'False'),
    agent('n3', 'team', 'True'),
    agent('n4', 'ours', 'True', 'webhook'),
  ];
  t.deepEqual(
    pods.filter((pod) => isServing(pod, 'ours')).map(({ spec }) => spec.nodeName),
    ['n1'],
  );
});

test('the list names each pod and its node', (t) => {
  t.deepEqual(listed([]), ['no pod with a volume of Cotenant is left']);
  const left = [pod('b', 'cotenant.io', { nodeName: 'n1' }), pod('c', 'cotenant.io'), ended('Failed', 1)];
  t.deepEqual(listed(left), [
    'cotenant: not uninstalled, for 3 pods have a volume of Cotenant and cannot end without its agent. Delete these first:',
    '  team/a (on n1, ended, its volume may still be mounted)',
    '  team/b (on n1)',
    '  team/c (not bound yet)',
  ]);
  t.regex(listed([pod('a', 'cotenant.io')])[0] ?? '', /for 1 pod has a volume/);
});

test('the list and its heading fit a termination message for any pods and names', (t) => {
  for (const length of [1, 40, 253]) {
    const nodeName = 'n'.repeat(length);
    const many = Array.from({ length: 300 }, (_, index) =>
      pod(`${index}`.padEnd(length, 'p'), 'cotenant.io', { nodeName }),
    );
    const lines = listed(many);
    t.regex(lines[0] ?? '', /^cotenant: not uninstalled, for 300 pods have/);
    t.is(lines.at(-1), `  and ${300 - (lines.length - 2)} more`);
    t.true(lines.length > 4);
    const bytes = Buffer.byteLength(`${lines.join('\n')}\n`);
    t.true(bytes <= 2048 && bytes > 1300, `${bytes} bytes`);
  }
});

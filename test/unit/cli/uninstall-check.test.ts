import test from 'ava';
import type { Pod } from '../../../src/cli/cluster/objects.ts';
import { listed, needsUs } from '../../../src/cli/uninstall-check.ts';

const pod = (name: string, driver: string | undefined, more: object = {}): Pod => ({
  metadata: { name, namespace: 'team', uid: name } as Pod['metadata'],
  spec: {
    containers: [],
    volumes: [{ name: 'a' }, ...(driver === undefined ? [] : [{ name: 'b', csi: { driver } }])],
    ...more,
  },
  status: { phase: 'Running', ...more },
});

test('a pod needs us while it has our volume and has not ended, whether it runs or not', (t) => {
  t.true(needsUs(pod('a', 'cotenant.io')));
  t.true(needsUs(pod('a', 'cotenant.io', { phase: 'Pending' })));
  for (const phase of ['Succeeded', 'Failed']) t.false(needsUs(pod('a', 'cotenant.io', { phase })), phase);
  t.false(needsUs(pod('a', 'secrets.example.com')));
  t.false(needsUs(pod('a', undefined)));
  t.false(needsUs({ ...pod('a', undefined), spec: { containers: [] } }));
});

test('the list names each pod and its node, and fits a termination message however many they are', (t) => {
  t.deepEqual(listed([]), ['no pod with a volume of Cotenant is left']);
  t.deepEqual(listed([pod('b', 'cotenant.io', { nodeName: 'n1' }), pod('a', 'cotenant.io')]), [
    'cotenant: not uninstalled, for 2 pods have a volume of Cotenant and cannot end without its agent. Delete these first:',
    '  team/a (not bound yet)',
    '  team/b (on n1)',
  ]);
  t.regex(listed([pod('a', 'cotenant.io')])[0] ?? '', /for 1 pod has a volume/);
  const many = listed(Array.from({ length: 300 }, (_, index) => pod(`trainer-5d9c7b6f4-${index}`, 'cotenant.io')));
  t.is(many.at(-1), '  and 275 more');
  t.true(many.join('\n').length < 2048);
});

// CPU cores: what pods request, and what nodes have left.
import test from 'ava';
import { createFreeCores } from '../../../../src/scheduler/allocations/free-cores.ts';
import { coresOf } from '../../../../src/scheduler/decisions/pod-aspects.ts';

const container = (cpu?: string, more: object = {}) => ({ ...(cpu && { resources: { requests: { cpu } } }), ...more });

test('a pod requests the sum of its containers, or its largest init container', (t) => {
  const cases: [spec: object, cores: number][] = [
    [{}, 0],
    [{ containers: [container('500m'), container('2'), container()] }, 2.5],
    [{ containers: [container('1')], initContainers: [container('4'), container('3')] }, 4],
    [{ containers: [container('1')], initContainers: [container('2', { restartPolicy: 'Always' })] }, 3],
    [{ containers: [container('x')] }, 0],
  ];
  // k8s.io/component-helpers, resource.PodRequests: the order of init containers and sidecars, the pod as a whole, overhead.
  const always = { restartPolicy: 'Always' };
  const steps = [container('100m', always), container('800m'), container('200m', always), container('600m')];
  cases.push(
    [{ initContainers: steps, containers: [container('700m')] }, 1],
    [{ initContainers: steps, containers: [container('100m')] }, 0.9],
    [{ initContainers: steps, containers: [container('1')], resources: { requests: { cpu: '2' } } }, 2],
    [{ containers: [container('1')], resources: { requests: { memory: '1Gi' } }, overhead: { cpu: '250m' } }, 1.25],
    [{ containers: [{ resources: { limits: { cpu: 2 }, requests: { memory: '1Gi' } } }] }, 2],
  );
  for (const [spec, cores] of cases) t.is(Math.round(coresOf(spec) * 1e6) / 1e6, cores, JSON.stringify(spec));
});

test('what is free follows nodes and pods, in whichever order they are seen', (t) => {
  const free = new Map<string, number | undefined>();
  const cores = createFreeCores((node, left) => free.set(node, left));
  cores.setPod('early', 'n', 3);
  t.deepEqual([...free], []);
  cores.setNode('n', 16);
  cores.setPod('p', 'n', 4);
  t.is(free.get('n'), 9);
  cores.setPod('p', 'n', 5);
  cores.setPod('none', 'n', 0);
  t.is(free.get('n'), 8);
  cores.keepPods(new Set(['p']));
  t.is(free.get('n'), 11);
  cores.removePod('p');
  cores.removePod('p');
  t.is(free.get('n'), 16);
  cores.removeNode('n');
  t.is(free.get('n'), undefined);
});

// What the cluster autoscaler concludes from a node template: it runs kube-scheduler's own plugins on Nodes that it makes
// up, and calls no extender (kubernetes/autoscaler, pull request 5708 and its FAQ). Here that is kube-scheduler with its
// default configuration, and a Node with what docs/operate/autoscaling.md has templates say.
import type { ExecutionContext } from 'ava';
import { parse } from 'yaml';
import { blocks, readPage, section } from '../../support/docs.ts';
import type { Bed } from '../bed/bed.ts';
import {
  add,
  addNode,
  bound,
  clear,
  conditionOf,
  memory,
  must,
  pending,
  podOf,
  podsOf,
} from '../support/scheduling.ts';

const PREFIX = 'k8s.io/cluster-autoscaler/node-template/resources/';

const AUTOSCALERS = '/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers';

async function onlyPod(bed: Bed, name: string) {
  const found = (await podsOf(bed)).find(({ metadata }) => metadata.name === name);
  if (!found) throw new Error(`no pod ${name}`);
  return found;
}

/** By the cluster autoscaler's rule: the default profile, without an extender. */
const simulated = (name: string, gib: number): object => {
  const { spec, ...rest } = podOf(name, { main: memory(gib) }) as { readonly spec: object };
  return { ...rest, spec: { ...spec, schedulerName: 'default-scheduler' } };
};

export async function checkTemplateNodes(t: ExecutionContext, bed: Bed): Promise<void> {
  const [tags = ''] = blocks(section(readPage('docs/operate/autoscaling.md'), '## Nodes from zero'), 'yaml');
  const amounts = Object.fromEntries(
    Object.entries(parse(tags) as Readonly<Record<string, string>>)
      .filter(([key]) => key.startsWith(PREFIX))
      .map(([key, amount]) => [key.slice(PREFIX.length), amount]),
  );
  t.deepEqual(Object.keys(amounts).toSorted(), ['cotenant.io/gpu', 'cotenant.io/gpu-cores', 'cotenant.io/gpu-memory']);
  // Without a GPU node no share has a place, which is what makes the autoscaler look at its templates.
  await add(bed, simulated('new-node', 12), podOf('waits', { main: memory(12) }));
  await pending(bed, 'new-node', /Insufficient cotenant\.io\/gpu, /);
  await pending(bed, 'waits', /Insufficient cotenant\.io\/gpu/);
  t.like(conditionOf(await onlyPod(bed, 'waits')), { status: 'False', reason: 'Unschedulable' });

  // Two GPUs of 16 GiB, of which no agent has told anything yet.
  await must(bed, 'POST', '/api/v1/nodes', { apiVersion: 'v1', kind: 'Node', metadata: { name: 'template' } });
  const all = { cpu: '64', memory: '256Gi', pods: '500', ...amounts };
  const conditions = [{ type: 'Ready', status: 'True', reason: 'Test', message: 'written by a test' }];
  await must(bed, 'PATCH', '/api/v1/nodes/template/status', {
    status: { capacity: all, allocatable: all, conditions },
  });
  t.is((await bound(bed, 'new-node')).spec.nodeName, 'template', 'a node of the template helps');
  await add(bed, simulated('never', 40));
  await pending(bed, 'never', /2 Insufficient cotenant\.io\/gpu-memory/);
  await add(bed, simulated('sum-only', 20));
  t.is((await bound(bed, 'sum-only')).spec.nodeName, 'template', 'sums are counted: no GPU has 20 GiB');

  // By the extender it is a node without GPUs until the agent has described it, and pods go there from then on.
  await pending(bed, 'waits', /shares no GPU/);
  await clear(bed, 'template');

  // On a real node the same pod is refused, and by the sums no other node would be added.
  await addNode(bed, 4, 2);
  await must(bed, 'PATCH', '/api/v1/nodes/gpu-4/status', { status: { capacity: all, allocatable: all } });
  await add(bed, podOf('no-gpu', { main: memory(20) }));
  await pending(bed, 'no-gpu', /cotenant\.io\/gpu-memory/);
  await add(bed, simulated('fits-by-sum', 20));
  t.is((await bound(bed, 'fits-by-sum')).spec.nodeName, 'gpu-4');
  const hpa = parse(readPage('examples/autoscaling/hpa.yaml')) as object;
  await must(bed, 'POST', `${AUTOSCALERS}?dryRun=All`, hpa);
  await clear(bed, 'gpu-4');
}

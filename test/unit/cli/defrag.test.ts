// `cotenant defrag`: which pods may move, the plan in words, and its execution against an API server that answers
// evictions as Kubernetes documents it (API-initiated eviction: 201, 429 for a disruption budget, 404 for a pod that is
// gone).
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { V1Eviction, V1PodDisruptionBudget } from '@kubernetes/client-node';
import test, { type ExecutionContext } from 'ava';
import { formatPodGrant } from '../../../src/api/grant-annotation.ts';
import { formatNodeGpus } from '../../../src/api/node-annotation.ts';
import { connect } from '../../../src/cli/cluster/api-client.ts';
import { planLines, shownPlan, situationOf } from '../../../src/cli/cluster/defrag.ts';
import { movePods } from '../../../src/cli/cluster/move-pods.ts';
import type { Node, Pod } from '../../../src/cli/cluster/objects.ts';
import { GIB } from '../../../src/common/quantity.ts';
import { planDefrag } from '../../../src/scheduler/decisions/defrag.ts';
import { blocks, readPage, section } from '../../support/docs.ts';
import { temporaryFolder } from '../../support/native/node.ts';
import { answer, answerList, refuse, startApiServer } from '../../support/services/api-server.ts';
import { recordOf, uuid } from '../scheduler/cluster.ts';

const NODES: readonly Node[] = [1, 2].map((gpu) => ({
  metadata: {
    name: `gpu-${gpu}`,
    annotations: {
      'cotenant.io/gpus': formatNodeGpus({
        mostTenantsPerGpu: 10,
        gpus: [{ gpuUuid: uuid(gpu), index: 0, model: 'x', usableBytes: 22 * GIB, healthy: true }],
      }),
    },
  },
}));

type Owner = NonNullable<Pod['metadata']['ownerReferences']>[number];
const owner = (name: string, kind = 'ReplicaSet'): Owner => ({
  ...{ apiVersion: kind === 'Job' ? 'batch/v1' : 'apps/v1', kind, name, uid: `uid-${name}`, controller: true },
});

/** A pod with a share of so many GiB of GPU 1 or 2. */
function pod(name: string, gpu: number, gib: number, more: Partial<Pod['metadata']> = {}, priority = 0): Pod {
  const gpus = [{ gpuUuid: uuid(gpu), memoryBytes: gib * GIB, limitBytes: gib * GIB, coresPercent: 0 }];
  const containers = [{ name: 'main', kind: 'app', memoryIsolation: 'on', gpus }] as const;
  const annotations = {
    'cotenant.io/request': recordOf(gib * 1024),
    'cotenant.io/grant': formatPodGrant({ epoch: 1, containers }),
  };
  const metadata = {
    ...{ namespace: 'team', name, uid: `uid-${name}`, annotations },
    ownerReferences: [owner('serve')],
  };
  return {
    metadata: { ...metadata, ...more, annotations: { ...annotations, ...more.annotations } },
    spec: { nodeName: `gpu-${gpu}`, containers: [], priority },
    status: { phase: 'Running' },
  };
}

const wanted = (gib: number, priority = 0) => ({
  ...{ placement: 'binpack' as const, priority },
  shares: [{ memory: { kind: 'bytes' as const, bytes: gib * GIB } }],
});
const planOf = (pods: readonly Pod[], gib: number, priority = 0, budgets: readonly V1PodDisruptionBudget[] = []) => {
  const situation = situationOf({ nodes: NODES, pods, budgets }, wanted(gib, priority));
  return shownPlan(planDefrag(situation), situation, pods);
};
const movesOf = (pods: readonly Pod[], priority = 0, budgets: readonly V1PodDisruptionBudget[] = []) =>
  planOf(pods, 18, priority, budgets).moves.map((move) => move.pod);

/** 12 GiB on GPU 1 and 6 on GPU 2: 18 fit once the 6 have moved. */
const BIG = pod('big', 1, 12, { ownerReferences: [] });

test('only pods move that are made anew, may be evicted and are not more important', (t) => {
  const movable = pod('small', 2, 6);
  t.deepEqual(movesOf([BIG, movable]), ['team/small']);
  t.deepEqual(movesOf([BIG, pod('small', 2, 6, {}, 7)]), []);
  t.deepEqual(movesOf([BIG, pod('small', 2, 6, {}, 7)], 7), ['team/small']);
  const stay: Partial<Pod['metadata']>[] = [
    { ownerReferences: [] },
    { ownerReferences: [owner('j', 'Job')] },
    { ownerReferences: [owner('d', 'DaemonSet')] },
    { annotations: { 'cluster-autoscaler.kubernetes.io/safe-to-evict': 'false' } },
    { annotations: { 'karpenter.sh/do-not-disrupt': 'true' } },
    { deletionTimestamp: '2026-11-21T22:10:00Z' },
  ];
  for (const more of stay) t.deepEqual(movesOf([BIG, pod('small', 2, 6, more)]), [], JSON.stringify(more));
  const labeled = pod('small', 2, 6, { labels: { app: 'x' } });
  const budget = (disruptionsAllowed: number): V1PodDisruptionBudget => ({
    metadata: { namespace: 'team', name: 'b', generation: 1 },
    spec: { selector: { matchLabels: { app: 'x' } } },
    status: { ...{ currentHealthy: 1, desiredHealthy: 1, expectedPods: 1 }, disruptionsAllowed, observedGeneration: 1 },
  });
  t.deepEqual(movesOf([BIG, labeled], 0, [budget(0)]), []);
  t.deepEqual(movesOf([BIG, labeled], 0, [budget(1)]), ['team/small']);
});

test('the plan is shown as on the page', (t) => {
  const [example = ''] = blocks(section(readPage('docs/use/cli.md'), '## cotenant defrag'), '');
  const small = pod('serve-5d9c7-x2x8k', 2, 6, { ownerReferences: [owner('serve-5d9c7')] });
  t.deepEqual(planLines(planOf([BIG, small], 18)), example.trimEnd().split('\n').slice(1));
  t.deepEqual(planLines(planOf([BIG], 18)), [`18432 MiB of one GPU fit node gpu-2 as it is: ${uuid(2)}`]);
  t.regex(
    planLines(planOf([BIG, small], 40)).join(),
    /^No pods can be moved so that 40960 MiB of one GPU fit\. Nearest/,
  );
});

type Reaction = { readonly status: number; readonly message?: string; readonly successor?: Pod };

/** An API server with these pods, which reacts to the eviction of a pod in its own way. */
async function serving(t: ExecutionContext, pods: readonly Pod[], reactions: Readonly<Record<string, Reaction>>) {
  const now = new Map(pods.map((one) => [one.metadata.name, one]));
  const evictions: string[] = [];
  const { config } = await startApiServer(t, async ({ method, url, body }, response) => {
    if (method === 'GET') return answerList(response, [...now.values()]);
    const name = url.pathname.split('/').at(-2) ?? '';
    const { metadata, deleteOptions } = (await body()) as V1Eviction;
    t.is(url.pathname, `/api/v1/namespaces/team/pods/${name}/eviction`);
    t.is(metadata?.name, name);
    t.is(deleteOptions?.preconditions?.uid, now.get(name)?.metadata.uid);
    evictions.push(name);
    const { status, message = '', successor } = reactions[name] ?? { status: 500 };
    if (status !== 201) return refuse(response, status, message);
    now.delete(name);
    if (successor) now.set(successor.metadata.name, successor);
    return answer(response, 201, { kind: 'Status', status: 'Success' });
  });
  const file = join(temporaryFolder(t), 'config');
  writeFileSync(file, config.exportConfig());
  const lines: string[] = [];
  const run = async (gib: number) =>
    movePods(planOf(pods, gib), {
      cluster: await connect(file, undefined),
      read: async () => ({ nodes: NODES, pods: [...now.values()], budgets: [] }),
      situationOf: (objects) => situationOf(objects, wanted(gib)),
      ...{ waitMs: 300, lookMs: 10, print: (line: string) => lines.push(line) },
    });
  return { run, lines, evictions };
}

test('pods are evicted one by one while each successor is where the plan has it', async (t) => {
  const pods = [BIG, pod('a', 2, 3), pod('b', 2, 3)];
  const moved = (name: string) => ({ status: 201, successor: pod(`${name}-2`, 1, 3) });
  const { run, lines, evictions } = await serving(t, pods, { a: moved('a'), b: moved('b') });
  t.deepEqual(await run(20), { ok: true, value: undefined });
  t.deepEqual(evictions, ['b', 'a']);
  t.is(lines.length, 2);
  t.regex(lines[0] ?? '', /^moved team\/b \(ReplicaSet\/serve, priority 0\) from node gpu-2, \S+ to node gpu-1, /);
});

test('the first difference from the plan ends it, with the reason', async (t) => {
  const pods = [BIG, pod('a', 2, 3), pod('b', 2, 3)];
  const cases: [what: string, reactions: Record<string, Reaction>, evicted: string[], says: RegExp][] = [
    [
      'a disruption budget that was used up meanwhile',
      { b: { status: 429, message: "Cannot evict pod as it would violate the pod's disruption budget." } },
      ['b'],
      /^team\/b cannot be evicted: a disruption budget does not allow it now \(Cannot evict pod as it would violate/,
    ],
    ['a pod that is gone', { b: { status: 404 } }, ['b'], /^team\/b cannot be evicted: it is gone or was replaced/],
    ['two budgets for one pod', { b: { status: 500, message: 'more than one' } }, ['b'], /evicted: more than one$/],
    ['no successor', { b: { status: 201 } }, ['b'], /^team\/b was evicted, and no successor was bound within 0.3 s$/],
    [
      'a successor on the GPU that was to be freed',
      { b: { status: 201, successor: pod('b-2', 2, 3) } },
      ['b'],
      /^the successor of team\/b got node gpu-2, \S+, not node gpu-1, /,
    ],
    [
      'a successor that takes more than before',
      { b: { status: 201, successor: pod('b-2', 1, 9) } },
      ['b'],
      /^the plan no longer holds: /,
    ],
  ];
  for (const [what, reactions, evicted, says] of cases) {
    const { run, evictions } = await serving(t, pods, reactions);
    const result = await run(20);
    t.regex(result.ok ? 'it went on' : result.error, says, what);
    t.deepEqual(evictions, evicted, what);
  }
});

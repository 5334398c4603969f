// The extender as a process beside a real API server, on the way to which a fifth of all requests goes wrong. The test
// stands for kube-scheduler: it filters, chooses and binds, again after every failure. The API server itself says what
// was bound where.
import { setTimeout as delay } from 'node:timers/promises';
import type { V1Pod } from '@kubernetes/client-node';
import type { ExecutionContext } from 'ava';
import { GRANT_ANNOTATION, REQUEST_ANNOTATION } from '../../src/api/names.ts';
import { formatNodeGpus } from '../../src/api/node-annotation.ts';
import { random } from '../integration/dashboards/day/fleet.ts';
import { testUnless } from '../support/gate.ts';
import { startExtender } from '../support/product/daemon.ts';
import { BUILD_MS } from '../support/services/helm.ts';
import { recordOf, uuid } from '../unit/scheduler/cluster.ts';
import type { Api } from './bed/api.ts';
import { type LoneApiServer, startLoneApiServer } from './bed/api-server.ts';
import { bedTools } from './bed/bed.ts';
import { eventually } from './bed/eventually.ts';
import { startFaultyProxy } from './support/faulty-proxy.ts';

const tools = bedTools(console.log, false);
const SEED = Number(process.env.COTENANT_SEED ?? 1);
const MIB = 2 ** 20;
const NODE_MIB = 10_240;
const NODES = ['a', 'b', 'c', 'd'];
const PODS = 40;
const AT_ONCE = 4;
const PODS_PATH = '/api/v1/namespaces/default/pods';

testUnless(tools.ok ? undefined : tools.reason)(
  'with faults in every call each pod is bound once, and nothing stays reserved',
  async (t) => {
    t.timeout(BUILD_MS);
    if (!tools.ok) return;
    await checkFaults(t, await startLoneApiServer(t, tools));
  },
);

async function create(api: Api, path: string, object: object): Promise<V1Pod> {
  const { status, body } = await api.ask('POST', path, object);
  if (status !== 201) throw new Error(`${path}: ${status} ${JSON.stringify(body)}`);
  return body as V1Pod;
}

async function checkFaults(t: ExecutionContext, { api, socket }: LoneApiServer): Promise<void> {
  const next = random(SEED);
  await create(api, '/api/v1/namespaces', { metadata: { name: 'ns' } });
  await create(api, '/api/v1/namespaces/default/serviceaccounts', { metadata: { name: 'default' } });
  for (const [index, name] of NODES.entries()) {
    const gpu = { gpuUuid: uuid(index), index: 0, model: 'x', usableBytes: NODE_MIB * MIB, healthy: true };
    const gpus = formatNodeGpus({ mostTenantsPerGpu: 10, gpus: [gpu] });
    await create(api, '/api/v1/nodes', { metadata: { name, annotations: { 'cotenant.io/gpus': gpus } } });
  }
  const proxy = await startFaultyProxy(t, socket, next);
  proxy.share = 0.2;
  const extender = await startExtender(t, proxy.config, { readyMs: 120_000 });
  const call = async (verb: string, body: object): Promise<Record<string, unknown>> =>
    (await (await fetch(`${extender.url}/${verb}`, { method: 'POST', body: JSON.stringify(body) })).json()) as Record<
      string,
      unknown
    >;

  const boundPods = async () =>
    ((await api.get<{ items: V1Pod[] }>(PODS_PATH))?.items ?? []).filter(({ spec }) => spec?.nodeName);
  /** By what the API server has, no node has more than its GPU. */
  const checkNodes = async () => {
    const taken = new Map<string, number>();
    for (const { metadata, spec } of await boundPods()) {
      const node = spec?.nodeName ?? '';
      t.truthy(metadata?.annotations?.[GRANT_ANNOTATION], `${metadata?.name} on ${node} has its grant`);
      taken.set(node, (taken.get(node) ?? 0) + Number(metadata?.labels?.mib));
    }
    for (const [node, mib] of taken) t.true(mib <= NODE_MIB, `${node} has ${mib} MiB`);
    return taken;
  };
  const remove = ({ metadata }: V1Pod) => api.ask('DELETE', `${PODS_PATH}/${metadata?.name}?gracePeriodSeconds=0`);

  const pending: V1Pod[] = [];
  for (let index = 0; index < PODS; index += 1) {
    const mib = 1024 * (1 + Math.floor(next() * 4));
    pending.push(
      await create(api, PODS_PATH, {
        metadata: {
          name: `p${index}`,
          labels: { mib: String(mib) },
          annotations: { [REQUEST_ANNOTATION]: recordOf(mib) },
        },
        spec: { schedulerName: 'none', containers: [{ name: 'main', image: 'x' }] },
      }),
    );
  }
  const [bound, everywhere]: [Set<string>, Set<string>] = [new Set(), new Set()];
  let failures = 0;
  /** One attempt of kube-scheduler. */
  const schedule = async (pod: V1Pod): Promise<boolean> => {
    const { NodeNames } = await call('filter', { Pod: pod, NodeNames: NODES });
    const names = (NodeNames ?? []) as readonly string[];
    const node = names[Math.floor(next() * names.length)];
    if (node === undefined) return false;
    const { name, namespace, uid = '' } = pod.metadata ?? {};
    const { Error: failure } = await call('bind', { PodName: name, PodNamespace: namespace, PodUID: uid, Node: node });
    if (!failure) bound.add(uid);
    else failures += 1;
    const isBound = ((await api.get<V1Pod>(`${PODS_PATH}/${name}`))?.spec?.nodeName ?? '') !== '';
    // What is said to be bound is; what is not said to be may be all the same, and is then found so.
    if (!failure) t.true(isBound, `${name} is bound`);
    return isBound;
  };
  const worker = async () => {
    for (let pod = pending.shift(); pod; pod = pending.shift()) {
      if (await schedule(pod)) {
        everywhere.add(pod.metadata?.uid ?? '');
        await checkNodes();
      } else {
        pending.push(pod);
        const oldest = (await boundPods()).find(({ metadata }) => everywhere.has(metadata?.uid ?? ''));
        if (oldest && next() < 0.3) await remove(oldest);
        await delay(500);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  t.is(everywhere.size, PODS);
  const faults = [...proxy.faults].map(([kind, times]) => `${kind} ${times}`).join(', ');
  t.log(`seed ${SEED}: ${bound.size} binds said to be done, ${failures} failed; ${faults}`);
  t.true(proxy.faults.size === 7, faults);

  proxy.share = 0;
  const taken = await checkNodes();
  const left = await boundPods();
  await eventually(
    async () => (await extender.metric('cotenant_scheduler_granted_pods')) === left.length || undefined,
    'the extender knows the bound pods',
  );
  const room = async (mib: number) =>
    (
      await call('filter', {
        Pod: { metadata: { uid: 'x', annotations: { [REQUEST_ANNOTATION]: recordOf(mib) } } },
        NodeNames: NODES,
      })
    ).NodeNames as readonly string[];
  for (const node of NODES) {
    const free = NODE_MIB - (taken.get(node) ?? 0);
    if (free > 0) t.true((await room(free)).includes(node), `${node} has ${free} MiB`);
    t.false((await room(free + 1)).includes(node), `${node} has no more than ${free} MiB`);
  }
  for (const pod of left) await remove(pod);
  await eventually(async () => (await room(NODE_MIB)).length === NODES.length || undefined, 'all is free again');
}

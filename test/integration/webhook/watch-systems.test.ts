// What the webhook learns of other systems from an API server: at its start, and when they come and go.
import type { ServerResponse } from 'node:http';
import test, { type ExecutionContext } from 'ava';
import { watchSystems } from '../../../webhook/watch-systems.ts';
import { eventually } from '../../support/native/node.ts';
import { answerList, refuse, startApiServer, watchers } from '../../support/services/api-server.ts';

const gpuNode = (name: string, amount: string) => ({
  metadata: { name, resourceVersion: '2' },
  status: { allocatable: { 'tencent.com/vcuda-core': amount } },
});
const HAMI = { metadata: { name: 'hami', resourceVersion: '2' }, webhooks: [{ name: 'vgpu.hami.io' }] };
const kai = (availableReplicas: number) => ({
  metadata: { namespace: 'kai-scheduler', name: 'kai-scheduler-default', resourceVersion: '3' },
  status: { availableReplicas },
});

async function startApi(t: ExecutionContext, mayRead: () => boolean = () => true) {
  const watched = { nodes: watchers(), webhooks: watchers(), kai: watchers(), others: watchers() };
  const kindOf = (path: string, selector: string | null) => {
    if (path === '/api/v1/nodes') return 'nodes';
    if (path.endsWith('/mutatingwebhookconfigurations')) return 'webhooks';
    t.regex(`${path} ${selector}`, /^\/apis\/apps\/v1\/namespaces\/[a-z-]+\/deployments metadata\.name=[a-z-]+$/);
    return path.includes('/kai-scheduler/') ? 'kai' : 'others';
  };
  const { config } = await startApiServer(t, ({ url, isWatch }, response: ServerResponse) => {
    if (!mayRead()) return refuse(response, 403, 'forbidden');
    const kind = kindOf(url.pathname, url.searchParams.get('fieldSelector'));
    if (isWatch) return watched[kind].add(response);
    return answerList(response, kind === 'nodes' ? [gpuNode('n1', '100')] : []);
  });
  return { config, watched };
}

test('systems are found at the start, when they come, and no longer when they are gone', async (t) => {
  const { config, watched } = await startApi(t);
  const lines: string[] = [];
  const log = (line: string) => lines.push(line);
  const watch = await watchSystems(config, { info: log, warn: log });
  const names = () => [...watch.systems().keys()].sort().join();
  t.deepEqual([...watch.systems()], [['tke', 'node n1 has tencent.com/vcuda-core']]);
  await eventually(() => Object.values(watched).every(({ open }) => open.size > 0) || undefined, 'all watches');
  watched.webhooks.send('ADDED', HAMI);
  watched.kai.send('ADDED', kai(1));
  await eventually(() => names() === 'hami,kai,tke' || undefined, 'the webhook and the scheduler');
  // The kubelet keeps the resource of a plugin that is gone, with an amount of 0.
  watched.nodes.send('MODIFIED', gpuNode('n1', '0'));
  watched.kai.send('MODIFIED', kai(0));
  watched.webhooks.send('DELETED', HAMI);
  await eventually(() => names() === '' || undefined, 'that all are gone');
  t.deepEqual(lines.toSorted(), [
    'hami is alive: webhook vgpu.hami.io',
    'hami is gone',
    'kai is alive: Deployment kai-scheduler/kai-scheduler-default',
    'kai is gone',
    'tke is alive: node n1 has tencent.com/vcuda-core',
    'tke is gone',
  ]);
  await watch.close();
});

test('it waits until it may read the cluster, and says what it cannot', async (t) => {
  let allowed = false;
  const { config } = await startApi(t, () => allowed);
  const lines: string[] = [];
  const log = (line: string) => lines.push(line);
  const watching = watchSystems(config, { info: log, warn: log });
  await eventually(() => lines.find((line) => line.includes('/api/v1/nodes')), 'a warning');
  t.regex(lines.find((line) => line.includes('/api/v1/nodes')) ?? '', /^cannot look for other systems at .*forbidden/);
  allowed = true;
  const watch = await watching;
  t.deepEqual([...watch.systems().keys()], ['tke']);
  await watch.close();
});

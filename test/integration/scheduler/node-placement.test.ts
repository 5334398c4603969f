// The placement that a Node's labels choose for its GPUs, as the extender learns it from an API server.
import test from 'ava';
import { formatNodeGpus } from '../../../src/api/node-annotation.ts';
import { createLogger } from '../../../src/common/logger.ts';
import { createAllocations } from '../../../src/placement/allocations.ts';
import { watchCluster } from '../../../src/scheduler/allocations/cluster-state.ts';
import { createInFlightBindings } from '../../../src/scheduler/allocations/in-flight.ts';
import { eventually } from '../../support/native/node.ts';
import { answerList, startApiServer, watchers } from '../../support/services/api-server.ts';

const nodeWith = (labels: object) => ({
  metadata: {
    name: 'n',
    resourceVersion: '2',
    labels,
    annotations: { 'cotenant.io/gpus': formatNodeGpus({ mostTenantsPerGpu: 10, gpus: [] }) },
  },
});

test('the labels of a Node choose its placement, ours before that of ACK', async (t) => {
  const watched = watchers();
  const { config } = await startApiServer(t, ({ url, isWatch }, response) => {
    const isNodes = url.pathname === '/api/v1/nodes';
    if (isWatch) return (isNodes ? watched : watchers()).add(response);
    return answerList(response, isNodes ? [nodeWith({ 'ack.node.gpu.placement': 'spread' })] : []);
  });
  const allocations = createAllocations();
  const cluster = watchCluster({
    config,
    allocations,
    inFlight: createInFlightBindings(),
    onWatchProblem: (_, text) => t.fail(text),
    logger: createLogger({ component: 'test', write: () => undefined }),
  });
  await cluster.ready;
  const placement = () => allocations.placeableNode('n')?.placement ?? 'none';
  t.is(placement(), 'spread');
  await eventually(() => watched.open.size > 0 || undefined, 'the watch');
  for (const [labels, wanted] of [
    [{ 'ack.node.gpu.placement': 'spread', 'cotenant.io/placement': 'fragmentation' }, 'fragmentation'],
    [{ 'ack.node.gpu.placement': 'binpack' }, 'binpack'],
    [{ 'ack.node.gpu.placement': 'other' }, 'none'],
    [{ 'cotenant.io/placement': 'spread' }, 'spread'],
    [{}, 'none'],
  ] as const) {
    watched.send('MODIFIED', nodeWith(labels));
    await eventually(() => placement() === wanted || undefined, wanted);
    t.is(placement(), wanted);
  }
  await cluster.close();
});

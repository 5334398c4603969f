// The watches of many nodes when an API server ends them all at once: they do not come back at once.
import { writeFileSync } from 'node:fs';
import type { ServerResponse } from 'node:http';
import { join } from 'node:path';
import test from 'ava';
import { listAndWatch } from '../../../src/kube/list-watch.ts';
import { eventually, startNode, temporaryFolder } from '../../support/native/node.ts';
import { CHART_ENV, startAgent } from '../../support/product/agent.ts';
import { answerList, refuse, startApiServer, watchers } from '../../support/services/api-server.ts';
import { startStandIn } from '../../support/services/stand-in.ts';

const NODES = 100;
const SPREAD_MS = 4000;

const ENDS: Readonly<Record<string, (response: ServerResponse) => void>> = {
  'with its last chunk': (response) => response.end(),
  'without its last chunk': (response) => response.destroy(),
};

for (const [how, end] of Object.entries(ENDS)) {
  test(`watches of many nodes that end at once begin again spread out: ${how}`, async (t) => {
    const watching = watchers();
    const begunMs: number[] = [];
    let lists = 0;
    let isOld = false;
    const { config } = await startApiServer(t, ({ url, isWatch }, response) => {
      if (!isWatch) {
        lists += 1;
        return answerList(response, [], isOld ? '2' : '1');
      }
      begunMs.push(performance.now());
      // As of a server that has none of the changes before.
      if (isOld && url.searchParams.get('resourceVersion') === '1') return refuse(response, 410);
      return watching.add(response);
    });
    const following = Array.from({ length: NODES }, () => {
      const { ready, close } = listAndWatch(config, {
        ...{ path: '/api/v1/pods', keep: () => undefined, onList: () => {}, onChange: () => {}, onGone: () => {} },
        ...{ onProblem: () => {}, spreadMs: SPREAD_MS },
      });
      t.teardown(close);
      return ready;
    });
    await Promise.all(following);
    const allWatch = () => watching.open.size === NODES || undefined;
    await eventually(allWatch, 'all watch');
    t.is(lists, NODES);

    begunMs.length = 0;
    isOld = true;
    const endedMs = performance.now();
    for (const response of watching.open) end(response);
    const allAgain = () => (begunMs.length >= 2 * NODES && watching.open.size === NODES) || undefined;
    await eventually(allAgain, 'all watch again');
    // Each asked once, was refused, and then listed without another long wait.
    t.is(begunMs.length, 2 * NODES);
    t.is(lists, 2 * NODES);
    // A hundred random times, each with two requests: that half of them are in the first quarter happens less than once
    // in a million runs.
    const early = begunMs.filter((atMs) => atMs - endedMs < SPREAD_MS / 4);
    t.true(early.length < NODES, `${early.length} within ${SPREAD_MS / 4} ms`);
  });
}

test('the agent waits up to its setting with each of its watches', async (t) => {
  const cluster = await startStandIn(t, { nodes: 1, pods: 1, shares: 0 });
  const file = join(temporaryFolder(t), 'kubeconfig');
  writeFileSync(file, cluster.config.exportConfig());
  const node = await startNode(t, '--gpu', 't4');
  const settings = {
    ...{ 'kubernetes.enabled': true, 'kubernetes.nodeName': cluster.nodeName(0), reconnectSeconds: 3 },
    ...{ 'kubernetes.podResources': join(temporaryFolder(t), 'kubelet.sock'), calibrate: false },
  };
  // The longest pause that can be drawn.
  const NODE_OPTIONS = `${CHART_ENV.NODE_OPTIONS} --import=data:text/javascript,Math.random=()=>0.999`;
  await startAgent(t, node, { settings, env: { ...CHART_ENV, NODE_OPTIONS, KUBECONFIG: file } });
  const allWatch = () => cluster.watched === 2 || undefined;
  await eventually(allWatch, 'pods and ResourceSlices are watched', 30_000);
  const cutMs = performance.now();
  cluster.cutWatches();
  await eventually(() => cluster.watched === 0 || undefined, 'no watch is left');
  await eventually(() => cluster.watched > 0 || undefined, 'one begins again', 30_000);
  const waitedMs = performance.now() - cutMs;
  t.true(waitedMs > 2900, `${waitedMs} ms`);
  await eventually(allWatch, 'the others, too', 30_000);
});

// The watches of many nodes when an API server ends them all at once: they do not come back at once.
import type { ServerResponse } from 'node:http';
import test from 'ava';
import { listAndWatch } from '../../../src/kube/list-watch.ts';
import { eventually } from '../../support/native/node.ts';
import { answerList, refuse, startApiServer, watchers } from '../../support/services/api-server.ts';

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
    await eventually(() => watching.open.size === 0 || undefined, 'all have ended');
    await eventually(allWatch, 'all watch again', 30_000);
    // Each asked once, was refused, and then listed without another long wait.
    t.is(begunMs.length, 2 * NODES);
    t.is(lists, 2 * NODES);
    // A hundred random times, each with two requests: that half of them are in the first quarter happens less than once
    // in a million runs.
    const early = begunMs.filter((atMs) => atMs - endedMs < SPREAD_MS / 4);
    t.true(early.length < NODES, `${early.length} within ${SPREAD_MS / 4} ms`);
  });
}

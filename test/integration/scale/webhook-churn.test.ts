// Reviews as a busy cluster sends them (of many namespaces and shares, malformed ones, connections that are cut): the
// webhook keeps no object, timer or socket of them. In this process, where all can be counted.
import test from 'ava';
import { startWebhook } from '../../../webhook/server.ts';
import { grown, inSimulatedHours, LEAKED, openSockets, takeCensus } from '../../support/machine/object-census.ts';
import { eventually } from '../../support/native/node.ts';
import { configured, creation } from '../../unit/webhook/reviews.ts';
import { connectRaw, post, trusting } from '../webhook/client.ts';

/** Before what is counted. */
const REVIEWS = 500;
/** Each second a pod is created, which the API server asks about twice. */
const COUNTED_REVIEWS = inSimulatedHours(2 * 3600, REVIEWS);
/** A connection is cut after each so many. */
const CUT_EVERY = 20;
/** Less than one object kept of each review. */
const MOST_GROWN = { objects: REVIEWS * 0.8, mib: 3 };

test('reviews and cut connections leave no object, timer or socket behind', async (t) => {
  t.timeout(600_000 + 20 * COUNTED_REVIEWS);
  const logger = { info: () => {}, warn: () => {}, error: () => {} };
  const webhook = await startWebhook({ configuration: () => configured(), host: 'localhost', logger });
  t.teardown(() => webhook.close());
  const agent = trusting(webhook.certificate);
  t.teardown(() => agent.destroy());
  let reviews = 0;
  const cycle = async (count: number) => {
    for (let index = 0; index < count; index += 1) {
      reviews += 1;
      const limits = { 'cotenant.io/gpu-memory': `${256 + (reviews % 50_000)}Mi` };
      const pod = {
        metadata: { name: `pod-${reviews}` },
        spec: { containers: [{ name: `main-${reviews}`, image: 'x', resources: { limits } }] },
      };
      const { status } = await post(
        webhook,
        agent,
        index % 2 === 0 ? '/mutate' : '/validate',
        JSON.stringify(creation(pod, { namespace: `team-${reviews}` })),
      );
      t.is(status, 200);
      if (index % 10 === 0) t.is((await post(webhook, agent, '/mutate', `{"n":${reviews}`)).status, 400);
    }
    for (let index = 0; index < count; index += CUT_EVERY) {
      const { socket, ended } = await connectRaw(webhook);
      socket.write('POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n{"half": ');
      socket.destroy();
      await ended;
    }
  };
  const settled = async (most: number) => {
    await eventually(() => openSockets() <= most || undefined, 'cut connections are gone', 30_000);
    return takeCensus();
  };
  // Once before, for what is kept of the newest whatever comes.
  await cycle(REVIEWS);
  // The server, and both ends of the one connection that is kept.
  const before = await settled(8);
  await cycle(COUNTED_REVIEWS);
  const after = await settled(before.sockets + LEAKED - 1);
  t.log(`${COUNTED_REVIEWS} reviews`, before, after);
  t.deepEqual(grown(before, after, MOST_GROWN), []);
});

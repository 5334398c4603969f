// How long admission takes for one review of the API server: the handler alone, and the whole way through express over
// loopback HTTP, client and server in this one process, one request at a time.
import { once } from 'node:events';
import { Agent, createServer, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import { review } from '../../../webhook/admission-review.ts';
import { createMetrics } from '../../../webhook/metrics.ts';
import { createApp } from '../../../webhook/server.ts';
import { configured, fixture } from '../../unit/webhook/reviews.ts';
import type { Bench } from '../bench.ts';
import type { Row } from '../row.ts';
import { median, quantile } from '../statistics.ts';
import { overTls } from './over-tls.ts';

const REVIEWS = {
  dialect: '1.26-create-ack-deployment',
  own: '1.36-create-two-shares',
  plain: '1.36-create-plain-dry-run',
};
const HANDLER_P50_US = 60;
const HANDLER_P99_US = 300;

const configuration = configured();

/**
 * Microseconds of `body`, called again and again for `ms`, whose first tenth warms up and does not count: a busy machine
 * makes fewer calls and takes no longer.
 */
async function timeCalls(ms: number, body: () => void | Promise<void>): Promise<number[]> {
  const times: number[] = [];
  const begun = performance.now();
  for (;;) {
    const started = performance.now();
    const done = body();
    if (done) await done;
    const ended = performance.now();
    if (ended - begun > ms / 10) times.push((ended - started) * 1000);
    if (ended - begun > ms) return times;
  }
}

/** Body in, answer's text out: what the handler does between the last byte read and the first one written. */
function handle(body: Buffer): string {
  const reviewed = review('mutate', JSON.parse(body.toString('utf8')), configuration);
  if (reviewed.outcome === 'malformed') throw new Error('the review was not understood');
  return JSON.stringify(reviewed.answer);
}

/** The floor of any handler: the body parsed and a text of the answer's kind made. */
function parseOnly(body: Buffer): string {
  return JSON.stringify(JSON.parse(body.toString('utf8')).request.uid);
}

async function timeHttp(body: Buffer, ms: number): Promise<number[]> {
  const server = createServer(
    createApp({
      configuration: () => configuration,
      metrics: createMetrics(),
      state: { stopping: false },
      logger: { error: console.error },
    }),
  ).listen(0);
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const headers = { 'content-length': body.length };
  const times = await timeCalls(ms, async () => {
    const outgoing = request({ port, path: '/mutate', method: 'POST', agent, headers });
    outgoing.end(body);
    const [incoming] = await once(outgoing, 'response');
    incoming.resume();
    await once(incoming, 'end');
  });
  agent.destroy();
  server.close();
  return times;
}

export const webhook: Bench = {
  name: 'webhook',
  what: 'reviews of admission: the handler, the way over HTTP, and many over TLS',
  isPure: true,
  async run(scope, { quick }) {
    const rows: Row[] = [];
    const ms = quick ? 1500 : 6000;
    for (const [kind, name] of Object.entries(REVIEWS)) {
      const body = Buffer.from(JSON.stringify(fixture(name), null, name.includes('ack') ? 2 : 0));
      const floor = await timeCalls(ms, () => void parseOnly(body));
      const times = await timeCalls(ms, () => void handle(body));
      const what = `its ${body.length} bytes only parsed`;
      rows.push(
        {
          name: `webhook.handler.${kind}.p50_us`,
          value: median(times),
          unit: 'us',
          reference: { value: median(floor), what },
          goal: { most: HANDLER_P50_US },
        },
        {
          name: `webhook.handler.${kind}.p99_us`,
          value: quantile(times, 0.99),
          unit: 'us',
          reference: { value: quantile(floor, 0.99), what },
          goal: { most: HANDLER_P99_US },
        },
      );
      const whole = await timeHttp(body, ms);
      rows.push({
        name: `webhook.http.${kind}.p50_us`,
        value: median(whole),
        unit: 'us',
        reference: {
          value: median(times),
          what: 'the handler alone; the value has client, loopback and express around it',
        },
      });
    }
    rows.push(...(await overTls(scope, quick ? 2 : 10)));
    return rows;
  },
};

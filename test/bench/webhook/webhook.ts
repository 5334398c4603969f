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

/** Microseconds of `body`, called again and again; the first tenth warms up and does not count. */
function timeCalls(runs: number, body: () => void): number[] {
  const times: number[] = [];
  for (let run = -runs / 10; run < runs; run += 1) {
    const started = performance.now();
    body();
    if (run >= 0) times.push((performance.now() - started) * 1000);
  }
  return times;
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

async function timeHttp(body: Buffer, runs: number): Promise<number[]> {
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
  const times: number[] = [];
  for (let run = -runs / 10; run < runs; run += 1) {
    const started = performance.now();
    const outgoing = request({ port, path: '/mutate', method: 'POST', agent, headers });
    outgoing.end(body);
    const [incoming] = await once(outgoing, 'response');
    incoming.resume();
    await once(incoming, 'end');
    if (run >= 0) times.push((performance.now() - started) * 1000);
  }
  agent.destroy();
  server.close();
  return times;
}

export const webhook: Bench = {
  name: 'webhook',
  what: 'reviews of admission: the handler, the way over HTTP, and many over TLS',
  async run(scope, { quick }) {
    const rows: Row[] = [];
    const [handled, sent] = quick ? [20_000, 2_000] : [100_000, 20_000];
    for (const [kind, name] of Object.entries(REVIEWS)) {
      const body = Buffer.from(JSON.stringify(fixture(name), null, name.includes('ack') ? 2 : 0));
      const floor = timeCalls(handled, () => parseOnly(body));
      const times = timeCalls(handled, () => handle(body));
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
      const whole = await timeHttp(body, sent);
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

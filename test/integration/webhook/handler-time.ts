// Prints how long the webhook takes for one review of about 6 kB: `node test/integration/webhook/handler-time.ts`.
// No test: times are for people and for the bench, and this machine's load decides them as much as the code does.
import { once } from 'node:events';
import { Agent, createServer, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createMetrics } from '../../../webhook/metrics.ts';
import { review } from '../../../webhook/review.ts';
import { createApp } from '../../../webhook/server.ts';
import { configured, fixture } from '../../unit/webhook/reviews.ts';

const configuration = configured();
const REVIEWS = ['1.26-create-ack-deployment', '1.36-create-two-shares', '1.36-create-plain-dry-run'];

function print(what: string, microseconds: number[]): void {
  const sorted = microseconds.toSorted((a, b) => a - b);
  const at = (share: number) => (sorted[Math.floor(sorted.length * share)] ?? Number.NaN).toFixed(0).padStart(5);
  console.log(`${what.padEnd(64)} p50 ${at(0.5)} us   p99 ${at(0.99)} us   n ${sorted.length}`);
}

/** Body in, answer's text out: what the handler does between the last byte read and the first one written. */
function timeHandler(name: string, body: Buffer, runs: number): void {
  const once = () => {
    const reviewed = review('mutate', JSON.parse(body.toString('utf8')), configuration);
    return reviewed.outcome === 'malformed' ? '' : JSON.stringify(reviewed.answer);
  };
  for (let run = 0; run < 3_000; run += 1) once();
  const times: number[] = [];
  for (let run = 0; run < runs; run += 1) {
    const started = performance.now();
    once();
    times.push((performance.now() - started) * 1000);
  }
  print(`handler ${name} (${body.length} B)`, times);
}

/** The whole way through express over loopback HTTP, client and server in this one process, one request at a time. */
async function timeHttp(name: string, body: Buffer, runs: number): Promise<void> {
  const server = createServer(createApp(configuration, createMetrics(), { stopping: false }, console.error)).listen(0);
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const times: number[] = [];
  for (let run = 0; run < runs + 1_000; run += 1) {
    const started = performance.now();
    const outgoing = request({
      port,
      path: '/mutate',
      method: 'POST',
      agent,
      headers: { 'content-length': body.length },
    });
    outgoing.end(body);
    const [incoming] = await once(outgoing, 'response');
    incoming.resume();
    await once(incoming, 'end');
    if (run >= 1_000) times.push((performance.now() - started) * 1000);
  }
  print(`loopback HTTP, client included, ${name}`, times);
  agent.destroy();
  server.close();
}

for (const name of REVIEWS) {
  const body = Buffer.from(JSON.stringify(fixture(name), null, name.includes('ack') ? 2 : 0));
  timeHandler(name, body, 20_000);
  await timeHttp(name, body, 3_000);
}

// A small cluster that works, as a Prometheus sees it: two simulated nodes with tenants of every kind, a webhook that
// answers reviews, and a scheduler in front of a stand-in for the API server.
import { execFileSync } from 'node:child_process';
import { request as plain } from 'node:http';
import { request } from 'node:https';
import { join } from 'node:path';
import { CONFIGURATION } from '../../dashboards/lib/configuration.ts';
import { exampleReview } from '../../src/cli/demo/admission-request.ts';
import { BUILD, eventually, startNode, type Teardown } from '../support/native/node.ts';
import { type RunningAgent, runTenant, startAgent, tell } from '../support/product/agent.ts';
import { type Daemon, startExtender, startWebhook } from '../support/product/daemon.ts';
import { MIB } from '../support/product/grant.ts';
import { type RunningPrometheus, scraping, startPrometheus } from '../support/services/prometheus.ts';
import { startStandIn } from '../support/services/stand-in.ts';
import { recordOf } from '../unit/scheduler/cluster.ts';

const CLIENT = join(BUILD, 'tests/client');
const MAIN = join(import.meta.dirname, '../../src/cli/main.ts');
const GPUS = ['h100', 'l4', 'a10', 'h100,mig=1g.10gb+3g.40gb'];
const PAST = ['env', '-u', 'LD_PRELOAD', CLIENT];
const AGAIN_MS = 500;

/** Until the test ends: `call` each half second. */
function again(t: Teardown, call: () => void): void {
  const timer = setInterval(call, AGAIN_MS);
  t.teardown(() => clearInterval(timer));
}

const post = (url: string, body: object, send: typeof plain): void => {
  const text = JSON.stringify(body);
  const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) };
  // The certificate is one that the webhook made itself.
  const options = { method: 'POST', headers, rejectUnauthorized: false };
  send(url, options, (answer) => answer.resume())
    .on('error', () => {})
    .end(text);
};

async function controlPlane(t: Teardown): Promise<readonly [webhook: Daemon, extender: Daemon]> {
  const cluster = await startStandIn(t, { nodes: 5, pods: 60, shares: 30 });
  const [webhook, extender] = [await startWebhook(t), await startExtender(t, cluster.config)];
  const names = Array.from({ length: 5 }, (_, index) => cluster.nodeName(index));
  const pod = (mib: number) => ({
    Pod: { metadata: { uid: `u${mib}`, annotations: { 'cotenant.io/request': recordOf(mib) } } },
    NodeNames: names,
  });
  again(t, () => {
    post(`${webhook.url}/mutate`, exampleReview('705ab4f5-6393-11e8-b7cc-42010a800002'), request as typeof plain);
    for (const mib of [1024, 200_000]) post(`${extender.url}/filter`, pod(mib), plain);
    post(`${extender.url}/prioritize`, pod(1024), plain);
  });
  return [webhook, extender];
}

/** Tenants that behave, wait, are idle, at their limit, over it, past the interposer, and without a grant. */
async function tenants(t: Teardown, node: Awaited<ReturnType<typeof startNode>>, agent: RunningAgent): Promise<void> {
  const start = (name: string, flags: readonly string[], command: readonly string[] = [CLIENT]) =>
    runTenant(t, node, agent, ['--name', name, ...flags], command);
  const say = async (tenant: ReturnType<typeof start>, ...commands: readonly string[]) => {
    for (const command of commands) await tell(tenant, command);
  };
  const train = start('train-llama', ['--gpu-memory', '20Gi', '--gpu-cores', '50']);
  await say(train, 'init', 'context 0', `alloc ${15_000 * MIB}`);
  train.write('launch 100000 500');
  const slow = start('notebook-mueller', ['--gpu-memory', '4Gi', '--gpu-cores', '10']);
  await say(slow, 'init', 'context 0', `alloc ${1000 * MIB}`);
  slow.write('launch 100000 500');
  for (let index = 0; index < 9; index += 1) {
    const serve = start(`serve-6d4cf56db6-x${index}k7`, ['--gpu-memory', '2Gi', '--gpu-cores', '5']);
    await say(serve, 'init', 'context 0', `alloc ${(200 + 100 * index) * MIB}`);
  }
  const near = start('embedding', ['--gpu-memory', '1Gi']);
  await say(near, 'init', 'context 0', `alloc ${700 * MIB}`);
  execFileSync(process.execPath, [MAIN, 'set', 'embedding', '--enforcement', 'report', '--state', agent.state]);
  again(t, () => near.write(`alloc ${900 * MIB}`));
  const past = start('past-the-interposer', ['--gpu-memory', '2Gi'], PAST);
  await say(past, 'init', 'context 0', `alloc ${500 * MIB}`);
  past.write('load async 120000 500');
  const rogue = start('rogue', ['--gpu-memory', '1Gi'], PAST);
  await say(rogue, 'init', 'context 0', `alloc ${2048 * MIB}`);
  await rogue.ended;
}

/** Resolves when each part was scraped for so long that rates over ten seconds have a past. */
export async function liveCluster(t: Teardown): Promise<RunningPrometheus> {
  const node = await startNode(t, ...GPUS.flatMap((gpu) => ['--gpu', gpu]));
  // So many that the index of the GPU that is lost below has data of a GPU that is not.
  const lax = await startNode(t, ...Array.from({ length: 3 }, () => ['--gpu', 'l4']).flat());
  const settings = { computePolicy: 'fixed', intervalMs: 500, processMetrics: true } as const;
  const agent = await startAgent(t, node, { settings });
  const report = await startAgent(t, lax, { settings: { 'enforcement.mode': 'report', intervalMs: 500 } });
  const [webhook, extender] = await controlPlane(t);
  // All but the one that MIG divides.
  await agent.measured(GPUS.length - 1);
  const { global, scrape_configs: agents } = scraping(
    [agent.url, { instance: 'gpu-node-a' }],
    [report.url, { instance: 'gpu-node-b' }],
  );
  const job = (name: string, { health }: Daemon) => ({
    job_name: name,
    static_configs: [{ targets: [new URL(health).host] }],
  });
  const { webhookJob, schedulerJob } = CONFIGURATION;
  const scrape_configs = [...agents, job(webhookJob, webhook), job(schedulerJob, extender)];
  const prometheus = await startPrometheus(t, { configuration: { global, scrape_configs } });
  for (const part of ['occupancy', 'tensor', 'dram', 'fp32']) node.control('activity', '0', part, '40');
  await tenants(t, node, agent);
  const over = runTenant(t, lax, report, ['--gpu-memory', '1Gi', '--name', 'over'], PAST);
  for (const command of ['init', 'context 0', `alloc ${2048 * MIB}`]) await tell(over, command);
  node.control('ecc', '1', 'uncorrected', '1');
  node.control('throttle', '1', 'hw-thermal');
  node.control('lose', '2');
  const past = ['cotenant_device_unhealthy_reason', 'cotenant_device_sm_active_ratio', 'cotenant_scheduler_leader'];
  const old = past.map((name) => `count_over_time(${name}[1m]) > 25`);
  await eventually(
    async () =>
      (await Promise.all(old.map((each) => prometheus.query(each)))).every(({ length }) => length > 0) || undefined,
    'half a minute was scraped',
    90_000,
  );
  return prometheus;
}

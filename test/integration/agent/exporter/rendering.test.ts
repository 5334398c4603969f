// Programs that draw or code video, which no interposer is in: counted for their container like any other, once where
// they are in two lists, and held to the grant by the agent.
import { join } from 'node:path';
import test from 'ava';
import { describeWatch, isWithin, startWatch, stopping } from '../../../support/machine/scheduling-delays.ts';
import { OUT_OF_MEMORY } from '../../../support/native/client.ts';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { actedOn, runTenant, seriesOf, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');
/** A renderer calls no CUDA, so the interposer, which is there, does nothing in it. */
const RENDERER = ['env', '-u', 'LD_PRELOAD', 'COTENANT_SIM_PROCESS_TYPE=graphics'];
const GRANT = 1024 * MIB;
const WITHIN_MS = 5000;
const SM_SECONDS = 'cotenant_container_sm_seconds_total';
const USED = 'cotenant_container_memory_used_bytes';

test('a graphics process is attributed, counted and stopped like others', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 250, urgentIntervalMs: 250 } });
  await agent.measured(1);
  const drawing = runTenant(
    t,
    node,
    agent,
    ['--gpu-memory', '1Gi', '--name', 'drawing'],
    [...RENDERER, 'COTENANT_SIM_VIDEO=40,10', CLIENT],
  );
  await tell(drawing, 'init');
  await tell(drawing, 'context 0');
  t.is((await tell(drawing, `alloc ${512 * MIB}`))[0], 0);
  const own = { pod: 'drawing' };
  const truth = () => {
    const clients = node.usage().clients.filter(({ command, alive }) => command === 'client' && alive);
    t.is(clients.length, 1);
    return clients[0]?.gpus[0]?.bytes;
  };
  await eventually(async () => (await agent.metric(USED, own)) === truth() || undefined, "the driver's count of it");
  t.is(await agent.metric('cotenant_container_info', { ...own, fence: 'agent' }), 1);
  t.is(await agent.metric('cotenant_container_processes', own), 1);
  t.is(await agent.metric('cotenant_device_processes', { type: 'graphics' }), 1);
  t.is(await agent.metric('cotenant_device_processes', { type: 'compute' }), 0);
  t.is(await agent.metric('cotenant_device_memory_unattributed_bytes'), 0);

  /** All of one sample, and when that was taken. */
  const engines = async () => {
    const page = await agent.metrics();
    const [encoder = 0, decoder = 0] = ['encoder', 'decoder'].map((engine) =>
      seriesOf(page, `cotenant_container_${engine}_seconds_total`, own),
    );
    const collected = 'cotenant_exporter_collector_last_success_timestamp_seconds';
    return { encoder, decoder, atSeconds: seriesOf(page, collected, { collector: 'container' }) ?? Number.NaN };
  };
  /** The first sample with a new reading of utilization, which comes once a second. */
  const newReading = async () => {
    const { encoder } = await engines();
    return eventually(async () => {
      const now = await engines();
      return now.encoder > encoder ? now : undefined;
    }, 'a new reading');
  };
  const before = await newReading();
  // However late samples and this test are, the longer it takes the less that is of it: counted in both lists, it would
  // come to 80 %.
  const { encoder, decoder } = await eventually(
    async () => {
      const now = await newReading();
      const used = { encoder: now.encoder - before.encoder, decoder: now.decoder - before.decoder };
      const share = used.encoder / (now.atSeconds - before.atSeconds);
      return used.encoder >= 1 && share > 0.35 && share < 0.45 ? used : undefined;
    },
    'the encoder is used for 40 % of the time',
    60_000,
  );
  t.true(Math.abs(encoder / decoder - 4) < 0.01, `${encoder} s and ${decoder} s of 40 % and 10 %`);
  t.is(await agent.metric(SM_SECONDS, own), 0, 'no kernel ran');
  // Rendering runs on the SMs like kernels, and is reported like them.
  t.is((await tell(drawing, 'launch 2000 1000'))[0], 0);
  const drawnSeconds = await eventually(async () => {
    const seconds = (await agent.metric(SM_SECONDS, own)) ?? 0;
    return seconds >= 1 ? seconds : undefined;
  }, 'a second of the SMs');
  t.true(drawnSeconds <= 3, `${drawnSeconds} s of 2 s of kernels`);
  t.is((await tell(drawing, 'sync'))[0], 0);

  t.deepEqual(agent.audit(), [], 'within its grant nothing is done');
  t.is((await tell(drawing, `alloc ${400 * MIB}`))[0], 0, 'nothing refuses it');
  const over = startWatch(stopping(agent.child, node.child));
  t.true((truth() ?? 0) > GRANT);
  t.is((await drawing.ended).code, 137);
  const taken = over();
  t.true(isWithin(WITHIN_MS, taken), `stopped ${describeWatch(taken)}`);
  t.deepEqual(
    actedOn(agent.audit())
      .map(({ action, pod, reason }) => `${action} ${pod} ${reason}`)
      .slice(0, 2),
    ['warn drawing bypass', 'kill drawing bypass'],
  );
});

test("a process in both lists counts once, against its container's grant", async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 250 } });
  await agent.measured(1);
  // Two processes of one tenant: the second draws, and says when it holds its memory by living on.
  const script = [
    `mkfifo in; (exec ${RENDERER.join(' ')} ${CLIENT} < in > /dev/null) &`,
    `printf 'init\\ncontext 0\\nalloc ${400 * MIB}\\n' > in &`,
    // The pipe stays open, and with it the renderer.
    `exec 9> in; exec env COTENANT_SIM_PROCESS_TYPE=compute+graphics ${CLIENT}`,
  ].join('\n');
  const tenant = runTenant(
    t,
    node,
    agent,
    ['--gpu-memory', '1Gi', '--name', 'both'],
    ['sh', '-c', `cd "$(mktemp -d)"\n${script}`],
  );
  await tell(tenant, 'init');
  await tell(tenant, 'context 0');
  t.is((await tell(tenant, `alloc ${100 * MIB}`))[0], 0);
  const own = { pod: 'both' };
  await eventually(async () => {
    const clients = node.usage().clients.filter(({ command, alive }) => command === 'client' && alive);
    const held = clients.reduce((sum, { gpus }) => sum + (gpus[0]?.bytes ?? 0), 0);
    return (clients.length === 2 && held >= 900 * MIB && (await agent.metric(USED, own)) === held) || undefined;
  }, 'the sum of both, each once');
  t.is(await agent.metric('cotenant_container_processes', own), 2);
  t.is(await agent.metric('cotenant_device_processes', { type: 'graphics' }), 1);
  t.is(await agent.metric('cotenant_device_processes', { type: 'compute+graphics' }), 1);
  t.is(await agent.metric('cotenant_device_processes', { type: 'compute' }), 0);
  t.is(await agent.metric('cotenant_container_info', { ...own, fence: 'interposer' }), 1);
  t.true(((await agent.metric('cotenant_container_memory_bypass_bytes', own)) ?? 0) >= 600 * MIB, 'what is drawn');
  // Memory that the driver holds beyond a process's ledger is fed back after a sample in which the ledger did not
  // change.
  const seenMs = (await agent.snapshot())?.atMs ?? 0;
  await eventually(async () => ((await agent.snapshot())?.atMs ?? 0) >= seenMs + 500 || undefined, 'two more samples');
  // 100 MiB are left of the grant: the interposer refuses the other one what the renderer has.
  await eventually(
    async () => (await tell(tenant, `alloc ${300 * MIB}`))[0] === OUT_OF_MEMORY || undefined,
    'a refusal',
  );
  t.deepEqual(agent.audit(), []);
});

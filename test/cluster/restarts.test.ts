// Two replicas of the webhook behind one address, each stopped and started anew while a real API server creates pods at a
// steady rate: no create is refused, and each pod is patched.
import { join } from 'node:path';
import { testUnless } from '../support/gate.ts';
import { startLoneApiServer } from './bed/api-server.ts';
import { bedTools } from './bed/bed.ts';
import { eventually } from './bed/eventually.ts';
import { startCreator } from './support/creator.ts';
import { countIdle, LEAST_IDLE } from './support/idle.ts';
import { startReplicas } from './support/webhooks.ts';

const PORT = 9443;
const BALANCER_STATUS = 9543;
const REPLICAS = [
  { name: 'webhook-a', port: 9444, probe: 9544 },
  { name: 'webhook-b', port: 9445, probe: 9545 },
] as const;
/** As the chart has it. */
const DRAIN_S = 10;
const PER_SECOND = 200;
/** More wait where the machine is too slow for the rate. */
const MOST_AT_ONCE = 50;
/** What waits when the last one begins is no more than a hundredth of all. */
const LEAST_PER_SECOND = 0.95 * PER_SECOND;

const tools = bedTools(console.log, false);

testUnless(tools.ok ? undefined : tools.reason)('both replicas are restarted and no pod is lost', async (t) => {
  t.timeout(1_200_000);
  if (!tools.ok) return;
  const server = await startLoneApiServer(t, tools);
  const { namespaces } = server;
  const { registerAt } = startReplicas(t, server, REPLICAS, DRAIN_S);
  const balancer = [join(import.meta.dirname, 'support/balancer.ts'), PORT, BALANCER_STATUS];
  const endpoints = REPLICAS.map(({ port, probe }) => `${port}:${probe}`);
  namespaces.start('balancer', [process.execPath, ...balancer.map(String), ...endpoints]);
  const passesTo = () => namespaces.run(['curl', '-sS', '-m', '2', `http://127.0.0.1:${BALANCER_STATUS}`]).out;
  const allServe = () => eventually(() => passesTo() === '9444 9445' || undefined, 'both serve');
  await allServe();
  await registerAt(PORT);

  const creation = startCreator(namespaces, server.kubeconfig, { perSecond: PER_SECOND, mostAtOnce: MOST_AT_ONCE });
  const idleShare = countIdle();
  for (const { name } of REPLICAS) {
    const begunMs = performance.now();
    namespaces.signal(name, 'SIGTERM');
    const startAgain = () => {
      try {
        namespaces.startAgain(name);
        return true;
      } catch {
        return undefined; // it drains
      }
    };
    // After its drain, and the 90 s for which an API server may keep a connection idle.
    await eventually(startAgain, `${name} has ended`);
    t.log(`${name} ended ${Math.round((performance.now() - begunMs) / 1000)} s after the signal`);
    await allServe();
  }
  const idle = idleShare();
  const { asked, created, perSecond, refusals, slowestMs } = await creation.end();
  const rate = `${asked} creates, ${Math.round(perSecond)} a second, the slowest in ${Math.round(slowestMs)} ms`;
  t.log(`${rate}; ${Math.round(100 * idle)} % of the processors idle`);
  t.deepEqual(refusals, []);
  t.is(created, asked);
  t.true(asked > 100);
  t.true(
    perSecond >= LEAST_PER_SECOND || idle < LEAST_IDLE,
    `${rate}, though ${100 * idle} % of the processors are idle`,
  );
});

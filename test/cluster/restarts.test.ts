// Two replicas of the webhook behind one address, each stopped and started anew while a real API server creates pods at a
// steady rate: no create is refused, and each pod is patched.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { selfSigned } from '../../src/serving/x509.ts';
import { testUnless } from '../support/gate.ts';
import type { Api } from './bed/api.ts';
import { startLoneApiServer } from './bed/api-server.ts';
import { bedTools } from './bed/bed.ts';
import { eventually } from './bed/eventually.ts';
import { register } from './support/registration.ts';

const ROOT = join(import.meta.dirname, '../..');
const PORT = 9443;
const BALANCER_STATUS = 9543;
const REPLICAS = [
  { name: 'webhook-a', port: 9444, probe: 9544 },
  { name: 'webhook-b', port: 9445, probe: 9545 },
] as const;
/** As the chart has it. */
const DRAIN_S = 10;
const PER_SECOND = 200;
const STEP_MS = 50;
/** More wait where the machine is too slow for the rate. */
const MOST_AT_ONCE = 50;

const tools = bedTools(console.log, false);

testUnless(tools.ok ? undefined : tools.reason)('both replicas are restarted and no pod is lost', async (t) => {
  t.timeout(1_200_000);
  if (!tools.ok) return;
  const { api, namespaces } = await startLoneApiServer(t, tools);
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-restarts-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const { cert, key } = selfSigned(['127.0.0.1'], new Date());
  const [certFile, keyFile] = [join(folder, 'webhook.crt'), join(folder, 'webhook.key')];
  writeFileSync(certFile, cert);
  writeFileSync(keyFile, key);
  for (const { name, port, probe } of REPLICAS) {
    const ports = ['--port', String(port), '--health-port', String(probe)];
    const files = ['--cert', certFile, '--key', keyFile, '--host', '127.0.0.1', '--drain', String(DRAIN_S)];
    namespaces.start(name, [process.execPath, join(ROOT, 'src/cli/main.ts'), 'webhook', ...files, ...ports]);
  }
  const balancer = [join(import.meta.dirname, 'support/balancer.ts'), PORT, BALANCER_STATUS];
  const endpoints = REPLICAS.map(({ port, probe }) => `${port}:${probe}`);
  namespaces.start('balancer', [process.execPath, ...balancer.map(String), ...endpoints]);
  const passesTo = () => namespaces.run(['curl', '-sS', '-m', '2', `http://127.0.0.1:${BALANCER_STATUS}`]).out;
  const allServe = () => eventually(() => passesTo() === '9444 9445' || undefined, 'both serve');
  await allServe();
  const caBundle = Buffer.from(cert).toString('base64');
  const clientConfig = (path: string) => ({ url: `https://127.0.0.1:${PORT}/${path}`, caBundle });
  await register(api, (path) => ({ clientConfig: clientConfig(path), timeoutSeconds: 30 }));
  await api.ask('POST', '/api/v1/namespaces/default/serviceaccounts', { metadata: { name: 'default' } });

  const creation = createSteadily(api);
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
  const { asked, created, perSecond, refusals } = await creation.end();
  t.log(`${asked} creates, ${perSecond} a second`);
  t.deepEqual(refusals, []);
  t.is(created, asked);
  t.true(asked > 100);
});

function createSteadily(api: Api) {
  const refusals: { readonly atMs: number; readonly status: number; readonly message: string }[] = [];
  let [created, atOnce, ended] = [0, 0, false];
  const begunMs = performance.now();
  const create = async (name: string): Promise<void> => {
    atOnce += 1;
    const { status, body } = await api.ask('POST', '/api/v1/namespaces/default/pods', podOf(name));
    atOnce -= 1;
    const { message = '', spec } = body as { message?: string; spec?: { schedulerName?: string } };
    if (status === 201 && spec?.schedulerName === 'cotenant-scheduler') created += 1;
    else refusals.push({ atMs: performance.now() - begunMs, status, message });
  };
  const all: Promise<void>[] = [];
  const begun = (async () => {
    for (let step = 1; !ended; step += 1) {
      for (let one = 0; one < (PER_SECOND * STEP_MS) / 1000 && atOnce < MOST_AT_ONCE; one += 1)
        all.push(create(`p${all.length}`));
      await delay(Math.max(0, begunMs + step * STEP_MS - performance.now()));
    }
  })();
  return {
    async end() {
      ended = true;
      await begun;
      await Promise.all(all);
      const perSecond = Math.round((1000 * all.length) / (performance.now() - begunMs));
      return { asked: all.length, created, perSecond, refusals };
    },
  };
}

const podOf = (name: string) => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name },
  spec: {
    containers: [{ name: 'main', image: 'x', resources: { limits: { 'cotenant.io/gpu-memory': '2Gi' } } }],
  },
});

// The alerts about webhook and scheduler, each from its cause and none before it: the programs that ship, in front of API
// servers that fail on demand, scraped by a real Prometheus that has our rules with short times.
import { renameSync, writeFileSync } from 'node:fs';
import { request } from 'node:https';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { stringify } from 'yaml';
import { CONTROL_PLANE_ALERTS } from '../../../dashboards/alerts/control-plane.ts';
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { CONFIGURATION, type Configuration } from '../../../dashboards/lib/configuration.ts';
import { REQUEST_ANNOTATION } from '../../../src/api/names.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { type Certificate, selfSigned } from '../../../src/serving/x509.ts';
import { testUnless } from '../../support/gate.ts';
import { eventually, temporaryFolder } from '../../support/native/node.ts';
import { type Daemon, startExtender, startWebhook } from '../../support/product/daemon.ts';
import { answerList, startApiServer, watchers } from '../../support/services/api-server.ts';
import { prometheusReason, startPrometheus } from '../../support/services/prometheus.ts';
import { recordOf } from '../../unit/scheduler/cluster.ts';
import { creation, sharePod } from '../../unit/webhook/reviews.ts';
import { LEASE_SECONDS, startApi } from '../scheduler/api.ts';

const testWithPrometheus = testUnless(prometheusReason());

/** The rules as they are, but for their times; and for the number of problems, of which a pause lies between two. */
const SHORT: Configuration = {
  ...CONFIGURATION,
  keepsFiring: '2s',
  // Longer than the largest reviews keep a webhook on a busy machine from answering a scrape.
  webhookDown: { lasts: '15s' },
  webhookFails: { within: '15s' },
  webhookSlow: { ...CONFIGURATION.webhookSlow, window: '10s', lasts: '2s' },
  certificateRefused: { within: '15s' },
  liveRulesInvalid: { lasts: '2s' },
  schedulerNotLeading: { lasts: '2s' },
  bindFailures: { ...CONFIGURATION.bindFailures, within: '15s' },
  invalidObjects: { lasts: '2s' },
  schedulerSlow: { ...CONFIGURATION.schedulerSlow, window: '10s', lasts: '2s' },
  apiProblems: { count: 5, within: '1m' },
};
const NAMES = CONTROL_PLANE_ALERTS.map((make) => make(SHORT).alert);

const configMap = (text: string, resourceVersion: string) => ({
  metadata: { name: 'rules', namespace: 'ns', resourceVersion },
  data: { 'rules.yaml': text },
});

/** Sends a body, or its beginning until `signal` ends it; resolves to the status. */
async function send({ url }: Daemon, body: Buffer, sentBytes = body.length, signal?: AbortSignal): Promise<unknown> {
  const { promise, resolve } = Promise.withResolvers<unknown>();
  const headers = { 'content-type': 'application/json', 'content-length': body.length };
  const outgoing = request(`${url}/mutate`, {
    method: 'POST',
    headers,
    rejectUnauthorized: false,
    ...(signal && { signal }),
  });
  outgoing.on('response', (answer) => {
    answer.resume();
    resolve(answer.statusCode);
  });
  outgoing.on('error', resolve);
  outgoing.write(body.subarray(0, sentBytes));
  if (sentBytes === body.length) outgoing.end();
  return promise;
}

const reviewOf = (variables: number): Buffer => {
  const env = Array.from({ length: variables }, (_, index) => ({ name: `NAME_${index}`, value: 'v'.repeat(8) }));
  return Buffer.from(JSON.stringify(creation(sharePod({ env }))));
};

testWithPrometheus('each alert about webhook and scheduler fires from its cause, and ends with it', async (t) => {
  t.timeout(300_000);
  const folder = temporaryFolder(t);
  // In one file, so that no certificate is ever beside the key of another one.
  const pem = join(folder, 'tls.pem');
  const serve = ({ cert, key }: Certificate) => {
    writeFileSync(`${pem}.new`, cert + key);
    renameSync(`${pem}.new`, pem);
  };
  serve(selfSigned(['localhost'], new Date()));
  const rules = watchers();
  const ofWebhook = await startApiServer(t, ({ isWatch }, response) =>
    isWatch ? rules.add(response) : answerList(response, [configMap('rules: {most: {gpu: 2}}', '5')]),
  );
  const kubeconfig = join(folder, 'kubeconfig');
  writeFileSync(kubeconfig, ofWebhook.config.exportConfig());
  const webhook = await startWebhook(t, {
    env: { KUBECONFIG: kubeconfig },
    args: ['--live-rules', 'ns/rules', '--cert', pem, '--key', pem],
  });
  const nodes = Array.from({ length: 20 }, (_, index) => `node-${index}`);
  const api = await startApi(t, Object.fromEntries(nodes.map((name) => [name, 100_000])));
  // It expires 15 s after the last renewal.
  const lead = () => api.lead(`${hostname()}_1`, 1, (LEASE_SECONDS - 15) * 1000);
  lead();
  const renewal = setInterval(lead, 2000);
  t.teardown(() => clearInterval(renewal));
  const scheduler = await startExtender(t, api.config, { args: ['--lease-holder', 'sidecar'] });
  const call = async (verb: string, body: object) =>
    (await (await fetch(`${scheduler.url}/${verb}`, { method: 'POST', body: JSON.stringify(body) })).json()) as object;
  let pods = 0;
  const bind = async () => {
    pods += 1;
    const name = `pod-${pods}`;
    api.addPod(name, 1);
    const metadata = { namespace: 'team', uid: `uid-${name}`, annotations: { [REQUEST_ANNOTATION]: recordOf(1) } };
    const node = nodes[pods % nodes.length];
    await call('filter', { Pod: { metadata }, NodeNames: [node] });
    return call('bind', { PodName: name, PodNamespace: 'team', PodUID: `uid-${name}`, Node: node });
  };
  const job = (name: string, { health }: Daemon) => ({
    job_name: name,
    static_configs: [{ targets: [new URL(health).host] }],
  });
  const prometheus = await startPrometheus(t, {
    configuration: {
      global: { scrape_interval: '1s', scrape_timeout: '1s', evaluation_interval: '1s' },
      scrape_configs: [job(SHORT.webhookJob, webhook), job(SHORT.schedulerJob, scheduler)],
    },
    ruleFiles: { 'alerts.yaml': stringify(alertRules(SHORT)) },
  });
  const fired = new Set<string>();
  const look = async () => {
    for (const name of await prometheus.firing()) if (NAMES.includes(name)) fired.add(name);
  };
  const causes: [readonly string[], () => Promise<void> | void][] = [];
  const cause = (names: readonly string[], act: () => Promise<void> | void) => causes.push([names, act]);
  const until = async (what: string, name: string, act: () => Promise<unknown>) => {
    const end = performance.now() + 60_000;
    while (!fired.has(name)) {
      if (performance.now() > end) throw new Error(`${what}, and ${name} does not fire`);
      await act();
      await look();
    }
  };

  const [huge, large, usual] = [reviewOf(180_000), reviewOf(5000), reviewOf(3)];
  // First, as what comes later may be slow by itself on a busy machine.
  cause(['CotenantWebhookSlow'], () =>
    until('reviews without processor time', 'CotenantWebhookSlow', async () => {
      const reviews = Array.from({ length: 4 }, () => send(webhook, huge));
      // The next one is being reviewed now.
      await reviews[0];
      webhook.child.kill('SIGSTOP');
      await delay(400);
      webhook.child.kill('SIGCONT');
      t.deepEqual(await Promise.all(reviews), [200, 200, 200, 200]);
    }),
  );
  cause(['CotenantSchedulerSlow'], () =>
    until('slow bindings', 'CotenantSchedulerSlow', async () => {
      api.hold.bindings = delay(700);
      t.deepEqual(await bind(), {});
    }),
  );
  cause(['CotenantWebhookCertificateExpires'], () => serve(selfSigned(['localhost'], new Date(), 5)));
  cause(['CotenantCertificateRefused'], () => serve({ cert: 'no certificate', key: 'no key' }));
  cause(['CotenantLiveRulesInvalid'], () => rules.send('MODIFIED', configMap('rules: {most: {gpu: all}}', '7')));
  cause(['CotenantWebhookFails'], async () => {
    // All but the last byte of as many of the largest bodies as it holds, and one more.
    const held = Buffer.alloc(8 * MIB, ' ');
    const ending = new AbortController();
    const sending = Array.from({ length: 8 }, () => send(webhook, held, held.length - 1, ending.signal));
    t.is(await Promise.race(sending), 503);
    ending.abort();
    await Promise.all(sending);
    await eventually(async () => (await send(webhook, large)) === 200 || undefined, 'it reads large bodies again');
  });
  const broken = () => {
    const grant = { 'cotenant.io/grant': '{"version":' };
    const metadata = { namespace: 'team', name: 'broken', uid: 'uid-broken', annotations: grant };
    return api.addPod('broken', 1, { metadata, spec: { containers: [], nodeName: 'b' } });
  };
  cause(['CotenantSchedulerInvalidObjects'], () => api.show('ADDED', broken()));
  cause(['CotenantSchedulerBindFailures'], async () => {
    delete api.hold.bindings;
    api.fault = 'refused';
    for (let index = 0; index <= SHORT.bindFailures.count; index += 1) await bind();
  });
  // All of these causes can be undone, and their alerts end.
  cause([], async () => {
    serve(selfSigned(['localhost'], new Date()));
    rules.send('MODIFIED', configMap('rules: {most: {gpu: 2}}', '8'));
    api.fault = 'none';
    api.show('DELETED', broken());
    api.pods.delete('broken');
    await eventually(async () => (await prometheus.firing()).size === 0 || undefined, 'all of them end', 120_000);
  });
  // Without it the Lease expires, too.
  cause(['CotenantApiServerProblems', 'CotenantSchedulerNotLeading'], () => {
    clearInterval(renewal);
    api.close();
  });
  cause(['CotenantWebhookDown'], () => webhook.stop());

  for (let index = 0; index < 20; index += 1) {
    t.is(await send(webhook, usual), 200);
    t.deepEqual(await bind(), {});
  }
  await eventually(
    async () => {
      await look();
      const old = await prometheus.query('count_over_time(up[1m]) > 10');
      return old.length === 2 || undefined;
    },
    'both were scraped for longer than any rule waits',
    60_000,
  );
  const expected: string[] = [];
  t.deepEqual([...fired], expected);
  for (const [names, act] of causes) {
    await act();
    expected.push(...names);
    await eventually(
      async () => {
        await look();
        return names.every((name) => fired.has(name)) || undefined;
      },
      `${names.join(', ')} fire`,
      60_000,
    );
    t.deepEqual([...fired].toSorted(), expected.toSorted());
  }
  t.deepEqual(expected.toSorted(), NAMES.toSorted());
});

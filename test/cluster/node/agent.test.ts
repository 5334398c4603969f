// The agent of the chart on a real node: it attributes processes to containers by their real cgroups and the cluster's
// pods, and GPUs of a DRA driver by that driver's ResourceSlices.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { selfSigned } from '../../../src/serving/x509.ts';
import { testUnless } from '../../support/gate.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { BUILD_MS, lookForHelm, readyHelm } from '../../support/services/helm.ts';
import { bedTools, startBed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { INSIDE } from '../bed/gpus.ts';
import { kubernetesMinor, kubernetesVersion } from '../bed/kubernetes.ts';
import { addClientImage, addCotenantImage, addSimulatedGpus, installChart, NAMESPACE, OFF } from '../bed/product.ts';
import { clientOf, MIB, namespaceOf, podOf } from '../support/pods.ts';
import { agentPage, podsOf } from '../support/release.ts';
import { claimed, startClaims } from './claims.ts';

const tools = bedTools(console.log, false);
const helm = lookForHelm();
const reason = tools.ok ? (helm.kind === 'missing' ? helm.reason : undefined) : tools.reason;
const SERVER_NAME = `cotenant-agent.${NAMESPACE}.svc`;
const VISIBLE = 'NVIDIA_VISIBLE_DEVICES';

/** A pod that uses GPU memory without a request. */
const sneaky = (name: string, mib: number, gpus: string): object =>
  podOf(name, [clientOf({}, ['init', 'context 0', `alloc ${mib * MIB}`], { env: [{ name: VISIBLE, value: gpus }] })], {
    namespace: 'team',
    spec: { runtimeClassName: 'nvidia' },
  });

testUnless(reason)('the agent names containers that use a GPU without a grant or by a DRA claim', async (t) => {
  t.timeout(BUILD_MS);
  if (!tools.ok || helm.kind === 'missing') throw new Error(reason);
  const path = await readyHelm(helm);
  const bed = await startBed(tools, (line) => t.log(line));
  t.teardown(() => bed.close());
  addCotenantImage(bed);
  addClientImage(bed);
  const uuids = await addSimulatedGpus(bed, 'l4', 'a10');
  // Claims are served as resource.k8s.io/v1, which the agent reads, since 1.34.
  const driver = kubernetesMinor() >= 34 ? await startClaims(bed, uuids) : undefined;
  if (driver) t.teardown(driver.close);
  else t.log(`claims are not tried: Kubernetes ${kubernetesVersion()} does not serve resource.k8s.io/v1`);
  const library = `${INSIDE}/lib`;
  // There are no grants here, so all use without a claim is foreign.
  const configuration = { nvmlLibrary: `${library}/libnvidia-ml.so.1`, cudaLibrary: `${library}/libcuda.so.1` };
  const install = (exporter: object) =>
    installChart(bed, path, { csi: OFF, webhook: OFF, scheduler: OFF, agent: { configuration, exporter } });
  install({});
  bed.apply(namespaceOf('team'));
  bed.apply(sneaky('one', 300, 'all'), sneaky('two', 500, 'all'), sneaky('none', 300, 'void'));

  for (const [pod, mib] of [
    ['one', 300],
    ['two', 500],
  ] as const) {
    const labels = { namespace: 'team', pod, container: 'main', gpu: '0' };
    const used = await eventually(async () => {
      const bytes = seriesOf((await agentPage(bed)) ?? '', 'cotenant_foreign_memory_used_bytes', labels);
      return bytes !== undefined && bytes > mib * MIB ? bytes : undefined;
    }, `the memory of pod ${pod} under its name`);
    t.true(used < (mib + 400) * MIB, `${used}: its block and a context`);
  }
  const text = (await agentPage(bed)) ?? '';
  t.is(seriesOf(text, 'cotenant_up'), 1);
  t.is(seriesOf(text, 'cotenant_device_containers', { gpu: '0' }), 2);
  t.is(seriesOf(text, 'cotenant_foreign_memory_used_bytes', { pod: 'none' }), undefined);
  t.is(seriesOf(text, 'cotenant_enforcement_decisions_total', { decision: 'killed' }), 0, 'reported, never stopped');
  t.is(bed.kubectl('-n', 'team', 'get', 'pod', 'one', '-o', 'jsonpath={.status.phase}').out, 'Running');

  // The series of a deleted pod disappear.
  t.is(bed.kubectl('-n', 'team', 'delete', 'pod', 'one', '--wait=true').code, 0);
  await eventually(async () => {
    const left = await agentPage(bed);
    const isReported = left === undefined || seriesOf(left, 'cotenant_foreign_memory_used_bytes', { pod: 'one' });
    return isReported === undefined ? true : undefined;
  }, 'a deleted pod has no series');

  if (driver) await claimed(t, bed, uuids, driver);

  // From now on over HTTPS, and only for clients whose role may read the metrics.
  const { cert, key } = selfSigned([SERVER_NAME], new Date());
  bed.apply({
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: { name: 'page-tls', namespace: NAMESPACE },
    type: 'kubernetes.io/tls',
    stringData: { 'tls.crt': cert, 'tls.key': key },
  });
  for (const name of ['reader', 'stranger']) t.is(bed.kubectl('-n', 'team', 'create', 'sa', name).code, 0);
  install({ tls: { secretName: 'page-tls' }, tokenReview: true });
  const may = ['--clusterrole=cotenant-metrics-reader', '--serviceaccount=team:reader'];
  t.is(bed.kubectl('create', 'clusterrolebinding', 'reader', ...may).code, 0);
  const tokenOf = (name: string) => bed.kubectl('-n', 'team', 'create', 'token', name).out.trim();
  const { metadata, status } = await eventually(
    async () => (await podsOf(bed, 'agent')).find(({ status: { podIP } = {} }) => podIP !== undefined),
    'the agent that replaced the first',
  );
  const ca = join(bed.folder, 'page.crt');
  writeFileSync(ca, cert);
  const ask = (token: string) => {
    const header = token === '' ? [] : ['-H', `Authorization: Bearer ${token}`];
    const at = ['--cacert', ca, '--resolve', `${SERVER_NAME}:9837:${status?.podIP}`];
    const url = `https://${SERVER_NAME}:9837/metrics`;
    const { out } = bed.namespaces.run(['curl', '-s', '-w', '%{http_code}', ...at, ...header, url]);
    return { code: Number(out.slice(-3)), body: out.slice(0, -3) };
  };
  await eventually(() => {
    const { code, body } = ask(tokenOf('reader'));
    // A restarted agent has to list the node's pods first.
    const isReported = code === 200 && seriesOf(body, 'cotenant_foreign_memory_used_bytes', { pod: 'two' });
    return isReported === undefined || isReported === false ? undefined : true;
  }, 'the page for a client with the role');
  const forbidden = ask(tokenOf('stranger'));
  t.deepEqual(forbidden, {
    code: 403,
    body: "the token's user may not GET /metrics; a ClusterRole with this nonResourceURL allows it\n",
  });
  for (const invalid of ['', 'a.b.c', `${tokenOf('reader')}x`]) t.is(ask(invalid).code, 401);
  // The API server finds the page by the probe's scheme, as `cotenant inspect` does, and does not forward the client's
  // token.
  const proxied = await bed.api.ask(
    'GET',
    `/api/v1/namespaces/${NAMESPACE}/pods/https:${metadata.name}:9837/proxy/metrics`,
  );
  t.is(proxied.status, 401);
});

// The cluster's own scheduler, configured as documented: it calls only the extender, by its Service and with mutual
// TLS.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { parse } from 'yaml';
import { blocks, readPage } from '../../support/docs.ts';
import type { Bed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { installChart, NAMESPACE, OFF } from '../bed/product.ts';
import type { Pod } from '../support/pods.ts';
import {
  add,
  addNode,
  bound,
  checkBooks,
  clear,
  grantOf,
  memory,
  pending,
  podOf,
  uuid,
} from '../support/scheduling.ts';

type Endpoints = { readonly subsets?: readonly { readonly addresses?: readonly { readonly ip: string }[] }[] };
/** A CA, or a certificate that it signed; the files are in one folder. */
function certify(folder: string, name: string, host: string, authority?: string): void {
  const openssl = (...args: readonly string[]) => execFileSync('openssl', args, { cwd: folder, stdio: 'pipe' });
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', `${name}.key`];
  const by = authority === undefined ? [] : ['-CA', `${authority}.crt`, '-CAkey', `${authority}.key`];
  const names = authority === undefined ? [] : ['-addext', `subjectAltName=DNS:${host}`];
  openssl('req', '-x509', ...key, ...by, '-subj', `/CN=${name}`, ...names, '-out', `${name}.crt`);
}

export async function checkOwnScheduler(t: ExecutionContext, bed: Bed, helmPath: string, bin: string): Promise<void> {
  const folder = join(bed.folder, 'extender');
  const at = (name: string) => join(folder, name);
  mkdirSync(folder);
  const host = `cotenant-extender.${NAMESPACE}.svc`;
  certify(folder, 'authority', host);
  for (const name of ['server', 'client']) certify(folder, name, host, 'authority');
  const secret = (name: string, data: Readonly<Record<string, string>>) => ({
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: { name, namespace: NAMESPACE },
    stringData: Object.fromEntries(Object.entries(data).map(([key, file]) => [key, readFileSync(at(file), 'utf8')])),
  });
  bed.apply(
    secret('extender-server', { 'tls.crt': 'server.crt', 'tls.key': 'server.key' }),
    secret('extender-callers', { 'ca.crt': 'authority.crt' }),
  );
  const service = { enabled: true, serverSecretName: 'extender-server', clientCaSecretName: 'extender-callers' };
  installChart(bed, helmPath, { agent: OFF, csi: OFF, webhook: OFF, scheduler: { enabled: true, service } });

  // It has the address some time after its pod is ready, which is all that helm waits for.
  const address = await eventually(async () => {
    const path = `/api/v1/namespaces/${NAMESPACE}/endpoints/cotenant-extender`;
    const { subsets = [] } = (await bed.api.get<Endpoints>(path)) ?? {};
    const [one, ...more] = subsets.flatMap((subset) => subset.addresses ?? []);
    return more.length === 0 ? one?.ip : undefined;
  }, 'the Service leads to one pod');
  const [text = ''] = blocks(readPage('docs/operate/scheduler.md'), 'yaml');
  const { extenders } = parse(text);
  t.is(extenders[0].tlsConfig.serverName, host);
  const files = { certFile: at('client.crt'), keyFile: at('client.key'), caFile: at('authority.crt') };
  const configuration = {
    apiVersion: 'kubescheduler.config.k8s.io/v1',
    kind: 'KubeSchedulerConfiguration',
    clientConnection: { kubeconfig: join(bed.folder, 'kubeconfig') },
    leaderElection: { leaderElect: false },
    // This node has no kube-proxy that would translate Service addresses.
    extenders: [{ ...extenders[0], urlPrefix: `https://${address}:9840`, tlsConfig: { serverName: host, ...files } }],
  };
  writeFileSync(at('configuration.json'), JSON.stringify(configuration));
  await bed.namespaces.stop('scheduler', 'SIGTERM');
  bed.namespaces.start('scheduler', [join(bin, 'kube-scheduler'), '--config', at('configuration.json')]);

  const node = await addNode(bed, 7, 1);
  const own = (name: string, gib: number) => {
    const pod = podOf(name, { main: memory(gib) }) as { spec: object };
    return { ...pod, spec: { ...pod.spec, schedulerName: 'default-scheduler' } };
  };
  await add(bed, own('with-default', 10));
  const pod = await bound(bed, 'with-default');
  t.is(pod.spec.nodeName, node);
  t.is(grantOf(pod).containers[0]?.gpus[0]?.gpuUuid, uuid(7, 0));
  await add(bed, own('too-large', 7));
  await pending(
    bed,
    'too-large',
    new RegExp(`node gpu-7: ${uuid(7, 0)} has 6144 MiB of cotenant\\.io/gpu-memory free`),
  );
  await clear(bed, node);
  await checkSpread(t, bed);
}

/** Four replicas that ask for `spread`, on two nodes with two GPUs: one on each GPU. */
async function checkSpread(t: ExecutionContext, bed: Bed): Promise<void> {
  for (const node of [8, 9]) await addNode(bed, node, 2);
  const pod = podOf('web', { main: memory(2) }, { 'cotenant.io/placement': 'spread' }) as Pod;
  const labels = { app: 'web' };
  bed.apply({
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name: 'web', namespace: 'default' },
    spec: {
      replicas: 4,
      selector: { matchLabels: labels },
      template: {
        metadata: { labels, annotations: pod.metadata.annotations },
        spec: { ...pod.spec, schedulerName: 'default-scheduler', terminationGracePeriodSeconds: 0 },
      },
    },
  });
  const grants = await checkBooks(t, bed, 4);
  const gpus = grants.flatMap(({ containers }) => containers.flatMap((one) => one.gpus.map(({ gpuUuid }) => gpuUuid)));
  t.deepEqual(gpus.sort(), [uuid(8, 0), uuid(8, 1), uuid(9, 0), uuid(9, 1)]);
}

// Replicas by how busy their shares of GPUs are, with the examples as they are: Kubernetes' own HorizontalPodAutoscaler,
// a real prometheus-adapter and a real Prometheus. The agent's page is written by the test, and so is what a kubelet
// would say of the pods. The query of the example for KEDA is asked of the same Prometheus.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { parse } from 'yaml';
import { readPage } from '../../support/docs.ts';
import { testUnless } from '../../support/gate.ts';
import { prometheusReason, scraping } from '../../support/services/prometheus.ts';
import { findPrometheus } from '../../support/services/promtool.ts';
import { goPrograms, isBuilt } from '../../support/toolchains/go-programs.ts';
import { type Api, bedApi } from '../bed/api.ts';
import { bedTools } from '../bed/bed.ts';
import { bedCgroup, clearAbandoned, clearCgroups, makeCgroups, systemGroup } from '../bed/cgroups.ts';
import { controlPlane, NETWORK } from '../bed/control-plane.ts';
import { eventually } from '../bed/eventually.ts';
import { kubernetesMinor, METRICS_ADAPTER } from '../bed/kubernetes.ts';
import { type Namespaces, openNamespaces } from '../bed/namespaces.ts';

const tools = bedTools(console.log, false);
const reason =
  prometheusReason() ??
  (tools.ok ? (isBuilt(METRICS_ADAPTER) ? undefined : 'prometheus-adapter is not built here') : tools.reason);
const EXAMPLES = 'examples/autoscaling';
const PORTS = { page: 9837, prometheus: 19090, adapter: 16443 };
const CONTROLLERS = [
  ...['horizontal-pod-autoscaler-controller', 'deployment-controller', 'replicaset-controller'],
  ...['serviceaccount-controller', 'garbage-collector-controller'],
];
const PODS = '/api/v1/namespaces/default/pods';
const AUTOSCALERS = '/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers';
/** One with 30 % of a GPU for each replica, and one with whole GPUs. */
const NAMES = ['server', 'whole'] as const;
type Name = (typeof NAMES)[number];
type Uses<T> = Readonly<Record<Name, T>>;

type Plane = {
  readonly folder: string;
  readonly namespaces: Namespaces;
  readonly api: Api;
  apply(...all: object[]): void;
};

/** etcd, an API server and some controllers, without nodes. */
async function startPlane(t: ExecutionContext): Promise<Plane> {
  if (!tools.ok) throw new Error(tools.reason);
  await clearAbandoned();
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-plane-'));
  const cgroup = bedCgroup(process.pid);
  makeCgroups(cgroup);
  const namespaces = await openNamespaces(folder, systemGroup(cgroup));
  t.teardown(async () => {
    await namespaces.close();
    await clearCgroups(cgroup);
    rmSync(folder, { recursive: true, force: true });
  });
  namespaces.script(`ip link set lo up; ip addr add ${NETWORK.node}/24 dev lo; ip addr add ${NETWORK.api}/32 dev lo`);
  const { kubeconfig, commands } = controlPlane(folder, 'none', {
    bin: tools.bin,
    packages: tools.packages,
    apiserver: [],
  });
  const kubectl = [join(tools.bin, 'kubectl'), '--kubeconfig', kubeconfig];
  namespaces.start('etcd', commands.etcd);
  namespaces.start('apiserver', commands.apiserver);
  const isReady = () => namespaces.run([...kubectl, 'get', '--raw', '/readyz']).code === 0 || undefined;
  await eventually(isReady, 'the API server is ready');
  const often = '--horizontal-pod-autoscaler-sync-period=1s';
  namespaces.start('controllers', [...commands.controllers, often, `--controllers=${CONTROLLERS.join()}`]);
  const socket = join(folder, 'api.sock');
  namespaces.start('proxy', [...kubectl, 'proxy', '--unix-socket', socket]);
  const api = bedApi(socket);
  const account = '/api/v1/namespaces/default/serviceaccounts/default';
  const hasAccount = () => api.get<object>(account).catch(() => undefined);
  await eventually(hasAccount, 'the default service account is there');
  const apply: Plane['apply'] = (...all) => {
    const input = all.map((one) => JSON.stringify(one)).join('\n');
    const { code, err } = namespaces.run([...kubectl, 'apply', '--server-side', '-f', '-'], { input });
    if (code !== 0) throw new Error(err.trim());
  };
  return { folder, namespaces, api, apply };
}

/** Where the API server finds the adapter. It has no certificate for the aggregation layer, so it is anonymous there. */
function adapterService(): object[] {
  const metadata = { name: 'metrics-adapter', namespace: 'default' };
  const role = { apiVersion: 'rbac.authorization.k8s.io/v1', metadata: { name: 'anonymous-metrics' } };
  return [
    { apiVersion: 'v1', kind: 'Service', metadata, spec: { ports: [{ port: 443, targetPort: PORTS.adapter }] } },
    {
      ...{ apiVersion: 'discovery.k8s.io/v1', kind: 'EndpointSlice', addressType: 'IPv4' },
      metadata: { ...metadata, labels: { 'kubernetes.io/service-name': metadata.name } },
      ports: [{ port: PORTS.adapter, protocol: 'TCP', name: '' }],
      endpoints: [{ addresses: [NETWORK.node], conditions: { ready: true } }],
    },
    // Which older API servers read in their place; that of 1.30 does.
    ...(kubernetesMinor() < 36
      ? [
          {
            ...{ apiVersion: 'v1', kind: 'Endpoints', metadata },
            subsets: [{ addresses: [{ ip: NETWORK.node }], ports: [{ port: PORTS.adapter }] }],
          },
        ]
      : []),
    {
      ...{ apiVersion: 'apiregistration.k8s.io/v1', kind: 'APIService' },
      metadata: { name: 'v1beta1.custom.metrics.k8s.io' },
      spec: {
        ...{ group: 'custom.metrics.k8s.io', version: 'v1beta1', insecureSkipTLSVerify: true },
        ...{ groupPriorityMinimum: 100, versionPriority: 100, service: { ...metadata, port: 443 } },
      },
    },
    {
      ...{ ...role, kind: 'ClusterRole' },
      rules: [
        { apiGroups: ['custom.metrics.k8s.io'], resources: ['*'], verbs: ['*'] },
        { nonResourceURLs: ['*'], verbs: ['get'] },
      ],
    },
    {
      ...{ ...role, kind: 'ClusterRoleBinding' },
      roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: role.metadata.name },
      subjects: [{ apiGroup: 'rbac.authorization.k8s.io', kind: 'Group', name: 'system:unauthenticated' }],
    },
  ];
}

/** Serves what the test writes to the file `page`, and starts Prometheus and the adapter. */
function startMetrics({ folder, namespaces, apply }: Plane, page: string): void {
  const prometheus = findPrometheus();
  const adapter = goPrograms(METRICS_ADAPTER, console.log);
  if ('reason' in prometheus) throw new Error(prometheus.reason);
  if (!adapter.ok) throw new Error(adapter.reason);
  const at = join(folder, 'metrics');
  mkdirSync(at);
  const serve = `response.end(require('fs').readFileSync(${JSON.stringify(page)}))`;
  const server = `require('http').createServer((_, response) => ${serve}).listen(${PORTS.page}, '127.0.0.1')`;
  namespaces.start('page', [process.execPath, '-e', server]);
  writeFileSync(join(at, 'prometheus.yml'), JSON.stringify(scraping([`http://127.0.0.1:${PORTS.page}`])));
  namespaces.start('prometheus', [
    ...[prometheus.path, `--config.file=${at}/prometheus.yml`, `--storage.tsdb.path=${at}/data`],
    ...[`--web.listen-address=127.0.0.1:${PORTS.prometheus}`, '--log.level=warn'],
  ]);
  const { rules } = parse(readPage(`${EXAMPLES}/adapter.yaml`)) as { readonly rules: { readonly custom: object } };
  writeFileSync(join(at, 'adapter.yaml'), JSON.stringify({ rules: rules.custom }));
  const kubeconfigs = ['lister', 'authentication', 'authorization'].map(
    (name) => `--${name}-kubeconfig=${folder}/kubeconfig`,
  );
  namespaces.start('adapter', [
    ...[join(adapter.bin, 'adapter'), `--config=${at}/adapter.yaml`, ...kubeconfigs, '--authentication-skip-lookup'],
    ...[`--prometheus-url=http://127.0.0.1:${PORTS.prometheus}`, '--metrics-relist-interval=2s'],
    ...[`--secure-port=${PORTS.adapter}`, `--cert-dir=${at}`],
  ]);
  apply(...adapterService());
}

const deploymentOf = (name: Name): object => {
  const labels = { app: name };
  const containers = [{ name: 'main', image: 'local.test/none:1' }];
  const spec = {
    replicas: 1,
    selector: { matchLabels: labels },
    template: { metadata: { labels }, spec: { containers } },
  };
  return { apiVersion: 'apps/v1', kind: 'Deployment', metadata: { name, namespace: 'default' }, spec };
};

/** The example, for a Deployment of this name. `behavior`: other than the usual, by which replicas go after five
 * minutes without load. */
function autoscalerOf(name: Name, behavior = {}): object {
  const { spec, ...rest } = parse(readPage(`${EXAMPLES}/hpa.yaml`)) as {
    readonly spec: { readonly scaleTargetRef: object };
  };
  const scaleTargetRef = { ...spec.scaleTargetRef, name };
  return { ...rest, metadata: { name, namespace: 'default' }, spec: { ...spec, scaleTargetRef, behavior } };
}

type Pod = { readonly metadata: { readonly name: string; readonly creationTimestamp: string } };

/** Pods that run, oldest first: what the kubelet would say is said here. */
async function runningPods(api: Api, app: Name): Promise<readonly string[]> {
  const { items = [] } = (await api.get<{ items: Pod[] }>(`${PODS}?labelSelector=app=${app}`)) ?? {};
  const names = items
    .toSorted((a, b) => (a.metadata.creationTimestamp < b.metadata.creationTimestamp ? -1 : 1))
    .map(({ metadata }) => metadata.name);
  const now = new Date().toISOString();
  const conditions = [{ type: 'Ready', status: 'True', lastTransitionTime: now }];
  for (const name of names)
    await api.ask('PATCH', `${PODS}/${name}/status`, { status: { phase: 'Running', startTime: now, conditions } });
  return names;
}

/** The agent's page: use and limit of each pod as parts of its GPU. */
function pageOf(used: ReadonlyMap<string, number>): string {
  const labels = (pod: string) =>
    `gpu="0",gpu_uuid="GPU-0",namespace="default",pod="${pod}",container="main",mode="${pod.startsWith('whole') ? 'exclusive' : 'shared'}"`;
  const lines = [...used].flatMap(([pod, use]) => [
    `cotenant_container_sm_utilization_ratio{${labels(pod)}} ${use}`,
    ...(pod.startsWith('whole') ? [] : [`cotenant_container_sm_limit_ratio{${labels(pod)},enforced="true"} 0.3`]),
  ]);
  return `${lines.join('\n')}\n`;
}

/** Replicas by the query of KEDA's example, which KEDA divides by the threshold. */
function wantedByKeda({ namespaces }: Plane): number {
  const { spec } = parse(readPage(`${EXAMPLES}/keda.yaml`)) as {
    readonly spec: { readonly triggers: readonly { metadata: { query: string; threshold: string } }[] };
  };
  const { query = '', threshold = '' } = spec.triggers[0]?.metadata ?? {};
  const url = `http://127.0.0.1:${PORTS.prometheus}/api/v1/query`;
  const { out } = namespaces.run(['curl', '-s', '-G', '--data-urlencode', `query=${query}`, url]);
  const { data } = JSON.parse(out) as { readonly data: { readonly result: readonly { value: [number, string] }[] } };
  return Math.ceil(Number(data.result[0]?.value[1]) / Number(threshold));
}

type Scaler = {
  readonly status?: {
    readonly desiredReplicas?: number;
    readonly currentMetrics?: readonly { readonly pods?: { readonly current: { readonly averageValue: string } } }[];
  };
};

testUnless(reason)('replicas follow the use of shares and of whole GPUs by a real autoscaler', async (t) => {
  t.timeout(600_000);
  const plane = await startPlane(t);
  const { folder, api, apply } = plane;
  const page = join(folder, 'page');
  /** While the first replica of each uses this much of its GPU and the others nothing: waits until there are so many,
   * and the autoscaler has seen this mean use of what they have. */
  const scaled = async (use: Uses<number>, replicas: number, means: Uses<string>) => {
    const seen = new Map<Name, string | undefined>();
    const isScaled = async () => {
      const used = new Map<string, number>();
      let done = true;
      for (const name of NAMES) {
        const pods = await runningPods(api, name);
        for (const [index, pod] of pods.entries()) used.set(pod, index === 0 ? use[name] : 0);
        const { desiredReplicas, currentMetrics } = (await api.get<Scaler>(`${AUTOSCALERS}/${name}`))?.status ?? {};
        seen.set(name, currentMetrics?.[0]?.pods?.current.averageValue);
        done &&= desiredReplicas === replicas && pods.length === replicas && seen.get(name) === means[name];
      }
      writeFileSync(page, pageOf(used));
      return done || undefined;
    };
    await eventually(isScaled, `there are ${replicas} of each`).catch((error: Error) => {
      throw new Error(`${error.message}: ${JSON.stringify([...seen])}`);
    });
  };
  writeFileSync(page, '');
  startMetrics(plane, page);
  apply(...NAMES.map(deploymentOf), ...NAMES.map((name) => autoscalerOf(name)));

  // Each first replica needs more than 80 % of what it has; two together need less than 80 % of theirs.
  await scaled({ server: 0.3, whole: 0.9 }, 2, { server: '500m', whole: '450m' });
  t.is(wantedByKeda(plane), 2);
  apply(...NAMES.map((name) => autoscalerOf(name, { scaleDown: { stabilizationWindowSeconds: 0 } })));
  await scaled({ server: 0, whole: 0 }, 1, { server: '0', whole: '0' });
  t.is(wantedByKeda(plane), 0);
});

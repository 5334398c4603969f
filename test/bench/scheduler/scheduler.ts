// How many pods a second the real kube-scheduler binds on a real API server with 1,000 and 5,000 node objects: with the
// extender, with one that decides nothing, and with none. The nodes have no kubelet: only bindings are counted.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse, parseAllDocuments } from 'yaml';
import { GPUS_ANNOTATION, REQUEST_ANNOTATION } from '../../../src/api/names.ts';
import { formatNodeGpus } from '../../../src/api/node-annotation.ts';
import { GIB } from '../../../src/common/quantity.ts';
import { DEFAULT_CONFIGURATION } from '../../../webhook/config.ts';
import { mutatePod } from '../../../webhook/mutate.ts';
import { type LoneApiServer, startLoneApiServer } from '../../cluster/bed/api-server.ts';
import { type BedTools, bedTools } from '../../cluster/bed/bed.ts';
import { eventually } from '../../cluster/bed/eventually.ts';
import type { Pod } from '../../cluster/support/pods.ts';
import { type Teardown, temporaryFolder } from '../../support/native/node.ts';
import { EXTENDER_ENV } from '../../support/product/daemon.ts';
import { lookForHelm, readyHelm, runHelm } from '../../support/services/helm.ts';
import { type Bench, withTeardown } from '../bench.ts';
import type { Row } from '../row.ts';
import { median } from '../statistics.ts';

const ROOT = join(import.meta.dirname, '../../..');
const CHART = join(ROOT, 'charts/cotenant');
const PODS = '/api/v1/namespaces/default/pods';
const LEASE = '/apis/coordination.k8s.io/v1/namespaces/default/leases/cotenant-scheduler';
/** The extender has the chart's. */
const PORTS = { own: 9840, nothing: 9842 } as const;
const [GPUS, SHAPES, AT_ONCE] = [8, 20, 32];
/** The first part of each round is not counted: programs have just been started. */
const UNCOUNTED = 0.2;
const ROUND_MS = 600_000;
const LEAST_RATIO = 0.95;

type Size = { readonly nodes: number; readonly pods: number };
const FULL: readonly Size[] = [
  { nodes: 1000, pods: 1000 },
  { nodes: 5000, pods: 500 },
];
const QUICK: readonly Size[] = [{ nodes: 100, pods: 200 }];

/** `own`: the chart's extender. `nothing`: one that decides nothing; kube-scheduler binds by itself. */
type Extender = 'own' | 'nothing' | 'none';
const TURNS: readonly Extender[] = ['none', 'nothing', 'own', 'own', 'nothing', 'none', 'nothing', 'own', 'none'];

type Configuration = { readonly extenders: readonly Readonly<Record<string, unknown>>[] };
type Chart = { readonly configuration: Configuration; readonly extenderArgs: readonly string[] };
type Rendered = {
  readonly kind?: string;
  readonly data?: Readonly<Record<string, string>>;
  readonly spec?: { readonly template: { readonly spec: { readonly containers: readonly Container[] } } };
};
type Container = { readonly name: string; readonly args: readonly string[] };

/** What the chart has for kube-scheduler and the extender. */
function renderChart(helm: string): Chart {
  const args = ['template', 'cotenant', CHART, '--namespace', 'default'];
  args.push('--show-only', 'templates/scheduler/deployment.yaml');
  const { stdout, stderr, ok } = runHelm(helm, [...args, '--set', 'scheduler.enabled=true']);
  if (!ok) throw new Error(stderr);
  const objects = parseAllDocuments(stdout).map((document) => document.toJS() as Rendered);
  const data = objects.find(({ kind }) => kind === 'ConfigMap')?.data;
  const containers = objects.find(({ kind }) => kind === 'Deployment')?.spec?.template.spec.containers;
  const extender = containers?.find(({ name }) => name === 'extender');
  if (!data || !extender) throw new Error(`the chart's scheduler has no configuration or no extender: ${stdout}`);
  return { configuration: parse(data['configuration.yaml'] ?? '') as Configuration, extenderArgs: extender.args };
}

function configurationOf(chart: Configuration, kubeconfig: string, which: Extender): object {
  const { bindVerb: _, preemptVerb: __, ...shared } = chart.extenders[0] ?? {};
  const extenders = {
    none: [],
    nothing: [{ ...shared, urlPrefix: `http://127.0.0.1:${PORTS.nothing}` }],
    own: [{ ...chart.extenders[0], urlPrefix: `http://127.0.0.1:${PORTS.own}` }],
  };
  return {
    ...chart,
    // kube-scheduler's own limit of 50 requests a second is out of the way for all three.
    clientConnection: { kubeconfig, qps: 10_000, burst: 10_000 },
    extenders: extenders[which],
  };
}

async function inTurn(count: number, one: (index: number) => Promise<unknown>): Promise<void> {
  let next = 0;
  const work = async () => {
    for (let index = next++; index < count; index = next++) await one(index);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

/** A node as its kubelet registers it and its agent describes it. */
function nodeOf(number: number): object {
  const gpus = Array.from({ length: GPUS }, (_, index) => ({
    gpuUuid: `GPU-00000000-0000-4000-8000-${String(number * GPUS + index).padStart(12, '0')}`,
    ...{ index, model: 'NVIDIA H100 80GB HBM3', usableBytes: 80 * GIB, healthy: true },
  }));
  const annotations = { [GPUS_ANNOTATION]: formatNodeGpus({ mostTenantsPerGpu: 50, gpus }) };
  const amounts = { cpu: '64', memory: '256Gi', pods: '500', 'cotenant.io/gpu': String(50 * GPUS) };
  const conditions = [{ type: 'Ready', status: 'True', reason: 'Bench', message: 'written by a benchmark' }];
  return {
    ...{ apiVersion: 'v1', kind: 'Node', metadata: { name: `node-${number}.pool-a.example`, annotations } },
    status: { capacity: amounts, allocatable: amounts, conditions },
  };
}

/** A pod as the webhook leaves it; without an extender it asks for what kube-scheduler counts alone. */
function podOf(number: number, which: Extender): object {
  const limits = { 'cotenant.io/gpu-memory': `${256 + 128 * (number % SHAPES)}Mi` };
  const pod = {
    ...{ apiVersion: 'v1', kind: 'Pod', metadata: { name: `pod-${number}`, namespace: 'default' } },
    spec: {
      // No controller manager takes the taint of a new node away.
      ...{ tolerations: [{ operator: 'Exists' }], terminationGracePeriodSeconds: 0 },
      containers: [{ name: 'main', image: 'main', resources: { limits } }],
    },
  };
  const changed = mutatePod(pod, 'default', DEFAULT_CONFIGURATION);
  if (changed.kind !== 'patched') throw new Error(JSON.stringify(changed));
  if (which !== 'none') return changed.pod;
  const result = structuredClone(changed.pod) as Pod & { spec: { containers: { resources: object }[] } };
  delete (result.metadata.annotations as Record<string, string>)[REQUEST_ANNOTATION];
  for (const container of result.spec.containers) {
    const amounts = { 'cotenant.io/gpu': '1' };
    container.resources = { limits: amounts, requests: amounts };
  }
  return result;
}

/** Creates the pods, starts kube-scheduler, and returns how many it binds a second. */
async function roundOf(
  { api, namespaces }: LoneApiServer,
  command: readonly string[],
  which: Extender,
  pods: number,
): Promise<number> {
  await inTurn(pods, (number) => api.must('POST', PODS, podOf(number, which)));
  const { metadata } = await api.must<{ metadata: { resourceVersion: string } }>('GET', `${PODS}?limit=1`);
  const times = new Map<string, number>();
  const stop = new AbortController();
  const watching = api.watch<Pod>(
    PODS,
    metadata.resourceVersion,
    ({ object: { metadata, spec } }) => {
      if (spec.nodeName !== undefined && !times.has(metadata.name)) times.set(metadata.name, performance.now());
    },
    stop.signal,
  );
  namespaces.start('kube-scheduler', command);
  try {
    const all = eventually(() => times.size === pods || undefined, `${pods} pods are bound (${which})`, ROUND_MS);
    all.catch(() => {}); // the watch may have failed before it
    await Promise.race([all, watching]);
  } finally {
    stop.abort();
    await watching.catch(() => {}); // its failure has ended the wait above
  }
  await namespaces.stop('kube-scheduler', 'SIGTERM');
  await api.must('DELETE', `${PODS}?gracePeriodSeconds=0`);
  await eventually(async () => {
    const { items } = await api.must<{ items: unknown[] }>('GET', `${PODS}?limit=1`);
    const lease = await api.get<{ spec?: { holderIdentity?: string } }>(LEASE);
    return (items.length === 0 && !lease?.spec?.holderIdentity) || undefined;
  }, 'the pods are gone and the Lease is given up');
  const counted = [...times.values()].sort((a, b) => a - b).slice(Math.floor(pods * UNCOUNTED));
  return ((counted.length - 1) * 1000) / ((counted.at(-1) ?? Number.NaN) - (counted[0] ?? Number.NaN));
}

async function measure(
  scope: Teardown,
  tools: Extract<BedTools, { ok: true }>,
  { configuration, extenderArgs }: Chart,
  { nodes, pods }: Size,
  note: (text: string) => void,
): Promise<Record<Extender, number>> {
  const server = await startLoneApiServer(scope, tools);
  const { api, namespaces, kubeconfig } = server;
  const account = { metadata: { name: 'default' } };
  await api.must('POST', '/api/v1/namespaces/default/serviceaccounts', account);
  await inTurn(nodes, (number) => api.must('POST', '/api/v1/nodes', nodeOf(number)));
  note(`scheduler: there are ${nodes} nodes`);
  const folder = temporaryFolder(scope);
  const node = (program: string, ...args: readonly (string | number)[]) => [
    ...[process.execPath, join(ROOT, program), ...args.map(String)],
  ];
  namespaces.start('extender', node('src/cli/main.ts', ...extenderArgs, '--kubeconfig', kubeconfig), EXTENDER_ENV);
  namespaces.start('nothing', node('test/bench/scheduler/no-decisions.ts', PORTS.nothing));
  const rates: Record<Extender, number[]> = { own: [], nothing: [], none: [] };
  for (const which of TURNS) {
    const file = join(folder, `${which}.json`);
    writeFileSync(file, JSON.stringify(configurationOf(configuration, kubeconfig, which)));
    const rate = await roundOf(server, [join(tools.bin, 'kube-scheduler'), '--config', file], which, pods);
    rates[which].push(rate);
    note(`scheduler: ${nodes} nodes, ${which}: ${rate.toFixed(1)} pods/s`);
  }
  return { own: median(rates.own), nothing: median(rates.nothing), none: median(rates.none) };
}

export const scheduler: Bench = {
  name: 'scheduler',
  what: 'pods a second of the real kube-scheduler: with the extender, with one that decides nothing, with none',
  isPure: true,
  async run(_scope, { quick, note }) {
    const sizes = quick ? QUICK : FULL;
    const tools = bedTools(note);
    const helm = lookForHelm();
    const reason = tools.ok ? (helm.kind === 'missing' ? helm.reason : undefined) : tools.reason;
    if (!tools.ok || helm.kind === 'missing') {
      const missing = { value: null, unit: 'ratio', reference: null, skipped: reason ?? '' };
      return sizes.map(({ nodes }) => ({ name: `extender.rate_ratio.${nodes}`, ...missing }));
    }
    const chart = renderChart(await readyHelm(helm));
    const rows: Row[] = [];
    for (const size of sizes) {
      const rates = await withTeardown((scope) => measure(scope, tools, chart, size, note));
      const [ratio, rate] = [`extender.rate_ratio.${size.nodes}`, `scheduler.rate.${size.nodes}`];
      const alone = { value: rates.nothing / rates.none, what: 'an extender that decides nothing, over none' };
      rows.push(
        {
          ...{ name: ratio, value: rates.own / rates.nothing, unit: 'ratio', reference: alone },
          goal: { least: LEAST_RATIO },
        },
        {
          ...{ name: rate, value: rates.own, unit: 'pods/s' },
          reference: { value: rates.nothing, what: 'an extender that decides nothing' },
        },
      );
    }
    return rows;
  },
};

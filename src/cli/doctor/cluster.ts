// Looks at Cotenant in a cluster: its parts, the nodes' conditions, the authority that the API server trusts for the
// webhook, the clocks of nodes, and other GPU-sharing systems. What may not be read becomes a finding of its own.
import type { V1Deployment, V1Lease, V1MutatingWebhookConfiguration, V1Node } from '@kubernetes/client-node';
import { signsOfDeployment, signsOfNode, signsOfWebhooks, systemsOf } from '../../../webhook/foreign-systems.ts';
import { GPUS_ANNOTATION } from '../../api/names.ts';
import { FENCES_HOLD, GPUS_HEALTHY } from '../../kube/node-status.ts';
import { FOREIGN_DIALECTS } from '../../request/dialects/index.ts';
import type { Cluster, Got } from '../cluster/api-client.ts';
import { listParts } from '../cluster/collect.ts';
import { conditionOf, type Node, type Pod } from '../cluster/objects.ts';
import { checkOf, type Finding } from './finding.ts';
import { certificateFinding } from './machine.ts';

type Asked = { readonly system: string | undefined; readonly nowMs: number };
type Webhooks = V1MutatingWebhookConfiguration;

const RIGHTS = 'ask an administrator for the right, or let one run it';
const notPermitted = (check: string, got: Got<unknown>): readonly Finding[] =>
  got.ok ? [] : [checkOf(check).warn('not-permitted', got.message, RIGHTS)];

export async function clusterFindings(cluster: Cluster, { system, nowMs }: Asked): Promise<readonly Finding[]> {
  const [nodes, webhooks] = await Promise.all([
    cluster.list<Node>('/api/v1/nodes'),
    cluster.list<Webhooks>('/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations'),
  ]);
  const parts = await Promise.all(
    (['agent', 'webhook', 'scheduler'] as const).map(async (component) =>
      partFinding(component, await listParts(cluster, system, component)),
    ),
  );
  return [
    ...parts,
    ...(nodes.ok ? nodeFindings(nodes.value) : notPermitted('nodes', nodes)),
    ...(webhooks.ok ? trustFindings(webhooks.value, nowMs) : notPermitted('webhook authority', webhooks)),
    ...(await clockFindings(cluster, nowMs)),
    await foreignFinding(cluster, nodes, webhooks),
  ];
}

function partFinding(component: string, got: Got<readonly Pod[]>): Finding {
  const { ok, warn, fail } = checkOf(component);
  const todo = 'kubectl -n NAMESPACE describe pods says why';
  if (!got.ok && got.status !== 404) return warn('not-permitted', got.message, RIGHTS);
  if (!got.ok) return fail('not-installed', got.message, 'install the chart, charts/cotenant');
  const ready = got.value.filter((pod) => conditionOf(pod, 'Ready')?.status === 'True').length;
  const found = `${ready} of ${got.value.length} pod(s) ready`;
  if (got.value.length === 0)
    return warn(
      'part-absent',
      'it has no pod',
      'is it switched off in the values of the chart, or are there no nodes for it?',
    );
  if (ready === 0) return fail('part-down', found, todo);
  return ready < got.value.length ? warn('part-degraded', found, todo) : ok('part-ready', found);
}

function nodeFindings(nodes: readonly Node[]): readonly Finding[] {
  const { ok, warn, fail } = checkOf('nodes');
  const sharing = nodes.filter(({ metadata }) => metadata.annotations?.[GPUS_ANNOTATION] !== undefined);
  if (sharing.length === 0)
    return [
      warn(
        'no-node',
        `none of ${nodes.length} nodes advertises GPUs`,
        "do the agents run on the nodes with GPUs? Look into an agent's log",
      ),
    ];
  const having = (type: string) =>
    sharing.flatMap((node) => {
      const condition = conditionOf(node as Parameters<typeof conditionOf>[0], type);
      return condition?.status === 'False' ? [`${node.metadata.name}: ${condition.message}`] : [];
    });
  const [unhealthy, open] = [having(GPUS_HEALTHY), having(FENCES_HOLD)];
  return [
    ok('nodes-advertise', `${sharing.length} of ${nodes.length} nodes advertise GPUs`),
    ...(unhealthy.length > 0
      ? [fail('gpu-unhealthy', unhealthy.join('; '), 'docs/operate/faults.md says what the fault needs')]
      : []),
    ...(open.length > 0
      ? [warn('limits-do-not-hold', open.join('; '), 'docs/operate/enforcement.md, The canary')]
      : []),
  ];
}

/** The last certificate of the authority counts: while it is replaced, there are two. */
function trustFindings(configurations: readonly Webhooks[], nowMs: number): readonly Finding[] {
  const ours = configurations.flatMap(({ metadata, webhooks = [] }) =>
    webhooks.filter(({ name }) => name.endsWith('cotenant.io')).map(({ clientConfig }) => ({ metadata, clientConfig })),
  );
  const [first] = ours;
  const { fail } = checkOf('webhook authority');
  if (!first)
    return [
      fail(
        'webhook-unregistered',
        'no webhook configuration is of Cotenant',
        'pods with a share stay as they are: install the chart',
      ),
    ];
  const pem = Buffer.from(first.clientConfig.caBundle ?? '', 'base64').toString();
  const last = pem.match(/-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g)?.at(-1) ?? '';
  return [
    { ...certificateFinding(`the authority in ${first.metadata?.name}`, last, nowMs), check: 'webhook authority' },
  ];
}

const AHEAD_MS = 5000;
/** Kubelets renew their Lease every 10 s, and count as gone after 40. */
const BEHIND_MS = 60_000;

/** A kubelet writes the time of its own clock into its Lease. */
async function clockFindings(cluster: Cluster, nowMs: number): Promise<readonly Finding[]> {
  const { ok, warn } = checkOf('clocks');
  const leases = await cluster.list<V1Lease>('/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases');
  if (!leases.ok) return notPermitted('clocks', leases);
  const off = leases.value.flatMap(({ metadata, spec }) => {
    const ageMs = nowMs - Date.parse(String(spec?.renewTime ?? ''));
    if (ageMs < -AHEAD_MS) return [`${metadata?.name} is ${Math.round(-ageMs / 1000)} s ahead`];
    return ageMs > BEHIND_MS
      ? [`${metadata?.name} is behind, or has not answered for ${Math.round(ageMs / 1000)} s`]
      : [];
  });
  if (off.length === 0) return [ok('clocks-agree', `of ${leases.value.length} node(s) with this one`)];
  return [warn('clock-skew', off.join('; '), 'synchronize the clocks of these nodes, and of this machine')];
}

async function foreignFinding(
  cluster: Cluster,
  nodes: Got<readonly Node[]>,
  webhooks: Got<readonly Webhooks[]>,
): Promise<Finding> {
  const places = FOREIGN_DIALECTS.flatMap(({ signs }) => signs?.deployments ?? []);
  const deployments = await Promise.all(
    places.map((place) => {
      const [namespace, name] = place.split('/');
      return cluster.get<V1Deployment>(`/apis/apps/v1/namespaces/${namespace}/deployments/${name}`);
    }),
  );
  const systems = systemsOf([
    ...(nodes.ok ? nodes.value.flatMap((node) => signsOfNode(node as unknown as V1Node)) : []),
    ...(webhooks.ok ? webhooks.value.flatMap(signsOfWebhooks) : []),
    ...deployments.flatMap((got) => (got.ok ? signsOfDeployment(got.value) : [])),
  ]);
  const { ok, warn } = checkOf('other systems');
  if (systems.size === 0) return ok('no-foreign-system', 'no other GPU-sharing system is seen');
  return warn(
    'foreign-system',
    [...systems].map(([name, found]) => `${name}: ${found}`).join('; '),
    'their pods are left to them (rule foreignSystems of the webhook); never let two systems hand out the same GPUs',
  );
}

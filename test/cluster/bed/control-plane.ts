// Command lines of etcd, API server, controller manager and scheduler. Everything listens on loopback inside the
// cluster's network namespace, so ports are fixed. bed.ts starts them.
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** IP address of the Service `kubernetes`. It is local to the namespace, so pods reach the server without a
 * kube-proxy. */
const API_PORT = 443;
const ETCD_PORT = 12379;
/** Address of the node, and the networks of pods and Services: local to the namespace, so any values do. */
export const NETWORK = {
  node: '10.231.1.1',
  gateway: '10.231.1.254',
  pods: '10.231.7.0/24',
  services: '10.231.100.0/24',
  api: '10.231.100.1',
};

export type ControlPlane = {
  /** Kubeconfig of the administrator. */
  readonly kubeconfig: string;
  readonly kubeletKubeconfig: string;
  /** Audit log with the requests of the service accounts in our namespace, one event per line. */
  readonly auditLog: string;
  readonly commands: Readonly<Record<'etcd' | 'apiserver' | 'controllers' | 'scheduler', readonly string[]>>;
};

/** Namespace whose service accounts are audited. */
export const AUDITED_NAMESPACE = 'cotenant-system';
const AUDIT_POLICY = {
  apiVersion: 'audit.k8s.io/v1',
  kind: 'Policy',
  omitStages: ['RequestReceived'],
  rules: [{ level: 'Metadata', userGroups: [`system:serviceaccounts:${AUDITED_NAMESPACE}`] }, { level: 'None' }],
};

/** Programs, the flags of the API server besides the usual ones, and names of nodes besides the first. */
export type PlaneParts = {
  readonly bin: string;
  readonly packages: string;
  readonly apiserver: readonly string[];
  readonly nodes?: readonly string[];
};

/** Kubeconfig of another node's kubelet, in the cluster's folder. */
export const kubeletKubeconfigOf = (nodeName: string): string => `kubelet-${nodeName}.kubeconfig`;

export function controlPlane(folder: string, nodeName: string, parts: PlaneParts): ControlPlane {
  const { bin, packages, nodes = [] } = parts;
  const at = (...parts: string[]) => join(folder, ...parts);
  mkdirSync(at('certificates'), { recursive: true });
  execFileSync('openssl', ['genrsa', '-out', at('sa.key'), '2048'], { stdio: 'ignore' });
  execFileSync('openssl', ['rsa', '-in', at('sa.key'), '-pubout', '-out', at('sa.pub')], { stdio: 'ignore' });
  // The kubelet has the identity of a node, as on any cluster: the node authorizer and NodeRestriction apply.
  const nodeUser = (name: string, file: string) => ({ name: `system:node:${name}`, group: 'system:nodes', file });
  const users = [
    { name: 'admin', group: 'system:masters', file: 'kubeconfig' },
    nodeUser(nodeName, 'kubelet.kubeconfig'),
    ...nodes.map((name) => nodeUser(name, kubeletKubeconfigOf(name))),
  ].map((user) => ({ ...user, token: randomBytes(16).toString('hex') }));
  const lines = users.map(({ name, group, token }) => `${token},${name},${name},"${group}"\n`);
  writeFileSync(at('tokens.csv'), lines.join(''), { mode: 0o600 });
  for (const { name, token, file } of users) {
    const config = {
      apiVersion: 'v1',
      kind: 'Config',
      'current-context': 'bed',
      clusters: [
        { name: 'bed', cluster: { server: `https://127.0.0.1:${API_PORT}`, 'insecure-skip-tls-verify': true } },
      ],
      users: [{ name, user: { token } }],
      contexts: [{ name: 'bed', context: { cluster: 'bed', user: name } }],
    };
    writeFileSync(at(file), JSON.stringify(config), { mode: 0o600 });
  }
  const kubeconfig = at('kubeconfig');
  writeFileSync(at('audit-policy.json'), JSON.stringify(AUDIT_POLICY));
  const auditLog = at('audit.log');
  const etcd = `http://127.0.0.1:${ETCD_PORT}`;
  const peer = `http://127.0.0.1:${ETCD_PORT + 1}`;
  return {
    kubeconfig,
    kubeletKubeconfig: at('kubelet.kubeconfig'),
    auditLog,
    commands: {
      etcd: [
        join(packages, 'usr/bin/etcd'),
        ...['--data-dir', at('etcd')],
        ...['--listen-client-urls', etcd, '--advertise-client-urls', etcd],
        ...['--listen-peer-urls', peer, '--initial-advertise-peer-urls', peer],
        ...['--initial-cluster', `default=${peer}`, '--unsafe-no-fsync'],
      ],
      apiserver: [
        join(bin, 'kube-apiserver'),
        ...['--etcd-servers', etcd, '--secure-port', String(API_PORT), '--bind-address', '0.0.0.0'],
        ...['--advertise-address', NETWORK.node, '--cert-dir', at('certificates')],
        ...['--service-account-key-file', at('sa.pub'), '--service-account-signing-key-file', at('sa.key')],
        ...['--service-account-issuer', 'https://bed.test', '--service-cluster-ip-range', NETWORK.services],
        ...['--token-auth-file', at('tokens.csv'), '--authorization-mode', 'Node,RBAC'],
        ...['--enable-admission-plugins', 'NodeRestriction'],
        ...['--kubelet-preferred-address-types', 'InternalIP', '--allow-privileged'],
        ...['--audit-policy-file', at('audit-policy.json'), '--audit-log-path', auditLog],
        // Makes Services reachable without a kube-proxy.
        '--enable-aggregator-routing',
        ...parts.apiserver,
      ],
      controllers: [
        join(bin, 'kube-controller-manager'),
        ...['--kubeconfig', kubeconfig, '--service-account-private-key-file', at('sa.key')],
        // Holds the CA too; pods get it with their tokens.
        ...['--root-ca-file', at('certificates/apiserver.crt')],
        ...['--leader-elect=false', '--use-service-account-credentials'],
      ],
      scheduler: [join(bin, 'kube-scheduler'), '--kubeconfig', kubeconfig, '--leader-elect=false'],
    },
  };
}

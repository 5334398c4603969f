// A real API server with its etcd and without a node, in namespaces of its own: for what is asked of the server alone it
// starts in a fraction of a test cluster's time.
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Teardown } from '../../support/native/node.ts';
import { type Api, bedApi } from './api.ts';
import type { BedTools } from './bed.ts';
import { bedCgroup, clearAbandoned, clearCgroups, makeCgroups, systemGroup } from './cgroups.ts';
import { controlPlane } from './control-plane.ts';
import { eventually } from './eventually.ts';
import { type Namespaces, openNamespaces } from './namespaces.ts';
import { NODE_NAME } from './node.ts';

export type LoneApiServer = {
  /** Answers as to the administrator. */
  readonly api: Api;
  /** Where its loopback addresses are reached. */
  readonly namespaces: Namespaces;
  /** Path of the administrator's kubeconfig, for programs in the namespaces. */
  readonly kubeconfig: string;
  /** Of kubectl's proxy with the administrator's credentials. */
  readonly socket: string;
};

/** Runs until the test ends. `apiserver`: its flags besides the usual ones. */
export async function startLoneApiServer(
  t: Teardown,
  { bin, packages }: Extract<BedTools, { ok: true }>,
  apiserver: readonly string[] = [],
): Promise<LoneApiServer> {
  await clearAbandoned();
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-bed-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const cgroup = bedCgroup(process.pid);
  makeCgroups(cgroup);
  t.teardown(() => clearCgroups(cgroup));
  const namespaces = await openNamespaces(folder, systemGroup(cgroup));
  t.teardown(() => namespaces.close());
  namespaces.script('ip link set lo up');
  const plane = controlPlane(folder, NODE_NAME, { bin, packages, apiserver });
  namespaces.start('etcd', plane.commands.etcd);
  namespaces.start('apiserver', plane.commands.apiserver);
  const socket = join(folder, 'api.sock');
  const options = ['proxy', '--kubeconfig', plane.kubeconfig, '--unix-socket', socket];
  namespaces.start('proxy', [join(bin, 'kubectl'), ...options]);
  await eventually(() => existsSync(socket) || undefined, 'the proxy listens');
  const api = bedApi(socket);
  const isReady = async () => (await api.ask('GET', '/readyz')).status === 200 || undefined;
  await eventually(isReady, 'the API server is ready');
  return { api, namespaces, socket, kubeconfig: plane.kubeconfig };
}

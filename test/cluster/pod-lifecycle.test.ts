// The way of a pod as its user sees it, on a real cluster: request in each dialect, admission, placement, limits,
// metrics, and a stop when it exceeds its grant; and attempts to avoid that way. The tests are in pod-lifecycle/, on one
// cluster.
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { seriesOf } from '../support/product/agent.ts';
import type { Bed } from './bed/bed.ts';
import { eventually } from './bed/eventually.ts';
import { NODE_NAME } from './bed/node.ts';
import { WHOLE_VALUES } from './bed/whole.ts';
import { DIALECT_NAMESPACES, dialects } from './pod-lifecycle/dialects.ts';
import { recommended } from './pod-lifecycle/recommended.ts';
import { slices } from './pod-lifecycle/slices.ts';
import { violations } from './pod-lifecycle/violations.ts';
import { clientOf, namespaceOf, ONE_SHARE, podOf, untilRunning } from './support/pods.ts';
import { agentPage, podOfRelease } from './support/release.ts';
import { testsOnWhole } from './support/shared.ts';

const { webhook } = WHOLE_VALUES;
/** Its pods have no memory isolation: those that name the node; others do not. */
const pools = { open: { nodeSelector: { 'kubernetes.io/hostname': NODE_NAME }, memoryIsolation: 'off' } };
const onCluster = testsOnWhole(['l4', 'a10'], {
  webhook: { ...webhook, configuration: { ...webhook.configuration, namespaces: DIALECT_NAMESPACES, pools } },
});

/** What is left of a pod's container in the kubelet's and the agent's folders, and in the mounts. */
const leftovers = (bed: Bed): string[] => {
  const root = join(bed.folder, 'host/_var_lib_kubelet/pods');
  const { out } = bed.namespaces.run(['cat', '/proc/mounts']);
  const mounts = out.split('\n').filter((line) => / \/var\/lib\/kubelet\/pods\/\S+csi\/cotenant/.test(line));
  const folders = readdirSync(root).filter((uid) => existsSync(join(root, uid, 'volumes/kubernetes.io~csi/cotenant')));
  const grants = readdirSync(join(bed.folder, 'host/_var_lib_cotenant/grants'));
  return [...mounts, ...folders, ...grants];
};

dialects(onCluster);
slices(onCluster);
recommended(onCluster);
violations(onCluster);

onCluster('pods and namespaces that are deleted in any state leave nothing behind', async (t, { bed }) => {
  for (const namespace of ['team', 'default']) bed.kubectl('-n', namespace, 'delete', 'pods', '--all', '--wait=false');
  bed.apply(namespaceOf('short'));
  const limits = ONE_SHARE.own(512);
  const of = (name: string, commands: readonly string[]) =>
    podOf(name, [clientOf(limits, commands)], { namespace: 'short' });
  bed.apply(...['a', 'b', 'c', 'd'].map((name) => of(name, ['init', 'context 0'])));
  await untilRunning(bed, 'a', { namespace: 'short' });
  bed.kubectl('-n', 'short', 'delete', 'pod', 'b', '--grace-period=0', '--force');
  bed.apply(...['e', 'f'].map((name) => of(name, ['init'])));
  t.is(bed.kubectl('delete', 'namespace', 'short', '--timeout=240s').code, 0);
  const left = await eventually(() => (leftovers(bed).length === 0 ? [] : undefined), 'nothing is left').catch(() =>
    leftovers(bed),
  );
  t.deepEqual(left, []);
  const allocated = async () =>
    seriesOf((await agentPage(bed)) ?? '', 'cotenant_device_memory_allocated_bytes', { gpu: '0' }) === 0 || undefined;
  t.true(await eventually(allocated, 'nothing is granted by the next sample'));
  t.truthy(await podOfRelease(bed, 'agent'));
});

// What is done to a node under its tenants: it loses power and comes back, and it is drained, with everything of ours that
// runs on it, and taken into service again.
import { testUnless } from '../../support/gate.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { BUILD_MS } from '../../support/services/helm.ts';
import type { Bed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { NODE_NAME } from '../bed/node.ts';
import { reboot } from '../bed/reboot.ts';
import { startWhole, WHOLE_VALUES, wholeTools } from '../bed/whole.ts';
import {
  attach,
  clientOf,
  containerOf,
  MIB,
  type Pod,
  podOf,
  untilGone,
  untilPod,
  untilRunning,
} from '../support/pods.ts';
import { agentPage } from '../support/release.ts';

const tools = wholeTools(console.log);
const SHARE = { 'cotenant.io/gpu-memory': '1Gi' };
const START = ['init', 'context 0', `alloc ${256 * MIB}`];
const OUT_OF_MEMORY = 2;

/** The pod's memory limit in bytes on the agent's page; undefined: it has no grant, or there is no page. */
async function granted(bed: Bed, pod: string): Promise<number | undefined> {
  const page = await agentPage(bed);
  return page === undefined ? undefined : seriesOf(page, 'cotenant_container_memory_limit_bytes', { pod });
}

testUnless(tools.ok ? undefined : tools.reason)(
  'a node that loses power or is drained gives each tenant its share again',
  async (t) => {
    t.timeout(BUILD_MS);
    if (!tools.ok) throw new Error(tools.reason);
    const { bed } = await startWhole(tools, ['l4'], (line) => t.log(line), {
      ...WHOLE_VALUES,
      // No API server keeps connections to a webhook whose node is drained here.
      webhook: { ...WHOLE_VALUES.webhook, drainSeconds: 0 },
    });
    t.teardown(() => bed.close());
    const labels = { app: 'served' };
    bed.apply(podOf('steady', [clientOf(SHARE, START)]), {
      apiVersion: 'apps/v1',
      kind: 'ReplicaSet',
      metadata: { name: 'served', namespace: 'default' },
      spec: {
        replicas: 1,
        selector: { matchLabels: labels },
        template: {
          metadata: { labels },
          spec: { containers: [clientOf(SHARE, START)], terminationGracePeriodSeconds: 1 },
        },
      },
    });
    const served = async (what: string, good: (pod: Pod) => boolean) => {
      let items: readonly Pod[] = [];
      const running = async () => {
        const list = await bed.api.get<{ items: Pod[] }>('/api/v1/namespaces/default/pods?labelSelector=app%3Dserved');
        items = list?.items ?? [];
        return items.find((pod) => containerOf(pod)?.state.running !== undefined && good(pod));
      };
      try {
        return await eventually(running, what);
      } catch (error) {
        const events = bed.kubectl('get', 'events', '-A', '--sort-by=.lastTimestamp').out.split('\n').slice(-40);
        const pods = items.map(({ metadata, status }) => `${metadata.name}: ${JSON.stringify(status)}`);
        throw new Error([(error as Error).message, ...pods, ...events].join('\n'));
      }
    };
    const isHeld = async (name: string) => {
      const client = attach(bed, name);
      t.is((await client.ask(`alloc ${512 * MIB}`))[0], 0, `${name}: within its share`);
      t.is((await client.ask(`alloc ${512 * MIB}`))[0], OUT_OF_MEMORY, `${name}: beyond its share`);
      await client.leave();
    };
    const before = await untilRunning(bed, 'steady');
    const first = await served('a pod of the ReplicaSet runs', () => true);

    await reboot(bed);
    const again = (pod: Pod) =>
      pod.metadata.uid === before.metadata.uid &&
      containerOf(pod)?.state.running !== undefined &&
      containerOf(pod)?.containerID !== containerOf(before)?.containerID;
    const after = await untilPod(bed, 'steady', 'runs again', again);
    t.deepEqual(after.metadata.annotations, before.metadata.annotations, 'its grant is the same');
    const second = await served(
      'so does the one of the ReplicaSet',
      (pod) => containerOf(pod)?.containerID !== containerOf(first)?.containerID,
    );
    for (const { metadata } of [after, second]) {
      await eventually(async () => (await granted(bed, metadata.name)) || undefined, 'the agent shows it');
      await isHeld(metadata.name);
    }

    const drained = bed.kubectl(
      'drain',
      NODE_NAME,
      '--ignore-daemonsets',
      '--delete-emptydir-data',
      '--force',
      '--timeout=3m',
    );
    t.is(drained.code, 0, drained.err);
    await untilGone(bed, 'steady');
    const isEmpty = async () => {
      const page = await agentPage(bed);
      return (page !== undefined && !page.includes('\ncotenant_container_memory_limit_bytes{')) || undefined;
    };
    await eventually(isEmpty, 'the agent, which a drain leaves, holds no grant');

    t.is(bed.kubectl('uncordon', NODE_NAME).code, 0);
    const gone = [first.metadata.uid, second.metadata.uid];
    // While no webhook ran no pod with a share was created. The ReplicaSet's controller counts each try in vain, also those
    // that other events cause, and may wait for up to 1,000 s (kubernetes/kubernetes#132805), if the ReplicaSet is left alone.
    let changes = 0;
    const change = () => {
      changes += 1;
      bed.kubectl('annotate', '--overwrite', 'replicaset', 'served', `example.com/again=${changes}`);
    };
    const changing = setInterval(change, 5000);
    t.teardown(() => clearInterval(changing));
    const third = await served('the ReplicaSet has a pod again', ({ metadata: { uid } }) => !gone.includes(uid));
    clearInterval(changing);
    await eventually(async () => (await granted(bed, third.metadata.name)) || undefined, 'the agent shows it');
    await isHeld(third.metadata.name);
    t.is(await granted(bed, third.metadata.name), 1024 * MIB);
  },
);

// What the parts of an installed chart can do, looked at where it counts: the kernel's own account of their processes, and the
// API server's of their requests.
import { formatPodGrant } from '../../src/placement/pod-grant.ts';
import { GRANT_ANNOTATION, uuidsAnnotation } from '../../src/request/names.ts';
import { testUnless } from '../support/gate.ts';
import { BUILD_MS, lookForHelm, readyHelm } from '../support/helm.ts';
import { eventually } from '../support/node.ts';
import { bedGround, startBed } from './bed/bed.ts';
import { INSIDE } from './bed/cards.ts';
import { addClientImage, addCotenantImage, addSimulatedCards, installChart, NAMESPACE } from './bed/product.ts';
import { firstProcessOf, listenersOf, processesOf, rightsOf, signalContainer } from './support/containers.ts';
import { lookAtPermissions } from './support/permissions.ts';
import { bind, cheatOf, containerOf, eventsOf, MIB, podOf, shellOf, untilPod, untilRunning } from './support/pods.ts';
import { type Component, podOfRelease } from './support/release.ts';

const ground = bedGround(console.log, false);
const helm = lookForHelm();
const reason = ground.ok ? (helm.kind === 'missing' ? helm.reason : undefined) : ground.reason;

const NOBODY = 65532;
/** Containers that may do nothing but compute and talk. */
const POWERLESS: readonly (readonly [Component, string])[] = [
  ['agent', 'exporter'],
  ['webhook', 'webhook'],
];

testUnless(reason)('no part of ours can do more than it must, and each permission is used', async (t) => {
  t.timeout(BUILD_MS);
  if (!ground.ok || helm.kind === 'missing') throw new Error(reason);
  const path = await readyHelm(helm);
  const bed = await startBed(ground, (line) => t.log(line));
  t.teardown(() => bed.close());
  addCotenantImage(bed);
  addClientImage(bed);
  const [card = ''] = await addSimulatedCards(bed, 'l4');
  const library = `${INSIDE}/lib`;
  installChart(bed, path, {
    csi: { enabled: true },
    agent: { configuration: { nvmlLibrary: `${library}/libnvidia-ml.so.1`, cudaLibrary: `${library}/libcuda.so.1` } },
    webhook: { enabled: true, replicas: 1 },
  });

  for (const [component, container] of POWERLESS) {
    const pod = await podOfRelease(bed, component);
    const pids = processesOf(bed, pod, container);
    t.true(pids.length > 0, container);
    const users = [NOBODY, NOBODY, NOBODY, NOBODY];
    for (const pid of pids) {
      t.deepEqual(
        rightsOf(pid),
        { users, groups: users, capabilities: 0n, noNewPrivileges: true, seccomp: 'filter', readOnlyRoot: true },
        container,
      );
    }
  }

  // The half that acts: root with everything, therefore out of reach.
  const agent = await podOfRelease(bed, 'agent');
  const node = processesOf(bed, agent, 'node');
  t.true(node.length > 1, 'with its sampler');
  t.is(rightsOf(firstProcessOf(bed, agent, 'node')).users[0], 0);
  t.true(rightsOf(firstProcessOf(bed, agent, 'node')).readOnlyRoot);
  t.deepEqual(listenersOf(node), [{ port: 9838, isLoopback: true }]);
  t.deepEqual(listenersOf(processesOf(bed, agent, 'exporter')), [{ port: 9837, isLoopback: false }]);

  // A little of everything that a cluster does with us: a pod is placed, takes more than it may, and is stopped.
  const bound = async (name: string, commands: readonly string[]) => {
    bed.apply(podOf(name, [cheatOf({ 'cotenant.io/gpu-memory': '1Gi' }, commands)]));
    const share = { gpuUuid: card, memoryBytes: 1024 * MIB, limitBytes: 1024 * MIB, coresPercent: 0 };
    const containers = [{ name: 'main', kind: 'app', memoryIsolation: 'on', cards: [share] }] as const;
    const grant = formatPodGrant({ epoch: 1, containers });
    const answer = await bind(bed, name, 'default', { [GRANT_ANNOTATION]: grant, [uuidsAnnotation('main')]: card });
    t.is(answer.status, 201, JSON.stringify(answer.body));
  };
  await bound('cheat', ['init', 'context 0', `alloc ${2048 * MIB}`]);
  await untilPod(bed, 'cheat', 'was stopped', (pod) => (containerOf(pod)?.restartCount ?? 0) > 0);
  const stopped = await eventually(
    async () => (await eventsOf(bed, 'cheat')).find(({ message }) => message.includes('stopped')),
    'an Event tells of it',
  );
  t.is(stopped.type, 'Warning');
  t.is(bed.kubectl('delete', 'pod', 'cheat').code, 0);

  // A pod that the agent has not heard of it asks for. It hears of nothing for 5 s after its watch broke; the kubelet does when
  // it has taken a pod, here one that needs nothing of the runtime.
  signalContainer(bed, agent, 'node', 'SIGSTOP');
  await bed.restart('apiserver');
  const absent = { volumes: [{ name: 'absent', configMap: { name: 'absent' } }] };
  bed.apply(
    podOf('waiting', [shellOf('', { volumeMounts: [{ name: 'absent', mountPath: '/absent' }] })], { spec: absent }),
  );
  await untilPod(bed, 'waiting', 'has reached the kubelet', ({ status }) => status?.startTime !== undefined);
  await bound('unheard', ['init']);
  signalContainer(bed, agent, 'node', 'SIGCONT');
  await untilRunning(bed, 'unheard');

  const { held, ...found } = await lookAtPermissions(bed, NAMESPACE);
  t.true(held > 0);
  t.deepEqual(found, { unused: [], denied: [] });
});

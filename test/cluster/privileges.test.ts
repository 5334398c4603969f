// What the parts of an installed chart can do, looked at where it counts: the kernel's own account of their processes, and the
// API server's of their requests.
import { testUnless } from '../support/gate.ts';
import { BUILD_MS } from '../support/helm.ts';
import { eventually } from '../support/node.ts';
import { NAMESPACE } from './bed/product.ts';
import { startWhole, wholeGround } from './bed/whole.ts';
import { firstProcessOf, listenersOf, processesOf, rightsOf, signalContainer } from './support/containers.ts';
import { lookAtPermissions } from './support/permissions.ts';
import {
  cheatOf,
  clientOf,
  containerOf,
  eventsOf,
  MIB,
  podOf,
  shellOf,
  untilPod,
  untilRunning,
} from './support/pods.ts';
import { type Component, podOfRelease } from './support/release.ts';

const ground = wholeGround(console.log);

const NOBODY = 65532;
/** Containers that may do nothing but compute and talk. */
const POWERLESS: readonly (readonly [Component, string])[] = [
  ['agent', 'exporter'],
  ['webhook', 'webhook'],
  ['scheduler', 'extender'],
  ['scheduler', 'kube-scheduler'],
];

testUnless(ground.ok ? undefined : ground.reason)(
  'no part of ours can do more than it must, and each permission is used',
  async (t) => {
    t.timeout(BUILD_MS);
    if (!ground.ok) throw new Error(ground.reason);
    const { bed } = await startWhole(ground, ['l4'], (line) => t.log(line));
    t.teardown(() => bed.close());

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
    // What binds pods is asked by the scheduler beside it and by nobody else.
    const extender = listenersOf(processesOf(bed, await podOfRelease(bed, 'scheduler'), 'extender'));
    t.deepEqual(
      extender.toSorted((a, b) => a.port - b.port),
      [
        { port: 9840, isLoopback: true },
        { port: 9841, isLoopback: false },
      ],
    );

    // A little of everything that a cluster does with us: a pod is placed, takes more than it may, and is stopped.
    const share = { 'cotenant.io/gpu-memory': '1Gi' };
    bed.apply(podOf('cheat', [cheatOf(share, ['init', 'context 0', `alloc ${2048 * MIB}`])]));
    await untilPod(bed, 'cheat', 'was stopped', (pod) => (containerOf(pod)?.restartCount ?? 0) > 0);
    const stopped = await eventually(
      async () => (await eventsOf(bed, 'cheat')).find(({ message }) => message.includes('stopped')),
      'an Event tells of it',
    );
    t.is(stopped.type, 'Warning');
    t.is(bed.kubectl('delete', 'pod', 'cheat').code, 0);

    const { held, denied } = await lookAtPermissions(bed, NAMESPACE);
    t.true(held > 0);
    // Before anybody meets an API server that has only begun to read its roles.
    t.deepEqual(denied, []);

    // A pod that the agent has not heard of it asks for. It hears of nothing for 5 s after its watch broke; the kubelet does when
    // it has taken a pod, here one that needs nothing of the runtime.
    signalContainer(bed, agent, 'node', 'SIGSTOP');
    await bed.restart('apiserver');
    const absent = { volumes: [{ name: 'absent', configMap: { name: 'absent' } }] };
    bed.apply(
      podOf('waiting', [shellOf('', { volumeMounts: [{ name: 'absent', mountPath: '/absent' }] })], { spec: absent }),
    );
    await untilPod(bed, 'waiting', 'has reached the kubelet', ({ status }) => status?.startTime !== undefined);
    bed.apply(podOf('unheard', [clientOf(share)]));
    await untilPod(bed, 'unheard', 'is bound', ({ spec }) => spec.nodeName !== undefined);
    signalContainer(bed, agent, 'node', 'SIGCONT');
    await untilRunning(bed, 'unheard');

    t.deepEqual((await lookAtPermissions(bed, NAMESPACE)).unused, []);
  },
);

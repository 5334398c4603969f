// Why a pod that has started is as it is: it runs, was stopped, has ended, or is being deleted.
import test from 'ava';
import { GRANT_ANNOTATION } from '../../../src/api/names.ts';
import { explain, explanationLines } from '../../../src/cli/cluster/explain-pod.ts';
import type { Node, Pod } from '../../../src/cli/cluster/objects.ts';
import type { ContainerUse, KnownUse } from '../../../src/cli/cluster/use.ts';
import {
  type Case,
  facts,
  GPU,
  granted,
  NOW,
  notReady,
  ready,
  recorded,
  STOP,
  stopped,
  waiting,
  withMetadata,
} from './facts.ts';

const WARNING = `team/rogue/main exceeds its GPU memory grant: 1100 MiB of 1024 MiB on ${GPU}; the agent stops it if this lasts`;

const withState = (pod: Pod, state: object): Pod => ({
  ...pod,
  status: { ...pod.status, containerStatuses: [{ name: 'main', restartCount: 0, state }] },
});
const lostNode = (node: Node): Node => ({
  ...node,
  status: {
    conditions: [
      {
        type: 'Ready',
        status: 'Unknown',
        reason: 'NodeStatusUnknown',
        message: 'Kubelet stopped posting node status.',
        lastTransitionTime: '2026-11-21T22:08:00Z',
      },
    ],
  },
});
const use = (fence: string, relieved?: number): KnownUse => ({
  known: true,
  mode: 'enforce',
  gpus: new Map(),
  containers: [
    {
      namespace: 'team',
      pod: 'train',
      container: 'main',
      gpuUuid: GPU,
      usedBytes: 3320 * 2 ** 20,
      fence,
      ...(relieved && { relieved }),
    },
  ],
  foreign: [],
  ofGonePods: [],
});

const running = recorded('running');
const isolationOff = withMetadata(running.pod, {
  annotations: {
    ...running.pod.metadata.annotations,
    [GRANT_ANNOTATION]: running.pod.metadata.annotations?.[GRANT_ANNOTATION]?.replace('"on"', '"off"') ?? '',
  },
});
const above = (known: KnownUse, mib: number): KnownUse => ({
  ...known,
  containers: known.containers.map((one) => ({ ...one, aboveGrantBytes: mib * 2 ** 20 })),
});
/** Own use, and that of other pods without memory isolation, two of them on the same GPU. */
const beside = (...aboveMib: readonly number[]): KnownUse => {
  const [own] = use('interposer').containers;
  const others = aboveMib.map((mib, index) => ({
    ...{ namespace: 'other', pod: `free-${index}`, container: 'main', gpuUuid: index < 2 ? GPU : 'GPU-else' },
    ...{ fence: 'none', aboveGrantBytes: mib * 2 ** 20 },
  }));
  return { ...use('interposer'), containers: [...(own ? [own] : []), ...others] };
};
const using = (figures: Pick<ContainerUse, 'usedBytes' | 'smRatio'>): KnownUse => {
  const known = use('interposer');
  return { ...known, containers: known.containers.map((one) => ({ ...one, ...figures })) };
};
const onGpu = (mib: number) => `${mib} MiB and 25 % of the compute of GPU 0 (NVIDIA L4, ${GPU})`;

const CASES: readonly Case[] = [
  [
    'a running pod and the isolation of its limit',
    facts('running', { agents: [ready], use: use('interposer') }),
    [
      'team/train runs on node node-1.',
      granted(`${onGpu(4096)}; it uses 3320 MiB, and its limit is enforced by the interposer.`),
    ],
  ],
  [
    'a pod that uses more than its limit, and compute',
    facts('running', { agents: [ready], use: using({ usedBytes: 4196 * 2 ** 20, smRatio: 0.246 }) }),
    [
      'team/train runs on node node-1.',
      granted(
        `${onGpu(4096)}; it uses 4196 MiB (100 MiB above its limit) and 25 % of the compute, and its limit is enforced by the interposer.`,
      ),
    ],
  ],
  [
    'a pod whose launches were let go, as its work might wait for them',
    facts('running', { agents: [ready], use: use('interposer', 12) }),
    [
      'team/train runs on node node-1.',
      granted(`${onGpu(4096)}; it uses 3320 MiB, and its limit is enforced by the interposer.`),
      `  main had 12 launches on ${GPU} let go before its share allowed it, as its work in flight might wait for them; what they use delays its later launches.`,
    ],
  ],
  [
    'a pod beside others that hold more than their grants, as their memory isolation is off',
    facts('running', { agents: [ready], use: beside(200, 100, 5000) }),
    [
      'team/train runs on node node-1.',
      granted(`${onGpu(4096)}; it uses 3320 MiB, and its limit is enforced by the interposer.`),
      `  Containers of other pods on ${GPU}, whose memory isolation is off, hold 300 MiB more than their grants: allocations of main may fail within its grant.`,
    ],
  ],
  [
    'a pod whose memory isolation is off, and that holds more than its grant',
    facts('running', { pod: isolationOff, agents: [ready], use: above(use('none'), 300) }),
    [
      'team/train runs on node node-1.',
      granted(
        `${onGpu(4096)}; it uses 3320 MiB, and its limit is not enforced; memory isolation is off, as it requested: it holds 300 MiB more than its grant, which others on that GPU may lack.`,
      ),
    ],
  ],
  [
    'a pod that runs and is held by nothing',
    facts('running', { agents: [ready], use: use('none') }),
    ['team/train runs on node node-1.', granted(`${onGpu(4096)}; it uses 3320 MiB, and its limit is not enforced.`)],
  ],
  [
    'a pod that runs on a node that is lost and cannot be looked into',
    facts('running', { node: lostNode(running.node), notes: ['Agents may not be listed.'] }),
    [
      'team/train runs on node node-1.',
      granted(`${onGpu(4096)}.`),
      '  2026-11-21T22:08:00Z Node node-1 is not ready: Kubelet stopped posting node status.',
      'Agents may not be listed.',
    ],
  ],
  [
    'a container that the agent stopped: its termination message gives GPU, use and limit',
    facts('stopped', { agents: [ready] }),
    [
      'team/rogue is bound to node node-1 and waits: none of its containers runs.',
      '  Container main waits: CrashLoopBackOff: back-off 1m20s restarting failed container=main pod=rogue_team(c456a7f1-fe1d-4915-b4d4-0b0fcaa6115c).',
      `  2026-11-21T22:07:07Z Container main (restarted 4 times so far) ended with exit code 137, stopped by the agent: ${STOP}.`,
      granted(`${onGpu(1024)}.`),
    ],
  ],
  [
    'without a termination message: numbers from the event of this pod alone',
    facts('stopped', {
      agents: [ready],
      pod: withState(stopped.pod, {
        terminated: { exitCode: 137, reason: 'Error', finishedAt: '2026-11-21T22:07:07Z' },
      }),
      events: [
        ...stopped.events,
        ...stopped.events.map((event) => ({
          ...event,
          involvedObject: { ...event.involvedObject, uid: '00000000-0000-4000-8000-000000000000' },
        })),
      ],
    }),
    [
      'team/rogue is bound to node node-1 and waits: none of its containers runs.',
      `  2026-11-21T22:07:08Z The agent: ${STOP}.`,
      '  2026-11-21T22:07:07Z Container main ended with exit code 137, stopped by the agent.',
      granted(`${onGpu(1024)}.`),
    ],
  ],
  [
    'a container that ended by itself after a warning',
    facts('stopped', {
      agents: [ready],
      pod: withState(stopped.pod, { terminated: { exitCode: 1, reason: 'Error', finishedAt: '2026-11-21T22:07:07Z' } }),
      events: stopped.events.map((event) => ({
        ...event,
        metadata: { ...event.metadata, annotations: { 'cotenant.io/action': 'warn' } },
        message: WARNING,
      })),
    }),
    [
      'team/rogue is bound to node node-1 and waits: none of its containers runs.',
      `  2026-11-21T22:07:08Z The agent: ${WARNING}.`,
      '  2026-11-21T22:07:07Z Container main ended with exit code 1.',
      granted(`${onGpu(1024)}.`),
    ],
  ],
  [
    "a container that was killed for host memory is not the agent's",
    facts('running', {
      agents: [ready],
      pod: {
        ...running.pod,
        status: {
          phase: 'Failed',
          conditions: running.pod.status?.conditions ?? [],
          containerStatuses: [
            {
              name: 'main',
              restartCount: 0,
              state: { terminated: { exitCode: 137, reason: 'OOMKilled', finishedAt: '2026-11-21T22:09:00Z' } },
            },
          ],
        },
      },
    }),
    [
      'team/train has ended (Failed).',
      '  2026-11-21T22:09:00Z Container main ended with exit code 137 (OOMKilled).',
      granted(`${onGpu(4096)}.`),
      '  main asks for 4096 MiB and 25 % of the compute of one GPU.',
    ],
  ],
  [
    'a pod that cannot go while the agent of its node is down',
    facts('waiting-for-volume', {
      agents: [notReady],
      pod: withState(withMetadata(waiting.pod, { deletionTimestamp: '2026-11-21T22:09:30Z' }), {
        terminated: { exitCode: 0, reason: 'Completed', finishedAt: '2026-11-21T22:09:30Z' },
      }),
    }),
    [
      'team/mounts is being deleted, for 30 s.',
      '  2026-11-21T22:06:00Z The agent of node node-1 (pod cotenant-agent-x7k2p) is not ready: containers with unready status: [node].',
      '  Its containers have ended and use no GPU; the pod is removed when the agent is back and unmounts its volume.',
    ],
  ],
  [
    'its age is that of the request, not of the end of its grace',
    facts('running', {
      agents: [ready],
      pod: withMetadata(running.pod, {
        deletionTimestamp: '2026-11-21T22:10:25Z',
        deletionGracePeriodSeconds: 30,
      }),
    }),
    ['team/train is being deleted, for 5 s.', '  Still running: main.'],
  ],
  [
    'a pod that ends, but still runs, and is kept by a finalizer',
    facts('running', {
      agents: [ready],
      pod: withMetadata(running.pod, { deletionTimestamp: '2026-11-21T22:09:58Z', finalizers: ['example.com/hold'] }),
    }),
    [
      'team/train is being deleted, for 2 s.',
      '  Still running: main.',
      '  It is kept by the finalizers example.com/hold.',
    ],
  ],
  [
    'a termination message with control characters',
    facts('stopped', {
      agents: [ready],
      events: [],
      pod: withState(stopped.pod, {
        terminated: { exitCode: 1, reason: 'Error', message: 'one\u001b[2J\ntwo', finishedAt: '2026-11-21T22:07:07Z' },
      }),
    }),
    [
      'team/rogue is bound to node node-1 and waits: none of its containers runs.',
      '  2026-11-21T22:07:07Z Container main ended with exit code 1: one [2J two.',
      granted(`${onGpu(1024)}.`),
    ],
  ],
];

for (const [name, of, lines] of CASES) {
  test(`why: ${name}`, (t) => t.deepEqual(explanationLines(explain(of, NOW)), lines));
}

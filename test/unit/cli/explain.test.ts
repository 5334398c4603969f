// Why a pod is where it is: objects as a Kubernetes 1.36 wrote them (test/fixtures/cluster), some with one thing changed, and
// the sentences that follow.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { explain, explanationLines, type PodFacts } from '../../../src/cli/cluster/explain.ts';
import type { KnownUse } from '../../../src/cli/cluster/metrics.ts';
import type { ContainerState, Event, Node, Pod } from '../../../src/cli/cluster/objects.ts';
import { GRANT_ANNOTATION, REQUEST_ANNOTATION } from '../../../src/request/names.ts';

const FOLDER = join(import.meta.dirname, '../../fixtures/cluster');
const NOW = Date.parse('2026-11-21T22:10:00Z');
const CARD = 'GPU-51a0c07e-4a27-4551-8d21-6e1004000000';
const OTHER = 'GPU-51a0c07e-4a27-4551-8d21-6e1005000001';
const STOP = `team/cheat/main holds GPU memory that its limit does not see: 3000 MiB of 1024 MiB on ${CARD}, 2900 MiB of it past the interposer; it is stopped`;

const WARNING = `team/cheat/main is over its GPU memory grant: 1100 MiB of 1024 MiB on ${CARD}; it will be stopped if it stays so`;

type Recorded = { readonly pod: Pod; readonly events: readonly Event[]; readonly node: Node };

const recorded = (name: string): Recorded =>
  JSON.parse(readFileSync(join(FOLDER, `1.36-${name}.json`), 'utf8')) as Recorded;
const facts = (name: string, more: Partial<PodFacts> = {}): PodFacts => {
  const { pod, events, node } = recorded(name);
  const { namespace = '', name: podName } = pod.metadata;
  return { namespace, name: podName, pod, events, ...(node ? { node } : {}), notes: [], ...more };
};
const absent = (name: string): PodFacts => ({
  namespace: 'team',
  name,
  events: [],
  refusals: (JSON.parse(readFileSync(join(FOLDER, '1.36-refused.json'), 'utf8')) as { refusals: Event[] }).refusals,
  notes: [],
});

const withMetadata = (pod: Pod, more: Partial<Pod['metadata']>): Pod => ({
  ...pod,
  metadata: { ...pod.metadata, ...more },
});
const withState = (pod: Pod, state: ContainerState): Pod => ({
  ...pod,
  status: { ...pod.status, containerStatuses: [{ name: 'main', restartCount: 0, state }] },
});
const saying = (events: readonly Event[], message: string): Event[] => events.map((event) => ({ ...event, message }));
const notReady: Pod = {
  metadata: { name: 'cotenant-agent-x7k2p', namespace: 'cotenant-system' },
  spec: { nodeName: 'node-1', containers: [{ name: 'node' }] },
  status: {
    phase: 'Running',
    conditions: [
      {
        type: 'Ready',
        status: 'False',
        reason: 'ContainersNotReady',
        message: 'containers with unready status: [node]',
        lastTransitionTime: '2026-11-21T22:06:00Z',
      },
    ],
  },
};
const ready: Pod = { ...notReady, status: { phase: 'Running', conditions: [{ type: 'Ready', status: 'True' }] } };
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
const use = (fence: string): KnownUse => ({
  known: true,
  cards: new Map(),
  containers: [{ namespace: 'team', pod: 'train', container: 'main', gpuUuid: CARD, usedBytes: 3320 * 2 ** 20, fence }],
  foreign: [],
});

const waiting = recorded('waiting-for-volume');
const stopped = recorded('stopped');
const running = recorded('running');
const bound = '2026-11-21T22:05:12Z';
const granted = (what: string) => `  ${bound} main was granted ${what}`;
const asked = '  main asks for 30720 MiB and 25 % of the compute of one card.';
const onOther = `1024 MiB and 25 % of the compute of GPU 1 (NVIDIA A10, ${OTHER}).`;
const onCard = (mib: number) => `${mib} MiB and 25 % of the compute of GPU 0 (NVIDIA L4, ${CARD})`;
const WAITS = 'team/mounts is bound to node node-1 and waits: none of its containers runs.';
const policy = (name: string) =>
  `pods "${name}" is forbidden: ValidatingAdmissionPolicy 'cotenant-pods' with binding 'cotenant-pods' denied request: pods with cotenant.io resources want the webhook of Cotenant.`;

const CASES: readonly (readonly [name: string, of: PodFacts, lines: readonly string[]])[] = [
  [
    'a pod that its ReplicaSet could not create, because of a policy: many events, one sentence',
    absent('refused-587866dfb9-t9s9k'),
    [
      'There is no pod team/refused-587866dfb9-t9s9k.',
      `  2026-11-21T22:07:59Z ReplicaSet refused-587866dfb9 could not create its pod, 16 times in 4 min: ${policy('refused-587866dfb9-drcmk')}`,
    ],
  ],
  [
    'the same, by the name of its Deployment, because of a webhook that is down',
    absent('hooked'),
    [
      'There is no pod team/hooked.',
      '  2026-11-21T22:07:59Z ReplicaSet hooked-66bd499686 could not create its pod, 16 times in 4 min: Internal error occurred: failed calling webhook "inject.cotenant.io": failed to call webhook: Post "https://cotenant-webhook.cotenant-system.svc:443/mutate?timeout=2s": service "cotenant-webhook" not found. The webhook does not answer: pods that ask for a share are not created until it does.',
    ],
  ],
  [
    'a pod of a StatefulSet',
    absent('sts-0'),
    [
      'There is no pod team/sts-0.',
      `  2026-11-21T22:08:00Z StatefulSet sts could not create its pod, 16 times in 4 min: ${policy('sts-0')}`,
    ],
  ],
  [
    'a pod that nobody refused: owners whose names only begin alike are not meant',
    absent('st'),
    [
      'There is no pod team/st.',
      '  No event says that one of that name was refused; events are kept for an hour unless the cluster says otherwise.',
    ],
  ],
  [
    'a pod that is gone, and was stopped',
    { ...absent('cheat'), events: stopped.events },
    ['There is no pod team/cheat.', `  2026-11-21T22:07:08Z The agent: ${STOP}.`],
  ],
  ['a pod that asks for no share', facts('plain'), ['team/plain asks for no share of a GPU (phase Running).']],
  [
    'a pod with the names of a dialect that is off',
    facts('plain', {
      pod: {
        ...recorded('plain').pod,
        spec: { containers: [{ name: 'main', resources: { limits: { 'aliyun.com/gpu-mem': '3' } } }] },
      },
    }),
    [
      'team/plain asks for no share of a GPU (phase Running).',
      '  It names aliyun.com/gpu-mem, which the webhook does not read here: its dialect is not switched on.',
    ],
  ],
  [
    'a pod that went past the webhook',
    facts('plain', {
      pod: {
        ...recorded('plain').pod,
        spec: { containers: [{ name: 'main', resources: { limits: { 'cotenant.io/gpu': '1' } } }] },
      },
    }),
    [
      'team/plain asks for no share of a GPU (phase Running).',
      '  It names cotenant.io/gpu, but has not passed the webhook, so nobody will give it a share.',
    ],
  ],
  [
    'a pod that fits nowhere: what the scheduler says',
    facts('pending-unschedulable', { schedulers: [] }),
    [
      'team/def is pending for 4 min: no node was chosen for it yet.',
      "  2026-11-21T22:05:12Z The scheduler default-scheduler finds no place: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
      '  main asks for 900000 MiB and 25 % of the compute of one card.',
    ],
  ],
  [
    'the same where events may not be read: the condition says it, too',
    facts('pending-unschedulable', { events: [], notes: ['Events are not told: forbidden.'] }),
    [
      'team/def is pending for 4 min: no node was chosen for it yet.',
      "  2026-11-21T22:05:12Z The scheduler default-scheduler finds no place: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
      '  main asks for 900000 MiB and 25 % of the compute of one card.',
      'Events are not told: forbidden.',
    ],
  ],
  [
    'the same while the agents of its nodes are away',
    facts('pending-unschedulable', {
      events: saying(
        recorded('pending-unschedulable').events,
        '0/1 nodes are available: 1 Insufficient cotenant.io/gpu.',
      ),
    }),
    [
      'team/def is pending for 4 min: no node was chosen for it yet.',
      '  2026-11-21T22:05:12Z The scheduler default-scheduler finds no place: 0/1 nodes are available: 1 Insufficient cotenant.io/gpu.',
      '  A node without cotenant.io/gpu shares no GPU, takes no more tenants, or its agent is away.',
      '  main asks for 900000 MiB and 25 % of the compute of one card.',
    ],
  ],
  [
    'a pod at which no scheduler has looked, and whose scheduler is not there',
    facts('pending-silent', { schedulers: [] }),
    [
      'team/large is pending for 4 min: no node was chosen for it yet.',
      '  The scheduler cotenant-scheduler has said nothing about it in 4 min: is it running?',
      "  No pod of Cotenant's own scheduler is ready (there is none).",
      asked,
    ],
  ],
  [
    'the same where the scheduler is there, or may not be looked at',
    facts('pending-silent', { schedulers: [ready] }),
    [
      'team/large is pending for 4 min: no node was chosen for it yet.',
      '  The scheduler cotenant-scheduler has said nothing about it in 4 min: is it running?',
      asked,
    ],
  ],
  [
    'a pod of the default scheduler, which need not be ours',
    facts('pending-unschedulable', {
      events: [],
      pod: { ...recorded('pending-unschedulable').pod, status: { phase: 'Pending' } },
      schedulers: [],
    }),
    [
      'team/def is pending for 4 min: no node was chosen for it yet.',
      '  The scheduler default-scheduler has said nothing about it in 4 min: is it running?',
      '  main asks for 900000 MiB and 25 % of the compute of one card.',
    ],
  ],
  [
    'a pod whose node has no agent',
    facts('waiting-for-volume', { agents: [] }),
    [
      WAITS,
      '  2026-11-21T22:07:20Z The agent has not announced itself to the kubelet of node node-1: it is missing there, or just starts.',
      '  No agent of Cotenant runs on node node-1.',
      granted(onOther),
    ],
  ],
  [
    'a pod that the agent refuses, in the words of the agent',
    facts('waiting-for-volume', {
      agents: [ready],
      events: saying(
        waiting.events,
        'MountVolume.SetUp failed for volume "cotenant" : rpc error: code = FailedPrecondition desc = cotenant: pod team/mounts has no grant (annotation cotenant.io/grant); was it bound by another scheduler?',
      ),
    }),
    [
      WAITS,
      "  2026-11-21T22:07:20Z The node's agent gives it no volume: pod team/mounts has no grant (annotation cotenant.io/grant); was it bound by another scheduler?",
      granted(onOther),
    ],
  ],
  [
    'a pod whose agent went away',
    facts('waiting-for-volume', {
      agents: [notReady],
      events: saying(
        waiting.events,
        'MountVolume.SetUp failed for volume "cotenant" : rpc error: code = Unavailable desc = connection error: desc = "transport: Error while dialing: dial unix /var/lib/kubelet/plugins/cotenant.io/csi.sock: connect: connection refused"',
      ),
    }),
    [
      WAITS,
      '  2026-11-21T22:07:20Z The agent of node node-1 does not answer; the pod starts when it does.',
      '  2026-11-21T22:06:00Z The agent of node node-1 (pod cotenant-agent-x7k2p) is not ready: containers with unready status: [node].',
      granted(onOther),
    ],
  ],
  [
    'a cluster without our CSIDriver',
    facts('waiting-for-volume', {
      agents: [ready],
      events: saying(
        waiting.events,
        'MountVolume.SetUp failed for volume "cotenant" : kubernetes.io/csi: mounter.SetUpAt failed: volume mode "Ephemeral" not supported by driver cotenant.io (no CSIDriver object)',
      ),
    }),
    [
      WAITS,
      '  2026-11-21T22:07:20Z The cluster has no CSIDriver cotenant.io: is Cotenant installed, with its volumes switched on?',
      granted(onOther),
    ],
  ],
  [
    'an event that only says that time ran out says nothing; the earlier one counts',
    facts('waiting-for-volume', {
      agents: [ready],
      events: [
        ...waiting.events,
        ...saying(
          waiting.events,
          'Unable to attach or mount volumes: unmounted volumes=[cotenant], unattached volumes=[], failed to process volumes=[]: timed out waiting for the condition',
        ).map((event) => ({ ...event, lastTimestamp: '2026-11-21T22:09:00Z' })),
      ],
    }),
    [
      WAITS,
      '  2026-11-21T22:07:20Z The agent has not announced itself to the kubelet of node node-1: it is missing there, or just starts.',
      granted(onOther),
    ],
  ],
  [
    'a pod that runs, and what holds its limit',
    facts('running', { agents: [ready], use: use('interposer') }),
    [
      'team/train runs on node node-1.',
      granted(`${onCard(4096)}; it uses 3320 MiB, and its limit is held by the interposer.`),
    ],
  ],
  [
    'a pod that runs and is held by nothing',
    facts('running', { agents: [ready], use: use('none') }),
    [
      'team/train runs on node node-1.',
      granted(`${onCard(4096)}; it uses 3320 MiB, and nothing holds it to its limit.`),
    ],
  ],
  [
    'a pod that runs on a node that is lost and cannot be looked into',
    facts('running', { node: lostNode(running.node), notes: ['Agents may not be listed.'] }),
    [
      'team/train runs on node node-1.',
      granted(`${onCard(4096)}.`),
      '  2026-11-21T22:08:00Z Node node-1 is not ready: Kubelet stopped posting node status.',
      'Agents may not be listed.',
    ],
  ],
  [
    'a container that the agent stopped: its last words give card, use and limit',
    facts('stopped', { agents: [ready] }),
    [
      'team/cheat is bound to node node-1 and waits: none of its containers runs.',
      '  Container main waits: CrashLoopBackOff: back-off 1m20s restarting failed container=main pod=cheat_team(c456a7f1-fe1d-4915-b4d4-0b0fcaa6115c).',
      `  2026-11-21T22:07:07Z Container main (restarted 4 times so far) ended with exit code 137, stopped by the agent: ${STOP}.`,
      granted(`${onCard(1024)}.`),
    ],
  ],
  [
    "the same without last words: the event gives the numbers, and an earlier pod's event is not told",
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
      'team/cheat is bound to node node-1 and waits: none of its containers runs.',
      `  2026-11-21T22:07:08Z The agent: ${STOP}.`,
      '  2026-11-21T22:07:07Z Container main ended with exit code 137, stopped by the agent.',
      granted(`${onCard(1024)}.`),
    ],
  ],
  [
    'a container that ended by itself after a warning',
    facts('stopped', {
      agents: [ready],
      pod: withState(stopped.pod, { terminated: { exitCode: 1, reason: 'Error', finishedAt: '2026-11-21T22:07:07Z' } }),
      events: stopped.events.map((event) => ({ ...event, message: WARNING })),
    }),
    [
      'team/cheat is bound to node node-1 and waits: none of its containers runs.',
      `  2026-11-21T22:07:08Z The agent: ${WARNING}.`,
      '  2026-11-21T22:07:07Z Container main ended with exit code 1.',
      granted(`${onCard(1024)}.`),
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
      granted(`${onCard(4096)}.`),
      '  main asks for 4096 MiB and 25 % of the compute of one card.',
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
      '  Its containers have ended, and so has their use of cards; the pod goes when the agent is back and gives its volume up.',
    ],
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
    'annotations that nobody of us wrote',
    facts('pending-silent', {
      pod: withMetadata(recorded('pending-silent').pod, {
        annotations: { [REQUEST_ANNOTATION]: '{}', [GRANT_ANNOTATION]: 'x' },
      }),
      schedulers: [ready],
    }),
    [
      'team/large is pending for 4 min: no node was chosen for it yet.',
      '  The scheduler cotenant-scheduler has said nothing about it in 4 min: is it running?',
      '  What it asks for cannot be read.',
    ],
  ],
  [
    'last words that would write on a terminal',
    facts('stopped', {
      agents: [ready],
      events: [],
      pod: withState(stopped.pod, {
        terminated: { exitCode: 1, reason: 'Error', message: 'one\u001b[2J\ntwo', finishedAt: '2026-11-21T22:07:07Z' },
      }),
    }),
    [
      'team/cheat is bound to node node-1 and waits: none of its containers runs.',
      '  2026-11-21T22:07:07Z Container main ended with exit code 1: one [2J two.',
      granted(`${onCard(1024)}.`),
    ],
  ],
];

for (const [name, of, lines] of CASES) {
  test(`why: ${name}`, (t) => t.deepEqual(explanationLines(explain(of, NOW)), lines));
}

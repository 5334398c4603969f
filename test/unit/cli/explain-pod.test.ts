// Why a pod has not started, or is not there at all: the sentences that follow from what is known.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { GRANT_ANNOTATION, REQUEST_ANNOTATION } from '../../../src/api/names.ts';
import { explain, explanationLines } from '../../../src/cli/cluster/explain-pod.ts';
import type { PodFacts } from '../../../src/cli/cluster/explanation.ts';
import type { Event } from '../../../src/cli/cluster/objects.ts';
import {
  type Case,
  FOLDER,
  facts,
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

const OTHER = 'GPU-51a0c07e-4a27-4551-8d21-6e1005000001';
const absent = (name: string): PodFacts => ({
  namespace: 'team',
  name,
  events: [],
  refusals: (JSON.parse(readFileSync(join(FOLDER, '1.36-refused.json'), 'utf8')) as { refusals: Event[] }).refusals,
  notes: [],
});

const saying = (events: readonly Event[], message: string): Event[] => events.map((event) => ({ ...event, message }));
const asked = '  main asks for 30720 MiB and 25 % of the compute of one GPU.';
const onOther = `1024 MiB and 25 % of the compute of GPU 1 (NVIDIA A10, ${OTHER}).`;
const WAITS = 'team/mounts is bound to node node-1 and waits: none of its containers runs.';
const policy = (name: string) =>
  `pods "${name}" is forbidden: ValidatingAdmissionPolicy 'cotenant-pods' with binding 'cotenant-pods' denied request: pods with cotenant.io resources want the webhook of Cotenant.`;

const CASES: readonly Case[] = [
  [
    'a pod that was deleted by force, and whose grant an agent still holds',
    {
      ...absent('ghost'),
      held: [
        {
          ...{ namespace: 'team', pod: 'ghost', container: 'main', gpuUuid: OTHER, node: 'node-1' },
          ...{ grantedBytes: 2 ** 30, goneSince: '2026-11-21T22:06:00.500Z' },
        },
      ],
    },
    [
      'There is no pod team/ghost.',
      `  2026-11-21T22:06:00Z The agent of node node-1 found the pod gone and holds the grant of main, 1024 MiB of ${OTHER}: the kubelet of node-1 has not unpublished its volume. It does once the containers have ended and it answers.`,
      '  No Event reports a refused pod of that name; Events are kept for an hour unless the cluster is configured otherwise.',
    ],
  ],
  [
    'a pod that a policy refused to its ReplicaSet: many events, one sentence',
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
    'a pod without refusals: owners with the same prefix do not count',
    absent('st'),
    [
      'There is no pod team/st.',
      '  No Event reports a refused pod of that name; Events are kept for an hour unless the cluster is configured otherwise.',
    ],
  ],
  [
    'a pod that is gone, and was stopped',
    { ...absent('rogue'), events: stopped.events },
    ['There is no pod team/rogue.', `  2026-11-21T22:07:08Z The agent: ${STOP}.`],
  ],
  ['a pod that asks for no share', facts('plain'), ['team/plain asks for no share of a GPU (phase Running).']],
  [
    'a pod with annotations of a dialect that is off',
    facts('plain', {
      pod: { ...recorded('plain').pod, metadata: { name: 'plain', annotations: { 'gpu-fraction': '0.5' } } },
    }),
    [
      'team/plain asks for no share of a GPU (phase Running).',
      '  It names gpu-fraction, whose dialect is not enabled in the webhook.',
    ],
  ],
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
      '  It names aliyun.com/gpu-mem, whose dialect is not enabled in the webhook.',
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
      '  It names cotenant.io/gpu, but has not passed the webhook, so it gets no share.',
    ],
  ],
  [
    'a pod that fits nowhere: what the scheduler says',
    facts('pending-unschedulable', { schedulers: [] }),
    [
      'team/def is pending for 4 min: no node was chosen for it yet.',
      "  2026-11-21T22:05:12Z The scheduler default-scheduler finds no node: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
      '  main asks for 900000 MiB and 25 % of the compute of one GPU.',
    ],
  ],
  [
    'the same where events may not be read: the condition says it, too',
    facts('pending-unschedulable', { events: [], notes: ['Events cannot be read: forbidden.'] }),
    [
      'team/def is pending for 4 min: no node was chosen for it yet.',
      "  2026-11-21T22:05:12Z The scheduler default-scheduler finds no node: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
      '  main asks for 900000 MiB and 25 % of the compute of one GPU.',
      'Events cannot be read: forbidden.',
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
      '  2026-11-21T22:05:12Z The scheduler default-scheduler finds no node: 0/1 nodes are available: 1 Insufficient cotenant.io/gpu.',
      '  A node without cotenant.io/gpu shares no GPU, accepts no more tenants, or has no running agent.',
      '  main asks for 900000 MiB and 25 % of the compute of one GPU.',
    ],
  ],
  [
    'a pod that fits nowhere, with what the nodes have free',
    facts('pending-silent', {
      schedulers: [ready],
      free: [
        { name: 'a', free: { bytes: 0, largestBytes: 0 } },
        { name: 'b', free: { bytes: 3000 * 2 ** 20, largestBytes: 2000 * 2 ** 20 } },
        { name: 'c', free: { bytes: 4000 * 2 ** 20, largestBytes: 4000 * 2 ** 20 } },
        { name: 'd', free: { bytes: 1000 * 2 ** 20, largestBytes: 1000 * 2 ** 20 } },
        { name: 'e', free: { bytes: 500 * 2 ** 20, largestBytes: 500 * 2 ** 20 } },
      ],
    }),
    [
      'team/large is pending for 4 min: no node was chosen for it yet.',
      '  The scheduler cotenant-scheduler has not reported on it for 4 min: is it running?',
      '  Largest free shares: 4000 MiB on node c, 2000 MiB on node b (of 3000 MiB free there), 1000 MiB on node d, less on 1 more.',
      asked,
    ],
  ],
  [
    'a pod that no scheduler has seen, with a missing scheduler',
    facts('pending-silent', { schedulers: [] }),
    [
      'team/large is pending for 4 min: no node was chosen for it yet.',
      '  The scheduler cotenant-scheduler has not reported on it for 4 min: is it running?',
      "  No pod of Cotenant's own scheduler is ready (none exists).",
      asked,
    ],
  ],
  [
    'the same where the scheduler is there, or may not be looked at',
    facts('pending-silent', { schedulers: [ready] }),
    [
      'team/large is pending for 4 min: no node was chosen for it yet.',
      '  The scheduler cotenant-scheduler has not reported on it for 4 min: is it running?',
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
      '  The scheduler default-scheduler has not reported on it for 4 min: is it running?',
      '  main asks for 900000 MiB and 25 % of the compute of one GPU.',
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
    'a pod that the agent refuses, with the message of the agent',
    facts('waiting-for-volume', {
      agents: [ready],
      events: saying(
        waiting.events,
        'MountVolume.SetUp failed for volume "cotenant" : rpc error: code = FailedPrecondition desc = cotenant: pod team/mounts has no grant (annotation cotenant.io/grant); was it bound by another scheduler?',
      ),
    }),
    [
      WAITS,
      "  2026-11-21T22:07:20Z The node's agent refuses its volume: pod team/mounts has no grant (annotation cotenant.io/grant); was it bound by another scheduler?",
      granted(onOther),
    ],
  ],
  [
    'a pod of an agent that is gone',
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
      '  2026-11-21T22:07:20Z The cluster has no CSIDriver cotenant.io: is Cotenant installed, with volumes enabled?',
      granted(onOther),
    ],
  ],
  [
    'an event that only reports a timeout is skipped for the earlier one',
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
    'annotations by a foreign writer',
    facts('pending-silent', {
      pod: withMetadata(recorded('pending-silent').pod, {
        annotations: { [REQUEST_ANNOTATION]: '{}', [GRANT_ANNOTATION]: 'x' },
      }),
      schedulers: [ready],
    }),
    [
      'team/large is pending for 4 min: no node was chosen for it yet.',
      '  The scheduler cotenant-scheduler has not reported on it for 4 min: is it running?',
      '  What it asks for cannot be read.',
    ],
  ],
];

for (const [name, of, lines] of CASES) {
  test(`why: ${name}`, (t) => t.deepEqual(explanationLines(explain(of, NOW)), lines));
}

// Isolation on a real Kubernetes: the Node condition that the agent writes beside the kubelet's own, pods while no
// mechanism works, the runtime's device isolation, and the driver libraries that a container has.
import { execFileSync } from 'node:child_process';
import { copyFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { BUILD, COMPILER } from '../../support/native/node.ts';
import type { Bed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { STAND_INS } from '../bed/gpus.ts';
import { NAMESPACE } from '../bed/product.ts';
import { WHOLE_VALUES } from '../bed/whole.ts';
import {
  clientOf,
  containerOf,
  eventsOf,
  namespaceOf,
  ONE_SHARE,
  outputOf,
  podOf,
  shellOf,
  untilPhase,
  untilPod,
  untilRunning,
} from '../support/pods.ts';
import { podOfRelease } from '../support/release.ts';
import { testsOnWhole } from '../support/shared.ts';

type Condition = { type: string; status: string; reason: string; message: string; lastTransitionTime: string };

const DRAWS = 'draws';
const onCluster = testsOnWhole(['l4'], {
  webhook: {
    ...WHOLE_VALUES.webhook,
    configuration: {
      ...WHOLE_VALUES.webhook.configuration,
      namespaces: { [DRAWS]: { driverCapabilities: ['compute', 'utility', 'graphics'] } },
    },
  },
});

const conditionOf = (bed: Bed) =>
  (
    JSON.parse(bed.kubectl('get', 'node', '-o', 'json').out) as { items: { status: { conditions: Condition[] } }[] }
  ).items[0]?.status.conditions.find(({ type }) => type === 'CotenantFencesHold');

const untilCondition = (bed: Bed, status: string) =>
  eventually(() => [conditionOf(bed)].find((found) => found?.status === status), `the Node's condition is ${status}`);

/** Replaces the agent's own preload object in its container, by the file's path on the node. */
async function install(bed: Bed, from: string): Promise<void> {
  const id = containerOf(await podOfRelease(bed, 'agent'), 'node')?.containerID?.replace(/^containerd:\/\//, '');
  const path = 'opt/cotenant/native/build/libcotenant.so';
  bed.namespaces.script(
    `root=$(awk -v id='${id}' 'index($2, id) && $2 ~ /rootfs$/ {print $2}' /proc/mounts)
     test -n "$root" && cp '${from}' "$root/${path}.new" && mv "$root/${path}.new" "$root/${path}"`,
  );
}

/** Claims to be the interposer and allows everything. */
function impostor(bed: Bed): string {
  const [source, object] = [join(bed.folder, 'impostor.c'), join(bed.folder, 'impostor.so')];
  writeFileSync(source, 'int cotenant_interposer = 1;\n');
  execFileSync(COMPILER, ['-shared', '-fPIC', '-nostdlib', '-o', object, source]);
  return object;
}

onCluster(
  'without working isolation the Node says so and pods wait until it is repaired',
  async (t, { bed, uuids }) => {
    await untilCondition(bed, 'True');
    const good = join(bed.folder, 'interposer.so');
    copyFileSync(join(BUILD, 'libcotenant.so'), good);
    await install(bed, impostor(bed));
    const condition = await untilCondition(bed, 'False');
    t.is(condition.reason, 'FenceFails');
    t.is(condition.message, `${uuids[0]}: a request beyond the grant succeeded (handle)`);

    bed.apply(podOf('waits', [clientOf(ONE_SHARE.own(1024), ['init'])]));
    const waiting = await untilPod(bed, 'waits', 'is refused by the scheduler', ({ status }) =>
      (status?.conditions ?? []).some(({ type, message = '' }) => type === 'PodScheduled' && /limits/.test(message)),
    );
    t.is(waiting.status?.phase, 'Pending');
    const reason = `limits are not enforced on ${uuids[0]}: a request beyond the grant succeeded (handle)`;
    // kube-scheduler sends its Event beside the condition.
    await eventually(
      async () => (await eventsOf(bed, 'waits')).some(({ message }) => message.includes(reason)) || undefined,
      `an Event says that ${reason}`,
    );

    await install(bed, good);
    await untilCondition(bed, 'True');
    await untilRunning(bed, 'waits');
  },
);

onCluster('the device node of a GPU without a grant may be created but not opened', async (t, { bed }) => {
  const script = 'mknod /tmp/gpu c 195 0 && cat /tmp/gpu; mknod /tmp/control c 195 255 && cat /tmp/control; true';
  const more = { resources: { limits: ONE_SHARE.own(256) } };
  bed.apply(podOf('makes-nodes', [shellOf(`(${script}) 2>&1`, more)], { spec: { restartPolicy: 'Never' } }));
  const pod = await untilPhase(bed, 'makes-nodes', 'Succeeded');
  t.deepEqual(outputOf(bed, pod), [
    "cat: can't open '/tmp/gpu': Operation not permitted",
    "cat: can't open '/tmp/control': Operation not permitted",
  ]);
});

onCluster('a container gets only the driver libraries that its namespace allows', async (t, { bed }) => {
  bed.apply(namespaceOf(DRAWS));
  const cuda = 'libcuda.so.1';
  const [draws, codes] = STAND_INS;
  const script = `cd /usr/lib/x86_64-linux-gnu && ls -d ${cuda} ${draws} ${codes} /dev/dri/* 2> /dev/null; true`;
  const has = async (namespace: string) => {
    const env = [{ name: 'NVIDIA_DRIVER_CAPABILITIES', value: 'all' }];
    const container = shellOf(script, { env, resources: { limits: ONE_SHARE.own(256) } });
    bed.apply(podOf('driver', [container], { namespace, spec: { restartPolicy: 'Never' } }));
    return outputOf(bed, await untilPhase(bed, 'driver', 'Succeeded', { namespace })).toSorted();
  };
  t.deepEqual(await has('default'), [cuda]);
  t.deepEqual(await has(DRAWS), ['/dev/dri/renderD128', draws, cuda]);
  const { out } = bed.kubectl('-n', NAMESPACE, 'logs', 'daemonset/cotenant-agent', '-c', 'node');
  t.notRegex(out, / warn cdi: /);
});

onCluster('the agent sets its Node conditions and keeps those of the kubelet', async (t, { bed }) => {
  const conditions = () =>
    (JSON.parse(bed.kubectl('get', 'node', '-o', 'json').out) as { items: { status: { conditions: Condition[] } }[] })
      .items[0]?.status.conditions ?? [];
  const condition = await eventually(
    () => conditions().find(({ type }) => type === 'CotenantFencesHold'),
    'the Node has the condition',
  );
  t.like(condition, { status: 'True', reason: 'FencesHold', message: 'what exceeds a grant is refused' });
  const since = () => conditions().find(({ type }) => type === 'CotenantFencesHold')?.lastTransitionTime;
  for (const type of ['Ready', 'MemoryPressure'])
    t.true(
      conditions().some((one) => one.type === type),
      type,
    );
  // A restarted agent checks again and finds no change to report.
  t.is(bed.kubectl('-n', NAMESPACE, 'rollout', 'restart', 'daemonset/cotenant-agent').code, 0);
  t.is(bed.kubectl('-n', NAMESPACE, 'rollout', 'status', 'daemonset/cotenant-agent', '--timeout=240s').code, 0);
  t.is(since(), condition.lastTransitionTime);
});

// What is stopped, refused or harmless: a container over its grant, pods that avoid the webhook and the scheduler, actions
// inside a pod.
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ActionRecord } from '../../../src/agent/enforcement/action-record.ts';
import { GRANT_ANNOTATION } from '../../../src/api/names.ts';
import { seriesOf } from '../../support/product/agent.ts';
import type { Bed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { kubernetesMinor } from '../bed/kubernetes.ts';
import { NODE_NAME } from '../bed/node.ts';
import { addClientImage } from '../bed/product.ts';
import {
  attach,
  clientOf,
  containerOf,
  eventsOf,
  getPod,
  MIB,
  ONE_SHARE,
  outputOf,
  podOf,
  RESTRICTED,
  rogueOf,
  shellOf,
  untilGone,
  untilPod,
  untilRunning,
} from '../support/pods.ts';
import { agentPage, untilNone } from '../support/release.ts';
import { cotenant, type OnCluster, TEAM } from './common.ts';

/** Exit code of a client that cannot load the driver. */
const NO_DRIVER = 3;

/** What the agent did to a pod. */
const auditOf = (bed: Bed, pod: string) =>
  readFileSync(join(bed.folder, 'host/_var_lib_cotenant/audit.log'), 'utf8')
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line) as ActionRecord)
    .filter((record) => record.pod === pod);

export function violations(onCluster: OnCluster): void {
  onCluster(
    'a container over its grant is stopped with a reason; its neighbor is undisturbed',
    async (t, { bed, uuids }) => {
      const [gpu = ''] = uuids;
      const settings = { ...TEAM, annotations: { 'cotenant.io/gpu-uuid': gpu } };
      bed.apply(
        podOf('neighbor', [clientOf(ONE_SHARE.own(2048), ['init', 'context 0', `alloc ${1024 * MIB}`])], settings),
      );
      await untilRunning(bed, 'neighbor', TEAM);
      const commands = ['init', 'context 0', `alloc ${4096 * MIB}`];
      bed.apply(podOf('rogue', [rogueOf(ONE_SHARE.own(1024), commands)], settings));
      const stopped = await untilPod(
        bed,
        'rogue',
        'was stopped and started again',
        (pod) => (containerOf(pod)?.restartCount ?? 0) > 0 && containerOf(pod)?.lastState.terminated !== undefined,
        TEAM,
      );
      const { terminated } = containerOf(stopped)?.lastState ?? {};
      t.is(terminated?.exitCode, 137);
      const sentence = new RegExp(
        `team/rogue/main .*: \\d+ MiB of 1024 MiB on ${gpu}, \\d+ MiB of it past the interposer`,
      );
      t.regex(terminated?.message ?? '', sentence);
      // What a busy machine takes for the start of the container is no part of it (integration/agent/enforcement holds
      // the time from the first byte over the grant).
      const [warned = Number.NaN, killed = Number.NaN] = ['warn', 'kill'].map(
        (action) => auditOf(bed, 'rogue').find((record) => record.action === action)?.atMs,
      );
      t.true(killed - warned <= 5000, `${killed - warned} ms from the warning to the stop`);
      const events = await eventually(async () => {
        const exceeded = (await eventsOf(bed, 'rogue', 'team')).filter(
          ({ reason }) => reason === 'GPUMemoryQuotaExceeded',
        );
        return exceeded.some(({ message }) => message.endsWith('the agent stops it')) ? exceeded : undefined;
      }, 'the Event');
      t.true(
        events.every(({ message, type }) => sentence.test(message) && type === 'Warning'),
        JSON.stringify(events),
      );
      const kills = { ...TEAM, pod: 'rogue', reason: 'bypass', action: 'kill', result: 'released' };
      const count = await eventually(async () => {
        const found = seriesOf((await agentPage(bed)) ?? '', 'cotenant_container_kills_total', kills);
        return found !== undefined && found > 0 ? found : undefined;
      }, 'the counter');
      t.true(count >= 1);
      t.regex(cotenant(bed, 'why', 'team/rogue'), sentence);
      bed.kubectl('-n', 'team', 'delete', 'pod', 'rogue', '--wait=false');
      const neighbor = await getPod(bed, 'neighbor', 'team');
      t.is(containerOf(neighbor)?.restartCount, 0);
      const talk = attach(bed, 'neighbor', 'team');
      await talk.must(`alloc ${512 * MIB}`);
      await talk.leave();
      bed.kubectl('-n', 'team', 'delete', 'pod', 'neighbor', '--wait=false');
      await Promise.all(['rogue', 'neighbor'].map((name) => untilGone(bed, name, TEAM)));
    },
  );

  onCluster('a stopped container with restartPolicy Never has failed, with the reason', async (t, { bed }) => {
    const settings = { ...TEAM, spec: { restartPolicy: 'Never' } };
    bed.apply(podOf('once', [rogueOf(ONE_SHARE.own(1024), ['init', 'context 0', `alloc ${4096 * MIB}`])], settings));
    const failed = await untilPod(bed, 'once', 'has failed', ({ status }) => status?.phase === 'Failed', TEAM);
    t.regex(containerOf(failed)?.state.terminated?.message ?? '', /past the interposer; the agent stops it$/);
    t.is(containerOf(failed)?.restartCount, 0);
    bed.kubectl('-n', 'team', 'delete', 'pod', 'once', '--wait=false');
    await untilGone(bed, 'once', TEAM);
  });

  onCluster('an image with NVIDIA_VISIBLE_DEVICES=all opens no GPU, or is reported', async (t, { bed }) => {
    const image = 'local.test/all-gpus:1';
    addClientImage(bed, image, { NVIDIA_VISIBLE_DEVICES: 'all', NVIDIA_DRIVER_CAPABILITIES: 'all' });
    const main = (more: object = {}) =>
      clientOf({}, ['init', 'count', 'context 0', `alloc ${256 * MIB}`], { image, ...more });
    bed.apply(podOf('plain', [main()], TEAM));
    // Next to a container with a grant: the webhook hides the GPUs from the others, whatever their image says.
    const share = clientOf(ONE_SHARE.own(1024), ['init'], { name: 'share' });
    bed.apply(podOf('beside', [share, main()], TEAM));
    // NVIDIA's runtime, which is not the default on a node that is set up as documented.
    bed.apply(podOf('asked', [main()], { ...TEAM, spec: { runtimeClassName: 'nvidia' } }));
    for (const name of ['plain', 'beside']) {
      const pod = await untilPod(
        bed,
        name,
        'has ended for want of a driver',
        (one) => (containerOf(one)?.lastState.terminated ?? containerOf(one)?.state.terminated) !== undefined,
        TEAM,
      );
      t.regex(outputOf(bed, pod).join('\n'), /^client: libcuda.so.1: cannot open shared object file/, name);
    }
    const labels = { namespace: 'team', pod: 'asked', container: 'main' };
    const isReported = async () =>
      (seriesOf((await agentPage(bed)) ?? '', 'cotenant_foreign_memory_used_bytes', labels) ?? 0) >= 256 * MIB ||
      undefined;
    t.true(await eventually(isReported, 'what was opened without a grant is reported'));
    bed.kubectl('-n', 'team', 'delete', 'pod', 'plain', 'beside', 'asked', '--wait=false');
    await Promise.all(['plain', 'beside', 'asked'].map((name) => untilGone(bed, name, TEAM)));
  });

  onCluster('pods that avoid the webhook or the scheduler are refused or harmless', async (t, { bed, uuids }) => {
    const [gpu = ''] = uuids;
    const create = (pod: object) => bed.kubectlWith(JSON.stringify(pod), 'create', '-f', '-');
    const limits = ONE_SHARE.own(1024);
    const refusedAs = (what: string, pod: object, why: RegExp) => {
      const { code, err } = create(pod);
      t.not(code, 0, what);
      t.regex(err, why, what);
    };
    const forged = JSON.stringify({
      version: 1,
      epoch: 1,
      containers: [
        {
          name: 'main',
          kind: 'app',
          memoryIsolation: 'off',
          gpus: [{ gpuUuid: gpu, memoryBytes: 2 ** 34, limitBytes: 2 ** 34, coresPercent: 0 }],
        },
      ],
    });
    refusedAs(
      'a forged grant',
      podOf('forged', [clientOf(limits)], { ...TEAM, annotations: { [GRANT_ANNOTATION]: forged } }),
      /cotenant\.io\/grant/,
    );
    refusedAs(
      'a node of its own choice',
      podOf('pinned', [clientOf(limits)], { ...TEAM, spec: { nodeName: NODE_NAME } }),
      /nodeName/,
    );
    refusedAs(
      'another scheduler',
      podOf('other', [clientOf(limits)], { ...TEAM, spec: { schedulerName: 'mine' } }),
      /schedulerName/,
    );
    const volume = { name: 'cotenant', csi: { driver: 'cotenant.io' } };
    refusedAs(
      'the volume without a share',
      podOf('sneaky', [shellOf('sleep 600', { securityContext: RESTRICTED })], {
        ...TEAM,
        spec: { volumes: [volume] },
      }),
      /volume/,
    );
    refusedAs(
      'a privileged container with a share',
      podOf('strong', [clientOf(limits, [], { securityContext: { privileged: true } })], { namespace: 'default' }),
      /privileged/,
    );

    // Bound without a grant: the pod waits with an Event that says why, and none of its containers starts.
    bed.kubectl('-n', 'cotenant-system', 'scale', 'deployment/cotenant-scheduler', '--replicas=0');
    await untilNone(bed, 'scheduler');
    bed.apply(podOf('stray', [clientOf(limits)], TEAM), podOf('stolen', [clientOf(limits)], TEAM));
    const binding = {
      apiVersion: 'v1',
      kind: 'Binding',
      metadata: { name: 'stolen', namespace: 'team' },
      target: { apiVersion: 'v1', kind: 'Node', name: NODE_NAME },
    };
    const bound = await bed.api.ask('POST', '/api/v1/namespaces/team/pods/stolen/binding', binding);
    t.is(bound.status, 201, JSON.stringify(bound.body));
    const why = await eventually(
      async () => (await eventsOf(bed, 'stolen', 'team')).find(({ message }) => message.includes('no GPU grant')),
      'its events say why',
    );
    t.is(why.reason, 'FailedMount');
    t.regex(
      why.message,
      /cotenant: the pod has no GPU grant \(annotation cotenant\.io\/grant\): it was not bound by a scheduler that grants/,
    );
    t.regex(cotenant(bed, 'why', 'team/stolen'), /has no GPU grant/);
    t.regex(cotenant(bed, 'why', 'team/stray'), /The scheduler cotenant-scheduler has not reported on it/);
    t.is(containerOf(await getPod(bed, 'stolen', 'team'))?.state.running, undefined);
    bed.kubectl('-n', 'cotenant-system', 'scale', 'deployment/cotenant-scheduler', '--replicas=1');
    bed.kubectl('-n', 'team', 'delete', 'pod', 'stray', 'stolen', '--wait=false');
    await Promise.all(['stray', 'stolen'].map((name) => untilGone(bed, name, TEAM)));

    // A static pod avoids admission and scheduler. It finds no GPU; with the volume the kubelet refuses it since
    // Kubernetes 1.34.
    const manifests = join(bed.folder, 'manifests');
    const env = [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }];
    const write = (name: string, spec: object) =>
      writeFileSync(
        join(manifests, `${name}.json`),
        JSON.stringify(podOf(name, [clientOf(limits, ['init'], { env })], { namespace: 'default', spec })),
      );
    write('static', {});
    write('static-volume', { volumes: [volume] });
    const checkEnd = async (name: string) => {
      const mirror = await untilPod(
        bed,
        `${name}-${NODE_NAME}`,
        'has ended for want of a driver',
        (pod) => (containerOf(pod)?.lastState.terminated ?? containerOf(pod)?.state.terminated) !== undefined,
      );
      const ended = containerOf(mirror)?.lastState.terminated ?? containerOf(mirror)?.state.terminated;
      t.is(ended?.exitCode, NO_DRIVER);
    };
    await checkEnd('static');
    if (kubernetesMinor() >= 34) {
      t.regex(readFileSync(join(bed.folder, 'kubelet.log'), 'utf8'), /static pods may not reference csidrivers/);
      t.is(await getPod(bed, `static-volume-${NODE_NAME}`), undefined);
    } else await checkEnd('static-volume');
    for (const name of readdirSync(manifests)) rmSync(join(manifests, name));
  });

  onCluster('a debug container gets no GPU; volume files cannot be changed from inside', async (t, { bed }) => {
    const root = { securityContext: { runAsUser: 0 } };
    bed.apply(podOf('inside', [clientOf(ONE_SHARE.own(1024), ['init', 'context 0'], root)]));
    const pod = await untilRunning(bed, 'inside');
    const inside = (script: string) => bed.kubectl('exec', 'inside', '--', 'sh', '-c', script);
    for (const script of [
      'echo x > /run/cotenant/limits',
      'echo x > /etc/ld.so.preload',
      'echo x >> /run/cotenant/libcotenant.so',
      'rm -f /run/cotenant/limits',
      'mv /run/cotenant/libcotenant.so /tmp',
      'mount -o remount,rw /run/cotenant',
      'umount -l /run/cotenant',
      'umount -l /etc/ld.so.preload',
    ]) {
      const { code, err } = inside(script);
      t.not(code, 0, script);
      t.regex(err, /read-only|permission|denied|not permitted|busy|must be superuser/i, script);
    }
    // The ledger is writable for the tenant, so a falsified one allows too much memory, for which the container is
    // stopped.
    t.is(inside('dd if=/dev/zero of=/run/cotenant/ledger bs=4096 count=32 conv=notrunc 2>/dev/null').code, 0);
    const talk = attach(bed, 'inside');
    await talk.ask(`alloc ${1000 * MIB}`).catch(() => {}); // it may end before it can answer
    const stopped = await untilPod(bed, 'inside', 'was stopped', (one) => (containerOf(one)?.restartCount ?? 0) > 0);
    t.regex(containerOf(stopped)?.lastState.terminated?.message ?? '', /past the interposer; the agent stops it$/);
    await talk.leave();
    const debug = bed.kubectl(
      'debug',
      'inside',
      '--image=local.test/client:1',
      '--image-pull-policy=Never',
      '--container=debug',
      '--env=NVIDIA_VISIBLE_DEVICES=all',
      '--',
      'sleep',
      '600',
    );
    t.not(debug.code, 0, 'a debug container that names GPUs');
    t.regex(debug.err + debug.out, /NVIDIA_VISIBLE_DEVICES/);
    t.truthy(pod);
    bed.kubectl('delete', 'pod', 'inside', '--wait=false');
    await untilGone(bed, 'inside');
  });
}

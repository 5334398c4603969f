import { seriesOf } from '../../support/product/agent.ts';
import { eventually } from '../bed/eventually.ts';
import { NODE_NAME } from '../bed/node.ts';
import { NVML_IMAGE } from '../bed/product.ts';
import { signalContainer } from '../support/containers.ts';
import {
  type Amounts,
  answersOf,
  attach,
  clientOf,
  containerOf,
  getPod,
  MIB,
  namespaceOf,
  ONE_SHARE,
  outputOf,
  type Pod,
  podOf,
  RESTRICTED,
  untilGone,
  untilPod,
  untilRunning,
} from '../support/pods.ts';
import { agentPage } from '../support/release.ts';
import { cotenant, gpusOf, type OnCluster, OUT_OF_MEMORY, seriesWhen, TEAM } from './common.ts';

const nvmlOf = (limits: Amounts): object => ({
  name: 'main',
  image: NVML_IMAGE,
  imagePullPolicy: 'Never',
  args: ['600'],
  resources: { limits },
  securityContext: RESTRICTED,
});

export function slices(onCluster: OnCluster): void {
  onCluster('three dialects give the same grant, in a restricted namespace', async (t, whole) => {
    const { bed } = whole;
    bed.apply(namespaceOf('team', 'restricted'));
    const asked: readonly (readonly [string, Amounts])[] = [
      ['own', ONE_SHARE.own(2048)],
      ['ack', ONE_SHARE.ack(2048)],
      ['metagpu', ONE_SHARE.metagpu(9)],
    ];
    bed.apply(...asked.map(([name, limits]) => podOf(`${name}-nvml`, [nvmlOf(limits)], TEAM)));
    bed.apply(...asked.map(([name, limits]) => podOf(name, [clientOf(limits, ['init', 'context 0', 'info'])], TEAM)));
    for (const [name] of asked) {
      const seen = await untilPod(
        bed,
        `${name}-nvml`,
        'has printed what NVML shows',
        (pod) => outputOf(bed, pod).length > 0,
        TEAM,
      );
      const gpus = JSON.parse(outputOf(bed, seen)[0] ?? '') as {
        uuid: string;
        totalBytes: number;
        usedBytes: number;
      }[];
      const [granted] = gpusOf(t, seen);
      t.deepEqual(
        gpus.map(({ uuid, totalBytes }) => ({ uuid, totalBytes })),
        [{ uuid: granted?.gpuUuid, totalBytes: granted?.limitBytes }],
        `${name}: one GPU, as large as its share`,
      );
      const ratio = (granted?.limitBytes ?? 0) / (2048 * MIB);
      t.true(ratio > 0.99 && ratio < 1.01, `${name}: ${ratio} of 2 GiB`);

      const client = await untilRunning(bed, name, TEAM);
      const [slice] = gpusOf(t, client);
      const limit = slice?.limitBytes ?? 0;
      const talk = attach(bed, name, 'team');
      const [result, free = 0, total] = await talk.ask('info');
      t.deepEqual([result, total], [0, limit], `${name}: the driver's own question is answered with the slice`);
      t.is((await talk.ask(`alloc ${limit}`))[0], OUT_OF_MEMORY, 'nothing larger than the slice');
      await talk.must(`alloc ${free - 64 * MIB}`);
      t.is((await talk.ask(`alloc ${128 * MIB}`))[0], OUT_OF_MEMORY, 'nor more than is left of it');
      await talk.leave();
      t.is(await seriesWhen(bed, 'cotenant_container_memory_limit_bytes', name, () => true), limit);
      const used = await seriesWhen(
        bed,
        'cotenant_container_memory_used_bytes',
        name,
        (bytes) => bytes > free - 64 * MIB,
      );
      t.true(used <= limit, `${name}: ${used} of ${limit}`);
      t.is(await seriesWhen(bed, 'cotenant_container_memory_bypass_bytes', name, () => true), 0);
    }
    const page = (await agentPage(bed)) ?? '';
    const own = await getPod(bed, 'own', 'team');
    t.is(
      seriesOf(page, 'cotenant_container_info', {
        ...TEAM,
        pod: 'own',
        pod_uid: own?.metadata.uid ?? '',
        fence: 'interposer',
      }),
      1,
    );
    for (const [name] of asked) bed.kubectl('-n', 'team', 'delete', 'pod', name, `${name}-nvml`, '--wait=false');
    for (const [name] of asked) await untilGone(bed, name, TEAM);
  });

  onCluster('a tenant without isolation by its pool has the whole GPU, and is counted', async (t, { bed, uuids }) => {
    const [gpu = ''] = uuids;
    const here = { key: 'kubernetes.io/hostname', operator: 'In', values: [NODE_NAME] };
    const terms = { nodeSelectorTerms: [{ matchExpressions: [here] }] };
    const spec = { affinity: { nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: terms } } };
    const annotations = { 'cotenant.io/gpu-uuid': gpu };
    bed.apply(podOf('open', [clientOf(ONE_SHARE.own(1024), ['init', 'context 0'])], { ...TEAM, annotations, spec }));
    await untilRunning(bed, 'open', TEAM);
    const talk = attach(bed, 'open', 'team');
    const [result, , total = 0] = await talk.ask('info');
    const all = seriesOf((await agentPage(bed)) ?? '', 'cotenant_device_memory_total_bytes', { gpu_uuid: gpu }) ?? 0;
    t.is(result, 0);
    // Without what the driver reserves, as CUDA reports it.
    t.true(total > 0.95 * all && total <= all, `${total} of ${all} bytes`);
    await talk.must(`alloc ${3072 * MIB}`);
    await seriesWhen(bed, 'cotenant_container_memory_used_bytes', 'open', (bytes) => bytes >= 3072 * MIB);
    const labels = { ...TEAM, pod: 'open', fence: 'none' };
    t.is(seriesOf((await agentPage(bed)) ?? '', 'cotenant_container_info', labels), 1);
    t.regex(cotenant(bed, 'inspect'), /open\/main .*not limited/);
    await talk.must(`alloc ${1024 * MIB}`);
    await talk.leave();
    await seriesWhen(bed, 'cotenant_container_memory_used_bytes', 'open', (bytes) => bytes >= 4096 * MIB);
    t.is(containerOf(await getPod(bed, 'open', 'team'))?.restartCount, 0);
    bed.kubectl('-n', 'team', 'delete', 'pod', 'open', '--wait=false');
    await untilGone(bed, 'open', TEAM);
  });

  onCluster(
    'a pod that fills its grant is refused more; its neighbor gets its whole grant',
    async (t, { bed, uuids }) => {
      const [gpu = ''] = uuids;
      const annotations = { 'cotenant.io/gpu-uuid': gpu };
      const limits = ONE_SHARE.own(4096);
      const begin = ['init', 'context 0'];
      bed.apply(podOf('greedy', [clientOf(limits, begin)], { ...TEAM, annotations }));
      bed.apply(podOf('modest', [clientOf(limits, begin)], { ...TEAM, annotations }));
      for (const name of ['greedy', 'modest']) {
        const pod = await untilRunning(bed, name, TEAM);
        t.is(gpusOf(t, pod)[0]?.gpuUuid, gpu);
      }
      const [greedy, modest] = [attach(bed, 'greedy', 'team'), attach(bed, 'modest', 'team')];
      let refused = 0;
      for (let turn = 0; turn < 40; turn += 1) {
        const [result] = await greedy.ask(`alloc ${256 * MIB}`);
        if (result !== 0) {
          t.is(result, OUT_OF_MEMORY);
          refused += 1;
        }
        // The other pod allocates in between, up to the end of its own grant.
        if (turn < 14) await modest.must(`alloc ${256 * MIB}`);
      }
      t.true(refused > 20, `${refused} refusals`);
      const [, left = 0] = await modest.ask('info');
      t.true(left < 512 * MIB, `${left} bytes left after 3.5 GiB of 4`);
      // inspect shows the last sample.
      for (const name of ['greedy', 'modest'])
        await seriesWhen(bed, 'cotenant_container_memory_used_bytes', name, (bytes) => bytes > 3072 * MIB);
      const table = cotenant(bed, 'inspect');
      t.regex(table, new RegExp(`0 +${gpu} `), 'the GPU');
      for (const name of ['greedy', 'modest'])
        t.regex(table, new RegExp(`team/${name}/main +running +4096 +\\d{4} .* interposer`), name);
      await Promise.all([greedy.leave(), modest.leave()]);
      bed.kubectl('-n', 'team', 'delete', 'pod', 'greedy', 'modest', '--wait=false');
      await Promise.all(['greedy', 'modest'].map((name) => untilGone(bed, name, TEAM)));
    },
  );

  onCluster('a pod on two GPUs that fills its grant on one keeps its grant on the other', async (t, { bed, uuids }) => {
    const [first = '', second = ''] = uuids;
    const neighbor = (name: string, gpu: string, mib: number) =>
      podOf(name, [clientOf(ONE_SHARE.own(mib), ['init', 'context 0'])], {
        ...TEAM,
        annotations: { 'cotenant.io/gpu-uuid': gpu },
      });
    bed.apply(neighbor('left', first, 3072), neighbor('right', second, 6144));
    bed.apply(
      podOf(
        'both',
        [clientOf({ 'cotenant.io/gpu': 2, 'cotenant.io/gpu-memory': '8Gi' }, ['init', 'count', 'context 0'])],
        TEAM,
      ),
    );
    const both = await untilRunning(bed, 'both', TEAM);
    await Promise.all(['left', 'right'].map((name) => untilRunning(bed, name, TEAM)));
    const gpus = gpusOf(t, both);
    t.deepEqual(gpus.map(({ gpuUuid }) => gpuUuid).toSorted(), [...uuids].toSorted());
    t.deepEqual(
      gpus.map(({ limitBytes }) => limitBytes),
      [4096 * MIB, 4096 * MIB],
    );
    await eventually(() => (answersOf(bed, both).length >= 3 ? true : undefined), 'both has begun');
    t.deepEqual(answersOf(bed, both)[1], [0, 2], 'it sees two GPUs');
    const talk = attach(bed, 'both', 'team');
    const fill = async (): Promise<number> => {
      let sum = 0;
      for (let size = 1024 * MIB; size >= 2 * MIB; ) {
        const [result] = await talk.ask(`alloc ${size}`);
        if (result === 0) sum += size;
        else size /= 2;
      }
      return sum;
    };
    await fill();
    const [, leftHere = 1] = await talk.ask('info');
    t.true(leftHere < 2 * MIB, `${leftHere} bytes left on its first GPU`);
    await talk.must('context 1');
    const [, free, total] = await talk.ask('info');
    t.is(total, 4096 * MIB);
    t.true((free ?? 0) > 3072 * MIB, `${free} bytes of the second slice are free`);
    await talk.must(`alloc ${3072 * MIB}`);
    await talk.leave();
    bed.kubectl('-n', 'team', 'delete', 'pod', 'both', 'left', 'right', '--wait=false');
    await Promise.all(['both', 'left', 'right'].map((name) => untilGone(bed, name, TEAM)));
  });

  onCluster("a whole GPU is one pod's alone: no other pod is placed on it", async (t, { bed, uuids }) => {
    bed.apply(podOf('whole', [clientOf({ 'cotenant.io/gpu': 1 }, ['init', 'context 0'])], TEAM));
    const whole = await untilRunning(bed, 'whole', TEAM);
    const [all] = gpusOf(t, whole);
    t.true((all?.limitBytes ?? 0) > 22_000 * MIB, `${all?.limitBytes} bytes: all that the GPU leaves to programs`);
    bed.apply(podOf('slice', [clientOf(ONE_SHARE.own(512), ['init'])], TEAM));
    const slice = await untilRunning(bed, 'slice', TEAM);
    t.deepEqual([all?.gpuUuid, gpusOf(t, slice)[0]?.gpuUuid].toSorted(), [...uuids].toSorted());
    bed.apply(podOf('second', [clientOf({ 'cotenant.io/gpu': 1 }, ['init'])], TEAM));
    const messageOf = ({ status }: Pod) =>
      status?.conditions?.find(({ type, message }) => type === 'PodScheduled' && message !== undefined)?.message;
    const second = await untilPod(
      bed,
      'second',
      'has a message why it waits',
      (pod) => messageOf(pod) !== undefined,
      TEAM,
    );
    t.regex(messageOf(second) ?? '', /GPU-\S+ .*cotenant\.io\/gpu-memory/);
    bed.kubectl('-n', 'team', 'delete', 'pod', 'whole', 'slice', 'second', '--wait=false');
    await Promise.all(['whole', 'slice', 'second'].map((name) => untilGone(bed, name, TEAM)));
  });

  onCluster('a restarted container finds its grant empty at once', async (t, { bed }) => {
    const commands = ['init', 'context 0', `alloc ${1536 * MIB}`];
    bed.apply(podOf('again', [clientOf(ONE_SHARE.own(2048), commands)], TEAM));
    await untilRunning(bed, 'again', TEAM);
    const first = await untilPod(bed, 'again', 'has taken its memory', (pod) => answersOf(bed, pod).length >= 3, TEAM);
    t.is(answersOf(bed, first)[2]?.[0], 0);
    signalContainer(bed, first, 'main', 'SIGKILL');
    const second = await untilPod(
      bed,
      'again',
      'has taken it again',
      (pod) => answersOf(bed, pod).length >= 6 && containerOf(pod)?.restartCount === 1,
      TEAM,
    );
    t.is(answersOf(bed, second)[5]?.[0], 0, 'memory of the first process is not charged to the second');
    bed.kubectl('-n', 'team', 'delete', 'pod', 'again', '--wait=false');
    await untilGone(bed, 'again', TEAM);
  });
}

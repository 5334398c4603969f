// A pod of each dialect from its manifest to a limited program: the names and units of its system's own documentation
// (sources beside each), in a namespace that reads that dialect alone.
import { readFileSync } from 'node:fs';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { eventually } from '../bed/eventually.ts';
import { firstProcessOf } from '../support/containers.ts';
import {
  type Amounts,
  answersOf,
  clientOf,
  MIB,
  namespaceOf,
  type PodSettings,
  podOf,
  untilGone,
  untilPod,
  untilRunning,
} from '../support/pods.ts';
import { agentPage } from '../support/release.ts';
import { gpusOf, type OnCluster, OUT_OF_MEMORY } from './common.ts';

type Dialect = (typeof FOREIGN_DIALECT_NAMES)[number];
type Documented = {
  readonly limits?: Amounts;
  readonly settings?: PodSettings;
  /** MiB of each GPU, or a part of what the GPU has, as the system's documentation counts. */
  readonly memory: readonly ({ readonly mib: number } | { readonly part: number })[];
  readonly cores: number;
  readonly env?: Readonly<Record<string, string>>;
  /** The variable that has the MiB that the container was granted. */
  readonly memoryVariable?: string;
};

const by = (schedulerName: string): PodSettings => ({ spec: { schedulerName } });

/** Amounts are small enough that all pods fit together. */
const DOCUMENTED: Readonly<Record<Dialect, Documented>> = {
  // alibabacloud.com, ACK, "Allocate computing power": GiB and percent; its plugin's variables.
  ack: {
    limits: { 'aliyun.com/gpu-mem': 2, 'aliyun.com/gpu-core.percentage': 20 },
    memory: [{ mib: 2048 }],
    cores: 20,
    env: { ALIYUN_COM_GPU_MEM_CONTAINER: '2', ALIYUN_COM_GPU_MEM_DEV: '2', ALIYUN_COM_GPU_SCHD_WEIGHT: '4' },
  },
  // github.com/cnvrg/metagpu, README: 100 metagpus are a GPU; its plugin's Allocate: MiB of the units that were allocated
  metagpu: {
    limits: { 'cnvrg.io/metagpu': 10 },
    memory: [{ part: 0.1 }],
    cores: 0,
    memoryVariable: 'METAGPU_MAX_MEM',
  },
  // github.com/Project-HAMi/HAMi, README, docs/config.md: MiB and percent of each of the GPUs.
  hami: {
    limits: { 'nvidia.com/gpu': 2, 'nvidia.com/gpumem': 1000, 'nvidia.com/gpucores': 10 },
    settings: by('hami-scheduler'),
    memory: [{ mib: 1000 }, { mib: 1000 }],
    cores: 10,
  },
  // github.com/volcano-sh/volcano, docs/user-guide/how_to_use_volcano_vgpu.md
  volcano: {
    limits: { 'volcano.sh/vgpu-number': 1, 'volcano.sh/vgpu-memory': 1024, 'volcano.sh/vgpu-cores': 10 },
    settings: by('volcano'),
    memory: [{ mib: 1024 }],
    cores: 10,
  },
  // github.com/coldzerofear/vgpu-manager, README, "Example of use"
  'vgpu-manager': {
    limits: { 'nvidia.com/vgpu-number': 1, 'nvidia.com/vgpu-cores': 10, 'nvidia.com/vgpu-memory': 1024 },
    settings: by('vgpu-scheduler'),
    memory: [{ mib: 1024 }],
    cores: 10,
  },
  // tkestack.github.io, GPU-Manager: percent, and blocks of 256 MiB
  tke: {
    limits: { 'tencent.com/vcuda-core': 10, 'tencent.com/vcuda-memory': 5 },
    memory: [{ mib: 1280 }],
    cores: 10,
  },
  // koordinator.sh, "Device Scheduling": gpu is percent of compute and of memory
  koordinator: {
    limits: { 'koordinator.sh/gpu': 10 },
    settings: by('koord-scheduler'),
    memory: [{ part: 0.1 }],
    cores: 10,
  },
  // github.com/kai-scheduler/KAI-Scheduler, docs/gpu-sharing: annotation and queue, no resource; its binder's variables
  kai: {
    settings: {
      ...by('kai-scheduler'),
      annotations: { 'gpu-fraction': '0.1' },
      labels: { 'kai.scheduler/queue': 'test' },
    },
    memory: [{ part: 0.1 }],
    cores: 0,
    env: { GPU_PORTION: '0.1', RUNAI_NUM_OF_GPUS: '0.1' },
  },
  // github.com/NTHU-LSALAB/KubeShare, README: guaranteed part, largest part, and bytes
  kubeshare: {
    settings: {
      ...by('kubeshare-scheduler'),
      labels: { 'sharedgpu/gpu_request': '0.1', 'sharedgpu/gpu_limit': '1.0', 'sharedgpu/gpu_mem': '1073741824' },
    },
    memory: [{ mib: 1024 }],
    cores: 10,
  },
  // nebuly-ai.github.io/nos, "Getting started with MPS partitioning"
  nos: { limits: { 'nvidia.com/gpu-2gb': 1 }, settings: by('nos-scheduler'), memory: [{ mib: 2048 }], cores: 0 },
  // github.com/NVIDIA/k8s-device-plugin, README, "Shared Access to GPUs": a replica of an equal part, here of eight
  nvidia: { limits: { 'nvidia.com/gpu.shared': 1 }, memory: [{ part: 0.125 }], cores: 0 },
  // support.huaweicloud.com, CCE, "Equal Distribution Scheduling on Virtual GPUs": totals over the GPUs of the label
  huawei: {
    limits: { 'volcano.sh/gpu-mem.128Mi': 16, 'volcano.sh/gpu-core.percentage': 10 },
    settings: { ...by('volcano'), labels: { 'volcano.sh/gpu-num': '2' } },
    memory: [{ mib: 1024 }, { mib: 1024 }],
    cores: 5,
  },
  // github.com/volcano-sh/volcano, design "Device API support for mGPU scheduling": MiB and percent
  volcengine: {
    limits: { 'vke.volcengine.com/mgpu-core': 10, 'vke.volcengine.com/mgpu-memory': 1024 },
    settings: by('volcano'),
    memory: [{ mib: 1024 }],
    cores: 10,
  },
  // intl.cloud.baidu.com, CCE, "Best Practice for GPU Virtualization with Optimal Isolation": totals, GiB and percent
  baidu: {
    limits: { 'baidu.com/a10_24g_cgpu': 2, 'baidu.com/a10_24g_cgpu_core': 10, 'baidu.com/a10_24g_cgpu_memory': 2 },
    settings: by('volcano'),
    memory: [{ mib: 1024 }, { mib: 1024 }],
    cores: 5,
  },
};

const spaceOf = (dialect: Dialect) => `from-${dialect}`;

/** The webhook's rules of the namespaces that these pods need. */
export const DIALECT_NAMESPACES = Object.fromEntries(
  FOREIGN_DIALECT_NAMES.map((dialect) => [spaceOf(dialect), { dialects: [dialect], nvidiaReplicas: 8 }]),
);

export function dialects(onCluster: OnCluster): void {
  onCluster('a pod of each dialect runs, limited to what its system documents', async (t, { bed }) => {
    const tooMuch = 8 * 1024 * MIB;
    const commands = ['init', 'count', 'context 0', 'info', `alloc ${256 * MIB}`, `alloc ${tooMuch}`];
    bed.apply(...FOREIGN_DIALECT_NAMES.map((dialect) => namespaceOf(spaceOf(dialect), 'restricted')));
    bed.apply(
      ...FOREIGN_DIALECT_NAMES.map((dialect) => {
        const { limits = {}, settings } = DOCUMENTED[dialect];
        return podOf('documented', [clientOf(limits, commands)], { ...settings, namespace: spaceOf(dialect) });
      }),
    );
    for (const dialect of FOREIGN_DIALECT_NAMES) {
      const { memory, cores, env = {}, memoryVariable } = DOCUMENTED[dialect];
      const where = { namespace: spaceOf(dialect) };
      await untilRunning(bed, 'documented', where);
      const answered = (pod: Parameters<typeof answersOf>[1]) => answersOf(bed, pod).length >= commands.length;
      const pod = await untilPod(bed, 'documented', 'has carried out its commands', answered, where);
      t.is(pod.spec.schedulerName, 'cotenant-scheduler', dialect);
      const granted = gpusOf(t, pod);
      t.deepEqual(
        granted.map(({ coresPercent }) => coresPercent),
        memory.map(() => cores),
        `${dialect}: compute`,
      );
      const page = (await agentPage(bed)) ?? '';
      for (const [index, asked] of memory.entries()) {
        const { gpuUuid = '', limitBytes = 0 } = granted[index] ?? {};
        const all = seriesOf(page, 'cotenant_device_memory_total_bytes', { gpu_uuid: gpuUuid }) ?? Number.NaN;
        const ratio = limitBytes / ('mib' in asked ? asked.mib * MIB : asked.part * all);
        // cGPU's rounding and what the driver keeps of the GPU are within 5 percent.
        t.true(ratio > 0.95 && ratio < 1.05, `${dialect}: ${limitBytes} bytes, ${ratio} of what is documented`);
      }
      const [, [, gpus] = [], , [, free = 0, total] = [], [allocated] = [], [refused] = []] = answersOf(bed, pod);
      t.deepEqual([gpus, total], [memory.length, granted[0]?.limitBytes], `${dialect}: what its program sees`);
      t.true(free > 256 * MIB && free < (total ?? 0), `${dialect}: ${free} bytes free`);
      t.deepEqual([allocated, refused], [0, OUT_OF_MEMORY], `${dialect}: within its grant, and beyond it`);
      const variables = readFileSync(`/proc/${firstProcessOf(bed, pod)}/environ`, 'utf8').split('\0');
      for (const [name, value] of Object.entries(env)) t.true(variables.includes(`${name}=${value}`), `${name}`);
      if (memoryVariable !== undefined)
        t.deepEqual(
          variables.filter((one) => one.startsWith(`${memoryVariable}=`)),
          [`${memoryVariable}=${Math.floor((total ?? 0) / MIB)}`],
          'what its program sees of the GPU',
        );
      const series = { ...where, pod: 'documented', container: 'main' };
      const counted = async () =>
        (seriesOf((await agentPage(bed)) ?? '', 'cotenant_container_memory_used_bytes', series) ?? 0) >= 256 * MIB ||
        undefined;
      t.true(await eventually(counted, `the agent counts what ${dialect}'s pod uses`));
    }
    const spaces = FOREIGN_DIALECT_NAMES.map(spaceOf);
    t.is(bed.kubectl('delete', 'namespace', ...spaces, '--wait=false').code, 0);
    await Promise.all(spaces.map((namespace) => untilGone(bed, 'documented', { namespace })));
  });
}

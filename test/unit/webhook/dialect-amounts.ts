// A pod in the names of each dialect, and what a ResourceQuota must count of it: amounts of the dialect's public
// examples, in our resources.
import type { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';

export type Asking = {
  readonly limits?: Readonly<Record<string, string>>;
  readonly metadata?: { readonly annotations?: object; readonly labels?: object };
  /** GPUs, MiB and percent; 0: it counts none, because the amount depends on the GPU. */
  readonly counts: readonly [gpu: number, mebibytes: number, cores: number];
};

export const DIALECT_AMOUNTS: Readonly<Record<(typeof FOREIGN_DIALECT_NAMES)[number], Asking>> = {
  ack: { limits: { 'aliyun.com/gpu-mem': '3', 'aliyun.com/gpu-core.percentage': '30' }, counts: [1, 3072, 30] },
  metagpu: { limits: { 'cnvrg.io/metagpu': '150' }, counts: [2, 0, 0] },
  hami: {
    limits: { 'nvidia.com/gpu': '2', 'nvidia.com/gpumem': '1536', 'nvidia.com/gpucores': '30' },
    counts: [2, 3072, 60],
  },
  volcano: { limits: { 'volcano.sh/vgpu-number': '1', 'volcano.sh/vgpu-memory': '2048' }, counts: [1, 2048, 0] },
  'vgpu-manager': {
    limits: { 'nvidia.com/vgpu-number': '1', 'nvidia.com/vgpu-memory': '2048', 'nvidia.com/vgpu-cores': '10' },
    counts: [1, 2048, 10],
  },
  tke: { limits: { 'tencent.com/vcuda-core': '30', 'tencent.com/vcuda-memory': '8' }, counts: [1, 2048, 30] },
  koordinator: {
    limits: { 'koordinator.sh/gpu-core': '50', 'koordinator.sh/gpu-memory': '2Gi' },
    counts: [1, 2048, 50],
  },
  kai: { metadata: { annotations: { 'gpu-memory': '2048' } }, counts: [1, 2048, 0] },
  kubeshare: {
    metadata: {
      labels: { 'sharedgpu/gpu_request': '0.5', 'sharedgpu/gpu_limit': '1.0', 'sharedgpu/gpu_mem': '2147483648' },
    },
    counts: [1, 2048, 50],
  },
  nos: { limits: { 'nvidia.com/gpu-2gb': '1' }, counts: [1, 2048, 0] },
  nvidia: { limits: { 'nvidia.com/mig-1g.5gb': '1' }, counts: [1, 5000, 14] },
  huawei: {
    limits: { 'volcano.sh/gpu-mem.128Mi': '64', 'volcano.sh/gpu-core.percentage': '10' },
    metadata: { labels: { 'volcano.sh/gpu-num': '2' } },
    counts: [2, 8192, 10],
  },
  volcengine: {
    limits: { 'vke.volcengine.com/mgpu-core': '30', 'vke.volcengine.com/mgpu-memory': '4096' },
    metadata: { annotations: { 'vke.volcengine.com/container-multiple-gpu': '2' } },
    counts: [2, 4096, 30],
  },
  baidu: {
    limits: {
      'baidu.com/a10_24g_cgpu': '2',
      'baidu.com/a10_24g_cgpu_core': '50',
      'baidu.com/a10_24g_cgpu_memory': '10',
    },
    counts: [2, 10240, 50],
  },
};

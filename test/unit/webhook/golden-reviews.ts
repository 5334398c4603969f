// The reviews whose whole answers are golden files.
import { readdirSync } from 'node:fs';
import { basename } from 'node:path';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import type { JsonObject } from '../../../src/common/json.ts';
import { configured, creation, FIXTURES, fixture, sharePod } from './reviews.ts';

/** Dialects that another than the usual configuration switches on, by the names of their reviews. */
export const switchedOn = (name: string) => {
  const dialect = FOREIGN_DIALECT_NAMES.slice(2).find((own) => name.startsWith(own));
  return configured(dialect === undefined ? {} : { rules: { dialects: [dialect] } });
};
const limited = (name: string, limits: object) => ({ name, resources: { limits } });

export const REVIEWS: Record<string, JsonObject> = {
  'one-container': creation(sharePod()),
  'two-containers': creation(
    sharePod({}, { containers: [limited('a', { 'cotenant.io/gpu-memory': '2Gi' }), { name: 'b' }] }),
  ),
  'whole-gpus': creation(sharePod(limited('main', { 'cotenant.io/gpu': 2 }))),
  'ack-one-gpu': creation(sharePod(limited('main', { 'aliyun.com/gpu-mem': 3, 'aliyun.com/gpu-core.percentage': 30 }))),
  'hami-half-a-gpu': creation(
    sharePod({
      resources: { limits: { 'nvidia.com/gpu': 1, 'nvidia.com/gpumem': 10240, 'nvidia.com/gpucores': 50 } },
    }),
  ),
  'volcano-two-gpus': creation(
    sharePod(limited('main', { 'volcano.sh/vgpu-number': 2, 'volcano.sh/vgpu-memory': 4096 }), {
      schedulerName: 'volcano',
    }),
  ),
  'vgpu-manager-one-gpu': creation(
    sharePod(limited('main', { 'nvidia.com/vgpu-number': 1, 'nvidia.com/vgpu-memory': 2048 })),
  ),
  'tke-a-third': creation(sharePod(limited('main', { 'tencent.com/vcuda-core': 30, 'tencent.com/vcuda-memory': 20 }))),
  'tke-qgpu-online': creation(
    sharePod(limited('main', { 'tke.cloud.tencent.com/qgpu-memory': 5 }), undefined, {
      annotations: { 'tke.cloud.tencent.com/app-class': 'online' },
    }),
  ),
  'huawei-two-gpus': creation(
    sharePod(
      limited('main', { 'volcano.sh/gpu-mem.128Mi': 64, 'volcano.sh/gpu-core.percentage': 10 }),
      { schedulerName: 'volcano' },
      { labels: { 'volcano.sh/gpu-num': '2' } },
    ),
  ),
  'volcengine-two-gpus': creation(
    sharePod(
      limited('main', { 'vke.volcengine.com/mgpu-core': 30, 'vke.volcengine.com/mgpu-memory': 4096 }),
      undefined,
      {
        annotations: { 'vke.volcengine.com/container-multiple-gpu': '2' },
      },
    ),
  ),
  'baidu-two-gpus': creation(
    sharePod(
      limited('main', {
        'baidu.com/a10_24g_cgpu': 2,
        'baidu.com/a10_24g_cgpu_core': 50,
        'baidu.com/a10_24g_cgpu_memory': 10,
      }),
      { schedulerName: 'volcano' },
    ),
  ),
  'koordinator-half-of-two': creation(
    sharePod(
      limited('main', {
        'koordinator.sh/gpu.shared': 2,
        'koordinator.sh/gpu-core': 100,
        'koordinator.sh/gpu-memory-ratio': 100,
      }),
      { schedulerName: 'koord-scheduler' },
    ),
  ),
  'kai-second-container': creation(
    sharePod(
      {},
      { containers: [{ name: 'a' }, { name: 'b' }], schedulerName: 'kai-scheduler' },
      {
        annotations: { 'gpu-fraction': '0.25', 'gpu-fraction-container-name': 'b' },
      },
    ),
  ),
  'kai-two-by-name': creation(
    sharePod(
      {},
      { containers: [{ name: 'a' }, { name: 'b' }] },
      {
        annotations: {
          'nvidia.com/container.a.gpu-memory.request': '8Gi',
          'nvidia.com/container.b.gpu-memory.limit': '2Gi',
          'nvidia.com/container.a.gpu-compute.mode': 'time-slicing',
        },
      },
    ),
  ),
  'kubeshare-half-a-gpu': creation(
    sharePod(
      {},
      { containers: [{ name: 'main' }], schedulerName: 'kubeshare-scheduler' },
      {
        labels: { 'sharedgpu/gpu_request': '0.5', 'sharedgpu/gpu_limit': '1.0', 'sharedgpu/gpu_mem': '1073741824' },
      },
    ),
  ),
  'nos-ten-gigabytes': creation(sharePod(limited('main', { 'nvidia.com/gpu-10gb': 1 }), { hostIPC: true })),
  'nvidia-whole-gpus': creation(sharePod(limited('main', { 'nvidia.com/gpu': 2 }))),
  'nvidia-mig': creation(sharePod(limited('main', { 'nvidia.com/mig-3g.20gb': 1 }))),
  'metagpu-gpu-and-a-half': creation(sharePod(limited('main', { 'cnvrg.io/metagpu': '150' }))),
};
for (const file of readdirSync(FIXTURES)) REVIEWS[basename(file, '.json')] = fixture(basename(file, '.json'));

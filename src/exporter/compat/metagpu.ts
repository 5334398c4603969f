// The names of MetaGPU's exporter: a GPU is 100 shares, memory is in MiB. Command lines and users are not shown ("-").
import { sumTold } from '../../agent/sampling/sample.ts';
import { type Family, metricSet } from '../format/family.ts';
import { type CompatContext, deviceOf, type Holder, holdersOf, largestProcesses, toMib } from './shared.ts';

const SHARES = 100;
const RESOURCE = 'cnvrg.io/metagpu';
const DEVICE = ['device_uuid', 'device_index', 'resource_name', 'node_name'];
const POD = ['pod_name', 'pod_namespace', 'resource_name', 'node_name'];
const PROCESS = ['uuid', 'pid', 'cmdline', 'user', ...POD];

const podKey = ({ namespace, pod, gpuUuid }: Holder): string => JSON.stringify([namespace, pod, gpuUuid]);

export const metagpu = ({ nodeName }: CompatContext): Family => ({
  name: 'compat-metagpu',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const device = (name: string, help: string) => set.gauge(`metagpu_device_${name}`, help, DEVICE);
    const process = (name: string, help: string) => set.gauge(`metagpu_process_${name}`, help, PROCESS);
    const shares = device('shares', 'Shares of the GPU.');
    const total = device('memory_total', 'Memory of the GPU, in MiB.');
    const free = device('memory_free', 'Free memory of the GPU, in MiB.');
    const used = device('memory_used', 'Used memory of the GPU, in MiB.');
    const shareSize = device('memory_share_size', 'Memory of one share, in MiB.');
    const requests = set.gauge('metagpu_process_metagpu_requests', 'Shares of GPUs that the pod has.', POD);
    const utilization = process('absolute_gpu_utilization', 'Compute of the GPU that the process used, in percent.');
    const memory = process('memory_usage', 'Memory of the process, in MiB.');
    const mostUtilization = process(
      'max_allowed_metagpu_gpu_utilization',
      'Compute that its container was given, in percent.',
    );
    const ofUtilization = process(
      'metagpu_relative_gpu_utilization',
      'Compute used of what its container was given, in percent.',
    );
    const mostMemory = process('max_allowed_metagpu_memory', 'Memory that its container was given, in MiB.');
    const ofMemory = process(
      'metagpu_relative_memory_utilization',
      'Memory used of what its container was given, in percent.',
    );
    return {
      clear: set.clear,
      fill(snapshot) {
        const fixed = { resource_name: RESOURCE, node_name: nodeName };
        for (const { gpu } of snapshot.devices) {
          const labels = { device_uuid: gpu.uuid, device_index: String(gpu.index), ...fixed };
          shares(labels, SHARES);
          total(labels, toMib(gpu.totalBytes));
          free(labels, toMib(gpu.freeBytes));
          used(labels, toMib(gpu.usedBytes));
          shareSize(labels, gpu.totalBytes === undefined ? undefined : gpu.totalBytes / 2 ** 20 / SHARES);
        }
        const holders = holdersOf(snapshot);
        const units = new Map<string, { pod: string; namespace: string; shares: number }>();
        for (const { namespace, pod, gpuUuid, grant } of holders) {
          const gpu = deviceOf(snapshot, gpuUuid)?.gpu;
          if (gpu?.totalBytes === undefined) continue;
          const key = JSON.stringify([namespace, pod]);
          const own = grant ? Math.ceil((SHARES * grant.limitBytes) / gpu.totalBytes) : SHARES;
          units.set(key, { pod, namespace, shares: (units.get(key)?.shares ?? 0) + own });
        }
        for (const { pod, namespace, shares: sum } of units.values())
          requests({ pod_name: pod, pod_namespace: namespace, ...fixed }, sum);
        const given = ({ gpuUuid, grant }: Holder) => ({
          percent: grant && grant.coresPercent > 0 ? grant.coresPercent : 100,
          bytes: grant?.limitBytes ?? deviceOf(snapshot, gpuUuid)?.gpu.totalBytes,
        });
        const idle = holders.filter(({ processes }) => processes.length === 0);
        const shown = [
          ...largestProcesses(holders, guard).map(({ holder, one }) => ({
            ...one,
            ofPod: holder,
            pid: String(one.pid),
            most: given(holder),
          })),
          // They have no pid to be told apart by, so those of one pod are one.
          ...[...Map.groupBy(idle, podKey).values()].flatMap(([ofPod, ...more]) => {
            if (ofPod === undefined) return [];
            const all = [ofPod, ...more];
            const most = all.map(given);
            return {
              ofPod,
              pid: '-',
              usedBytes: sumTold(all.map(({ usedBytes }) => usedBytes)),
              smPercent: sumTold(all.map(({ smPercent }) => smPercent)),
              most: {
                percent: Math.min(
                  100,
                  most.reduce((sum, { percent }) => sum + percent, 0),
                ),
                bytes: sumTold(most.map(({ bytes }) => bytes)),
              },
            };
          }),
        ];
        for (const { ofPod, pid, usedBytes, smPercent, most } of shown) {
          const { namespace, pod, gpuUuid } = ofPod;
          const labels = {
            uuid: gpuUuid,
            pid,
            cmdline: '-',
            user: '-',
            pod_name: pod,
            pod_namespace: namespace,
            ...fixed,
          };
          utilization(labels, smPercent);
          memory(labels, toMib(usedBytes));
          mostUtilization(labels, most.percent);
          ofUtilization(labels, smPercent === undefined ? undefined : (100 * smPercent) / most.percent);
          mostMemory(labels, toMib(most.bytes));
          if (most.bytes !== undefined && usedBytes !== undefined) ofMemory(labels, (100 * usedBytes) / most.bytes);
        }
      },
    };
  },
});

// The names of MetaGPU's exporter: a card is 100 shares, memory is in MiB. Command lines and users are not shown ("-").
import { type Family, metricSet } from '../family.ts';
import { type CompatContext, deviceOf, holdersOf, largestProcesses, toMib } from './set.ts';

const SHARES = 100;
const RESOURCE = 'cnvrg.io/metagpu';
const DEVICE = ['device_uuid', 'device_index', 'resource_name', 'node_name'];
const POD = ['pod_name', 'pod_namespace', 'resource_name', 'node_name'];
const PROCESS = ['uuid', 'pid', 'cmdline', 'user', ...POD];

export const metagpu = ({ nodeName }: CompatContext): Family => ({
  name: 'compat-metagpu',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const device = (name: string, help: string) => set.gauge(`metagpu_device_${name}`, help, DEVICE);
    const process = (name: string, help: string) => set.gauge(`metagpu_process_${name}`, help, PROCESS);
    const shares = device('shares', 'Shares of the card.');
    const total = device('memory_total', 'Memory of the card, in MiB.');
    const free = device('memory_free', 'Free memory of the card, in MiB.');
    const used = device('memory_used', 'Used memory of the card, in MiB.');
    const shareSize = device('memory_share_size', 'Memory of one share, in MiB.');
    const requests = set.gauge('metagpu_process_metagpu_requests', 'Shares of cards that the pod has.', POD);
    const utilization = process('absolute_gpu_utilization', 'Compute of the card that the process used, in percent.');
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
      fill(view) {
        const fixed = { resource_name: RESOURCE, node_name: nodeName };
        for (const { card } of view.devices) {
          const labels = { device_uuid: card.uuid, device_index: String(card.index), ...fixed };
          shares(labels, SHARES);
          total(labels, toMib(card.totalBytes));
          free(labels, toMib(card.freeBytes));
          used(labels, toMib(card.usedBytes));
          shareSize(labels, card.totalBytes === undefined ? undefined : card.totalBytes / 2 ** 20 / SHARES);
        }
        const holders = holdersOf(view);
        const units = new Map<string, { pod: string; namespace: string; shares: number }>();
        for (const { namespace, pod, gpuUuid, grant } of holders) {
          const card = deviceOf(view, gpuUuid)?.card;
          if (card?.totalBytes === undefined) continue;
          const key = JSON.stringify([namespace, pod]);
          const own = grant ? Math.ceil((SHARES * grant.limitBytes) / card.totalBytes) : SHARES;
          units.set(key, { pod, namespace, shares: (units.get(key)?.shares ?? 0) + own });
        }
        for (const { pod, namespace, shares: sum } of units.values())
          requests({ pod_name: pod, pod_namespace: namespace, ...fixed }, sum);
        const idle = holders.filter(({ processes }) => processes.length === 0);
        const shown = [
          ...largestProcesses(holders).map(({ holder, one }) => ({ holder, ...one, pid: String(one.pid) })),
          ...idle.map((holder) => ({ holder, pid: '-', usedBytes: holder.usedBytes, smPercent: holder.smPercent })),
        ];
        for (const { holder, pid, usedBytes, smPercent } of shown) {
          const { namespace, pod, gpuUuid, grant } = holder;
          const labels = {
            uuid: gpuUuid,
            pid,
            cmdline: '-',
            user: '-',
            pod_name: pod,
            pod_namespace: namespace,
            ...fixed,
          };
          const most = grant && grant.coresPercent > 0 ? grant.coresPercent : 100;
          const mostBytes = grant?.limitBytes ?? deviceOf(view, gpuUuid)?.card.totalBytes;
          utilization(labels, smPercent);
          memory(labels, toMib(usedBytes));
          mostUtilization(labels, most);
          ofUtilization(labels, smPercent === undefined ? undefined : (100 * smPercent) / most);
          mostMemory(labels, toMib(mostBytes));
          if (mostBytes !== undefined && usedBytes !== undefined) ofMemory(labels, (100 * usedBytes) / mostBytes);
        }
      },
    };
  },
});

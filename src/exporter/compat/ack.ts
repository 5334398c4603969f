// The names of ACK's exporter for shared GPUs. Its families for GPUs as such are dcgm-exporter's.

import type { Snapshot, SnapshotDevice } from '../../agent/snapshot/snapshot.ts';
import { type Family, metricSet } from '../format/family.ts';
import {
  type CompatContext,
  createRates,
  deviceOf,
  type Holder,
  holdersOf,
  largestProcesses,
  plainName,
  toMib,
} from './shared.ts';

const GPU = ['UUID', 'device', 'gpu', 'modelName', 'NodeName'];
const CONTAINER = [...GPU, 'AllocateMode', 'NamespaceName', 'PodName', 'ContainerName'];
const PROCESS = [...CONTAINER, 'ProcessId', 'ProcessName', 'ProcessType'];
const MODES: Readonly<Record<SnapshotDevice['mode'], number>> = { none: 0, exclusive: 1, mig: 1, shared: 2 };

/** As nvidia-smi says it: compute, graphics, or both; a client of MPS. */
const typeOf = (types: number): string =>
  [...(types & 4 ? ['M'] : []), ...(types & 2 && !(types & 5) ? [] : ['C']), ...(types & 2 ? ['G'] : [])].join('+');

/** What the engines did for a container on a GPU so far; of a process only where it is the container's only one there. */
function enginesOf(snapshot: Snapshot, { grant, ...holder }: Holder) {
  if (grant)
    return snapshot.containerTotals.find((one) => one.grantId === grant.grantId && one.gpuUuid === grant.gpuUuid);
  const { namespace, pod, container, gpuUuid } = holder;
  const isIts = (one: Pick<Holder, 'namespace' | 'pod' | 'container' | 'gpuUuid'>) =>
    one.namespace === namespace && one.pod === pod && one.container === container && one.gpuUuid === gpuUuid;
  return snapshot.assignedTotals.find(isIts);
}

const isOf = (
  a: { gpuUuid: string; containerId: string; podUid: string },
  b: { gpuUuid: string; containerId: string; podUid: string },
) => a.gpuUuid === b.gpuUuid && a.containerId === b.containerId && a.podUid === b.podUid;

export const ack = ({ nodeName }: CompatContext): Family => ({
  name: 'compat-ack',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const gauge = (name: string, help: string, labels: readonly string[]) =>
      set.gauge(`DCGM_CUSTOM_${name}`, help, labels);
    const mode = gauge('ALLOCATE_MODE', 'How the GPU is given out: 0 not, 1 whole, 2 shared.', GPU);
    const total = gauge('DEV_FB_TOTAL', 'Memory of the GPU, in MiB.', [...GPU, 'DriverVersion']);
    const allocated = gauge('DEV_FB_ALLOCATED', 'Part of it that is given out, 0 to 1.', [...GPU, 'DriverVersion']);
    const containerMemory = gauge('CONTAINER_MEM_ALLOCATED', 'Memory that the container was given, in MiB.', CONTAINER);
    const containerCompute = gauge(
      'CONTAINER_CP_ALLOCATED',
      'Compute that the container was given, 0 to 1.',
      CONTAINER,
    );
    const sm = gauge('PROCESS_SM_UTIL', 'Compute that the process used, in percent.', PROCESS);
    const memory = gauge('PROCESS_MEM_USED', 'Memory of the process, in MiB.', PROCESS);
    const alone = 'where it is the only one of its container on the GPU, over ten seconds or more, in percent.';
    const copies = gauge('PROCESS_MEM_COPY_UTIL', `Memory bus that the process used, ${alone}`, PROCESS);
    const encoder = gauge('PROCESS_ENCODE_UTIL', `Video encoder that the process used, ${alone}`, PROCESS);
    const decoder = gauge('PROCESS_DECODE_UTIL', `Video decoder that the process used, ${alone}`, PROCESS);
    const illegal = gauge(
      'ILLEGAL_PROCESS_MEM_USED',
      'Memory of a container that was given no GPU, in MiB.',
      CONTAINER,
    );
    const notGiven = 'of a container that was given no GPU, over ten seconds or more, in percent.';
    const illegalEngines = [
      ['smSeconds', gauge('ILLEGAL_PROCESS_SM_UTIL', `Compute ${notGiven}`, CONTAINER)],
      ['memoryBusySeconds', gauge('ILLEGAL_PROCESS_MEM_COPY_UTIL', `Memory bus ${notGiven}`, CONTAINER)],
      ['encoderSeconds', gauge('ILLEGAL_PROCESS_ENCODE_UTIL', `Video encoder ${notGiven}`, CONTAINER)],
      ['decoderSeconds', gauge('ILLEGAL_PROCESS_DECODE_UTIL', `Video decoder ${notGiven}`, CONTAINER)],
    ] as const;
    const ratesAt = createRates();
    return {
      clear: set.clear,
      fill(snapshot) {
        const rate = ratesAt(snapshot.atMs);
        const percent = (key: readonly string[], seconds: number | undefined) => {
          const share = rate(JSON.stringify(key), seconds);
          return share === undefined ? undefined : Math.min(100, 100 * share);
        };
        const gpuLabels = ({ gpu }: SnapshotDevice) => ({
          UUID: gpu.uuid,
          device: `nvidia${gpu.minor ?? gpu.index}`,
          gpu: String(gpu.index),
          modelName: gpu.name,
          NodeName: nodeName,
        });
        const labelsOf = (of: Pick<Holder, 'gpuUuid' | 'namespace' | 'pod' | 'container'>) => {
          const device = deviceOf(snapshot, of.gpuUuid);
          return (
            device && {
              ...gpuLabels(device),
              AllocateMode: device.mode,
              NamespaceName: of.namespace,
              PodName: of.pod,
              ContainerName: of.container,
            }
          );
        };
        for (const device of snapshot.devices) {
          const { gpu, grantedBytes } = device;
          const labels = { ...gpuLabels(device), DriverVersion: snapshot.driverVersion };
          mode(gpuLabels(device), MODES[device.mode]);
          total(labels, toMib(gpu.totalBytes));
          if (gpu.totalBytes)
            allocated(labels, device.mode === 'exclusive' ? 1 : Math.min(1, grantedBytes / gpu.totalBytes));
        }
        const holders = holdersOf(snapshot);
        for (const holder of holders) {
          const labels = labelsOf(holder);
          if (!labels || !holder.grant) continue;
          containerMemory(labels, toMib(holder.grant.limitBytes));
          if (holder.grant.coresPercent > 0) containerCompute(labels, holder.grant.coresPercent / 100);
        }
        for (const { holder, one } of largestProcesses(holders, guard)) {
          const labels = labelsOf(holder);
          if (!labels) continue;
          const process = {
            ...labels,
            ProcessId: String(one.pid),
            ProcessName: plainName(one.command),
            ProcessType: typeOf(one.types),
          };
          sm(process, one.smPercent);
          memory(process, toMib(one.usedBytes));
          if (holder.processes.length > 1) continue;
          const its = enginesOf(snapshot, holder);
          const engines = its?.computeTold ? its : undefined;
          const key = (engine: string) => [holder.gpuUuid, String(one.pid), engine];
          copies(process, percent(key('memory'), engines?.memoryBusySeconds));
          encoder(process, percent(key('encoder'), engines?.encoderSeconds));
          decoder(process, percent(key('decoder'), engines?.decoderSeconds));
        }
        for (const use of snapshot.foreign) {
          const labels = labelsOf({ ...use, container: use.container || use.containerId.slice(0, 12) });
          if (labels) illegal(labels, toMib(use.usedBytes));
        }
        for (const total of snapshot.foreignTotals) {
          const labels = labelsOf({ ...total, container: total.container || total.containerId.slice(0, 12) });
          const isHere = snapshot.foreign.some((use) => isOf(use, total));
          for (const [engine, tell] of illegalEngines) {
            const key = [total.gpuUuid, total.containerId, total.podUid, engine];
            const share = percent(key, total.computeTold ? total[engine] : undefined);
            if (labels && isHere) tell(labels, share);
          }
        }
      },
    };
  },
});

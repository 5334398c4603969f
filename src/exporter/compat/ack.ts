// The metrics of ACK's exporter for shared GPUs. Its metrics for GPUs as such are dcgm-exporter's.

import type { Snapshot, SnapshotDevice } from '../../agent/snapshot/snapshot.ts';
import { defineCollector, gauge, type Labels, type Series } from '../collectors/collector.ts';
import { safeProcessName } from '../collectors/process.ts';
import {
  type CompatContext,
  createRates,
  deviceOf,
  type Holder,
  holdersOf,
  largestProcesses,
  toMib,
} from './shared.ts';

const GPU = ['UUID', 'device', 'gpu', 'modelName', 'NodeName'];
const CONTAINER = [...GPU, 'AllocateMode', 'NamespaceName', 'PodName', 'ContainerName'];
const PROCESS = [...CONTAINER, 'ProcessId', 'ProcessName', 'ProcessType'];
const MODES: Readonly<Record<SnapshotDevice['mode'], number>> = { none: 0, exclusive: 1, mig: 1, shared: 2 };

/** As in nvidia-smi: C compute, G graphics, M client of MPS. */
const typeOf = (types: number): string =>
  [...(types & 4 ? ['M'] : []), ...(types & 2 && !(types & 5) ? [] : ['C']), ...(types & 2 ? ['G'] : [])].join('+');

/** Engine time of a container on a GPU. It is that of a process only where this is the container's only one there. */
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

const notAllocated = (what: string) =>
  gauge(`${what} of a container that was allocated no GPU, over ten seconds or more, in percent.`, CONTAINER);
const ofProcess = (what: string) =>
  gauge(
    `${what} that the process used, if it is the only one of its container on the GPU, over ten seconds or more, in percent.`,
    PROCESS,
  );

const METRICS = {
  DCGM_CUSTOM_ALLOCATE_MODE: gauge('How the GPU is allocated: 0 not, 1 whole, 2 shared.', GPU),
  DCGM_CUSTOM_DEV_FB_TOTAL: gauge('Memory of the GPU, in MiB.', [...GPU, 'DriverVersion']),
  DCGM_CUSTOM_DEV_FB_ALLOCATED: gauge('Fraction of the memory that is allocated, 0 to 1.', [...GPU, 'DriverVersion']),
  DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED: gauge('Memory allocated to the container, in MiB.', CONTAINER),
  DCGM_CUSTOM_CONTAINER_CP_ALLOCATED: gauge('Compute allocated to the container, 0 to 1.', CONTAINER),
  DCGM_CUSTOM_PROCESS_SM_UTIL: gauge('Compute that the process used, in percent.', PROCESS),
  DCGM_CUSTOM_PROCESS_MEM_USED: gauge('Memory of the process, in MiB.', PROCESS),
  DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL: ofProcess('Memory bus'),
  DCGM_CUSTOM_PROCESS_ENCODE_UTIL: ofProcess('Video encoder'),
  DCGM_CUSTOM_PROCESS_DECODE_UTIL: ofProcess('Video decoder'),
  DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_USED: gauge('Memory of a container that was allocated no GPU, in MiB.', CONTAINER),
  DCGM_CUSTOM_ILLEGAL_PROCESS_SM_UTIL: notAllocated('Compute'),
  DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_COPY_UTIL: notAllocated('Memory bus'),
  DCGM_CUSTOM_ILLEGAL_PROCESS_ENCODE_UTIL: notAllocated('Video encoder'),
  DCGM_CUSTOM_ILLEGAL_PROCESS_DECODE_UTIL: notAllocated('Video decoder'),
} as const;

const ILLEGAL_ENGINES = [
  ['smSeconds', 'DCGM_CUSTOM_ILLEGAL_PROCESS_SM_UTIL'],
  ['memoryBusySeconds', 'DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_COPY_UTIL'],
  ['encoderSeconds', 'DCGM_CUSTOM_ILLEGAL_PROCESS_ENCODE_UTIL'],
  ['decoderSeconds', 'DCGM_CUSTOM_ILLEGAL_PROCESS_DECODE_UTIL'],
] as const;

type Put = Series<keyof typeof METRICS>['set'];
/** Percentage of the time that a counter of seconds grew. */
type Percent = (key: readonly string[], seconds: number | undefined) => number | undefined;

const gpuLabels = ({ gpu }: SnapshotDevice, nodeName: string): Labels => ({
  UUID: gpu.uuid,
  device: `nvidia${gpu.minor ?? gpu.index}`,
  gpu: String(gpu.index),
  modelName: gpu.name,
  NodeName: nodeName,
});

/** Undefined: its GPU is gone. */
type LabelsOf = (of: Pick<Holder, 'gpuUuid' | 'namespace' | 'pod' | 'container'>) => Labels | undefined;

function setGpu(device: SnapshotDevice, labels: Labels, driverVersion: string, set: Put): void {
  const { gpu, grantedBytes, mode } = device;
  const withDriver = { ...labels, DriverVersion: driverVersion };
  set('DCGM_CUSTOM_ALLOCATE_MODE', labels, MODES[mode]);
  set('DCGM_CUSTOM_DEV_FB_TOTAL', withDriver, toMib(gpu.totalBytes));
  if (!gpu.totalBytes) return;
  const ratio = mode === 'exclusive' ? 1 : Math.min(1, grantedBytes / gpu.totalBytes);
  set('DCGM_CUSTOM_DEV_FB_ALLOCATED', withDriver, ratio);
}

function setProcess(
  snapshot: Snapshot,
  { holder, one, container }: ReturnType<typeof largestProcesses>[number] & { readonly container: Labels },
  percent: Percent,
  set: Put,
): void {
  const { pid, command, types, smPercent, usedBytes } = one;
  const labels = {
    ...container,
    ProcessId: String(pid),
    ProcessName: safeProcessName(command),
    ProcessType: typeOf(types),
  };
  set('DCGM_CUSTOM_PROCESS_SM_UTIL', labels, smPercent);
  set('DCGM_CUSTOM_PROCESS_MEM_USED', labels, toMib(usedBytes));
  if (holder.processes.length > 1) return;
  const totals = enginesOf(snapshot, holder);
  const engines = totals?.utilizationKnown ? totals : undefined;
  const key = (engine: string) => [holder.gpuUuid, String(pid), engine];
  set('DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL', labels, percent(key('memory'), engines?.memoryBusySeconds));
  set('DCGM_CUSTOM_PROCESS_ENCODE_UTIL', labels, percent(key('encoder'), engines?.encoderSeconds));
  set('DCGM_CUSTOM_PROCESS_DECODE_UTIL', labels, percent(key('decoder'), engines?.decoderSeconds));
}

const nameOf = ({ container, containerId }: { container: string; containerId: string }): string =>
  container || containerId.slice(0, 12);

/** Containers that use a GPU without having been allocated it. */
function setIllegal({ foreign, foreignTotals }: Snapshot, labelsOf: LabelsOf, percent: Percent, set: Put): void {
  for (const use of foreign) {
    const labels = labelsOf({ ...use, container: nameOf(use) });
    if (labels) set('DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_USED', labels, toMib(use.usedBytes));
  }
  for (const total of foreignTotals) {
    const labels = labelsOf({ ...total, container: nameOf(total) });
    const isPresent = foreign.some((use) => isOf(use, total));
    for (const [engine, metric] of ILLEGAL_ENGINES) {
      const key = [total.gpuUuid, total.containerId, total.podUid, engine];
      // Asked for in any case, so that the rate goes on.
      const value = percent(key, total.utilizationKnown ? total[engine] : undefined);
      if (labels && isPresent) set(metric, labels, value);
    }
  }
}

export const ack = ({ nodeName }: CompatContext) => {
  const ratesAt = createRates();
  return defineCollector({
    name: 'compat-ack',
    metrics: METRICS,
    collect(snapshot, series) {
      const { set } = series;
      const rate = ratesAt(snapshot.atMs);
      const percent: Percent = (key, seconds) => {
        const ratio = rate(JSON.stringify(key), seconds);
        return ratio === undefined ? undefined : Math.min(100, 100 * ratio);
      };
      const labelsOf: LabelsOf = (of) => {
        const device = deviceOf(snapshot, of.gpuUuid);
        if (!device) return undefined;
        const names = { NamespaceName: of.namespace, PodName: of.pod, ContainerName: of.container };
        return { ...gpuLabels(device, nodeName), AllocateMode: device.mode, ...names };
      };
      for (const device of snapshot.devices) setGpu(device, gpuLabels(device, nodeName), snapshot.driverVersion, set);
      const holders = holdersOf(snapshot);
      for (const holder of holders) {
        const labels = labelsOf(holder);
        if (!labels || !holder.grant) continue;
        const { limitBytes, coresPercent } = holder.grant;
        set('DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED', labels, toMib(limitBytes));
        if (coresPercent > 0) set('DCGM_CUSTOM_CONTAINER_CP_ALLOCATED', labels, coresPercent / 100);
      }
      for (const largest of largestProcesses(holders, series)) {
        const labels = labelsOf(largest.holder);
        if (labels) setProcess(snapshot, { ...largest, container: labels }, percent, set);
      }
      setIllegal(snapshot, labelsOf, percent, set);
    },
  });
};

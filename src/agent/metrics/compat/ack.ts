// The names of ACK's exporter for shared cards. Its families for cards as such are dcgm-exporter's.
import type { ViewDevice } from '../../view.ts';
import { type Family, metricSet } from '../family.ts';
import { type CompatContext, deviceOf, type Holder, holdersOf, largestProcesses, plainName, toMib } from './set.ts';

const CARD = ['UUID', 'device', 'gpu', 'modelName', 'NodeName'];
const CONTAINER = [...CARD, 'AllocateMode', 'NamespaceName', 'PodName', 'ContainerName'];
const PROCESS = [...CONTAINER, 'ProcessId', 'ProcessName', 'ProcessType'];
const MODES: Readonly<Record<ViewDevice['mode'], number>> = { none: 0, exclusive: 1, mig: 1, shared: 2 };

export const ack = ({ nodeName }: CompatContext): Family => ({
  name: 'compat-ack',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const gauge = (name: string, help: string, labels: readonly string[]) =>
      set.gauge(`DCGM_CUSTOM_${name}`, help, labels);
    const mode = gauge('ALLOCATE_MODE', 'How the card is given out: 0 not, 1 whole, 2 shared.', CARD);
    const total = gauge('DEV_FB_TOTAL', 'Memory of the card, in MiB.', [...CARD, 'DriverVersion']);
    const allocated = gauge('DEV_FB_ALLOCATED', 'Part of it that is given out, 0 to 1.', [...CARD, 'DriverVersion']);
    const containerMemory = gauge('CONTAINER_MEM_ALLOCATED', 'Memory that the container was given, in MiB.', CONTAINER);
    const containerCompute = gauge(
      'CONTAINER_CP_ALLOCATED',
      'Compute that the container was given, 0 to 1.',
      CONTAINER,
    );
    const sm = gauge('PROCESS_SM_UTIL', 'Compute that the process used, in percent.', PROCESS);
    const memory = gauge('PROCESS_MEM_USED', 'Memory of the process, in MiB.', PROCESS);
    const illegal = gauge(
      'ILLEGAL_PROCESS_MEM_USED',
      'Memory of a container that was given no card, in MiB.',
      CONTAINER,
    );
    return {
      clear: set.clear,
      fill(view) {
        const cardLabels = ({ card }: ViewDevice) => ({
          UUID: card.uuid,
          device: `nvidia${card.minor ?? card.index}`,
          gpu: String(card.index),
          modelName: card.name,
          NodeName: nodeName,
        });
        const labelsOf = (of: Pick<Holder, 'gpuUuid' | 'namespace' | 'pod' | 'container'>) => {
          const device = deviceOf(view, of.gpuUuid);
          return (
            device && {
              ...cardLabels(device),
              AllocateMode: device.mode,
              NamespaceName: of.namespace,
              PodName: of.pod,
              ContainerName: of.container,
            }
          );
        };
        for (const device of view.devices) {
          const { card, grantedBytes } = device;
          const labels = { ...cardLabels(device), DriverVersion: view.driverVersion };
          mode(cardLabels(device), MODES[device.mode]);
          total(labels, toMib(card.totalBytes));
          if (card.totalBytes)
            allocated(labels, device.mode === 'exclusive' ? 1 : Math.min(1, grantedBytes / card.totalBytes));
        }
        const holders = holdersOf(view);
        for (const holder of holders) {
          const labels = labelsOf(holder);
          if (!labels || !holder.grant) continue;
          containerMemory(labels, toMib(holder.grant.limitBytes));
          if (holder.grant.coresPercent > 0) containerCompute(labels, holder.grant.coresPercent / 100);
        }
        for (const { holder, one } of largestProcesses(holders)) {
          const labels = labelsOf(holder);
          if (!labels) continue;
          const process = {
            ...labels,
            ProcessId: String(one.pid),
            ProcessName: plainName(one.command),
            ProcessType: 'C',
          };
          sm(process, one.smPercent);
          memory(process, toMib(one.usedBytes));
        }
        for (const use of view.foreign) {
          const labels = labelsOf({ ...use, container: use.container || use.containerId.slice(0, 12) });
          if (labels) illegal(labels, toMib(use.usedBytes));
        }
      },
    };
  },
});

// One node as text: tables of GPUs, tenants and recent actions. Pure.
import type { Snapshot, SnapshotContainer } from '../../agent/snapshot/snapshot.ts';
import { MIB } from '../../common/quantity.ts';
import { oneLine } from '../lib/text.ts';
import { fitted, startOf, type Yielding } from './columns.ts';

export const mib = (bytes: number | undefined): string => (bytes === undefined ? '-' : String(Math.round(bytes / MIB)));

function bar(used: number, total: number, width = 16): string {
  const filled = total > 0 ? Math.min(width, Math.round((used / total) * width)) : 0;
  return `[${'#'.repeat(filled)}${'.'.repeat(width - filled)}]`;
}

export function stateOf(container: SnapshotContainer): string {
  const states: string[] = [];
  const above = container.usedBytes - container.limitBytes;
  if (container.withoutGpus) states.push('NO GPUS');
  // Nothing is refused to it, and it is never stopped for memory: what it takes is taken from others.
  if (!container.isolateMemory) states.push(above > 0 ? `NOT ISOLATED, ${mib(above)} MiB above` : 'NOT ISOLATED');
  else if (container.over) states.push('OVER');
  else if (above > 0) states.push(`${mib(above)} MiB above, tolerated`);
  if (container.bypassBytes > 0) states.push(`BYPASS ${mib(container.bypassBytes)} MiB`);
  if (container.overShare) states.push('OVER SHARE');
  if (container.tampered) states.push('LEDGER DAMAGED');
  return states.join(', ') || (container.memoryKnown ? WITHIN : 'unknown');
}

const WITHIN = 'within';
export const isWell = (container: SnapshotContainer): boolean => stateOf(container) === WITHIN;

/** What is left out of the tables of `cotenant inspect` on a narrow terminal: bars, policies, then less and less important. */
const OF_GPUS: Yielding = { going: [2, 8, 7, 6, 5], name: 16, end: 7 };
const OF_TENANTS: Yielding = { going: [2, 6, 8, { column: 7, shortest: 7 }, 7, 9, 5], name: 36, end: 21 };

/** What is well and what is not, as a sentence that fits any terminal. */
export function standing({ devices, containers, foreign, self }: Snapshot): string {
  if (!self.up) return '';
  const count = (found: number, of: number, what: string, is: string) =>
    found === 0 ? [] : [`${found} of ${of} ${what}${of === 1 ? '' : 's'} ${is}`];
  const wrong = [
    ...count(devices.filter(({ gpu, fault }) => fault || !gpu.healthy).length, devices.length, 'GPU', 'with a fault'),
    ...count(containers.filter((one) => !isWell(one)).length, containers.length, 'container', 'with a problem'),
    ...(foreign.length > 0 ? [`${foreign.length} without a grant`] : []),
  ];
  return wrong.join(', ') || 'all well';
}

export function gpuRows(snapshot: Snapshot, width = Number.POSITIVE_INFINITY): readonly string[] {
  const rows = snapshot.devices.map(({ gpu, grantedBytes, containers, compute, fault }) => {
    const usable = (gpu.totalBytes ?? 0) - (gpu.reservedBytes ?? 0);
    return [
      String(gpu.index),
      gpu.name,
      bar(gpu.usedBytes ?? 0, usable),
      mib(gpu.usedBytes),
      mib(usable),
      mib(grantedBytes),
      gpu.utilizationPercent === undefined ? '-' : `${gpu.utilizationPercent}%`,
      containers === undefined ? '-' : String(containers),
      compute.policy,
      fault ? `XID ${fault.xid}` : gpu.healthy ? '' : 'LOST',
    ];
  });
  const head = ['GPU', 'MODEL', '', 'USED MiB', 'USABLE', 'GRANTED', 'BUSY', 'CONTAINERS', 'POLICY', ''];
  return fitted(
    [head, ...rows],
    ['right', 'left', 'left', 'right', 'right', 'right', 'right', 'right'],
    width,
    OF_GPUS,
  );
}

/** Percent of the GPU that its kernels used, and granted compute, with the limit while other containers leave compute
 * idle. What is granted and not enforced is only a request. */
export function computeOf({ smPercent, coresPercent, coresLimitPercent, compute }: SnapshotContainer): string {
  const most = coresLimitPercent === undefined ? '' : `-${coresLimitPercent}`;
  const granted = coresPercent === 0 ? '-' : `${compute ? '' : '~'}${coresPercent}${most}`;
  return `${smPercent === undefined ? '-' : Math.round(smPercent)}/${granted}`;
}

/** `undivided`: it asked for no compute, and its launches go unmanaged on a GPU whose policy would divide them. */
export function policyOf({ computePolicy, coresPercent }: SnapshotContainer, ofGpu: string | undefined): string {
  return computePolicy === 'native' && coresPercent === 0 && ofGpu !== 'native' ? 'undivided' : computePolicy;
}

const policyText = (container: SnapshotContainer, { devices }: Snapshot): string => {
  const ofGpu = devices.find(({ gpu }) => gpu.uuid === container.gpuUuid)?.compute.policy ?? 'native';
  return `${policyOf(container, ofGpu)}${container.priority === 'high' ? ', high' : ''}`;
};

/** The mode, and its source where that is not the node. */
const modeText = ({ enforcement: { mode, by } }: SnapshotContainer): string =>
  by === 'node' ? mode : `${mode}, ${by}`;

type Names = Pick<SnapshotContainer, 'namespace' | 'pod' | 'container'>;

export const containerName = ({ namespace, pod, container }: Names): string => `${namespace}/${pod}/${container}`;

/** A pod's container as namespace/pod/container; a process grant by its name, which commands accept. */
export const tenantName = (of: Names & Pick<SnapshotContainer, 'podUid'>): string =>
  of.podUid === '' ? of.pod : containerName(of);

/** Those with something wrong first. */
export function tenantRows(snapshot: Snapshot, width = Number.POSITIVE_INFINITY): readonly string[] {
  const rows = snapshot.containers
    .toSorted((a, b) => Number(isWell(a)) - Number(isWell(b)))
    .map((container) => [
      String(container.gpuIndex ?? '-'),
      tenantName(container),
      container.memoryKnown ? bar(container.usedBytes, container.limitBytes) : '',
      mib(container.memoryKnown ? container.usedBytes : undefined),
      mib(container.limitBytes),
      computeOf(container),
      policyText(container, snapshot),
      container.fence,
      modeText(container),
      container.grantId,
      stateOf(container),
    ]);
  const head = ['GPU', 'CONTAINER', '', 'USED MiB', 'GRANT', 'COMPUTE %', 'POLICY', 'ISOLATION', 'MODE', 'ID', 'STATE'];
  return fitted([head, ...rows], ['right', 'left', 'left', 'right', 'right', 'right'], width, OF_TENANTS);
}

export function actionRows(snapshot: Snapshot, most: number): string[] {
  return snapshot.recent
    .slice(-most)
    .map(({ atMs, action, message }) => `${new Date(atMs).toLocaleTimeString('en-GB')} ${action}: ${oneLine(message)}`);
}

/** The whole page of one node, as wide as the terminal. */
export function nodeLines(snapshot: Snapshot, width = Number.POSITIVE_INFINITY): readonly string[] {
  const head = snapshot.self.up
    ? `driver ${snapshot.driverVersion}, mode ${snapshot.self.mode}`
    : `the driver does not answer: ${snapshot.self.problem}`;
  return [
    startOf(oneLine(head), width),
    startOf(standing(snapshot), width),
    '',
    ...gpuRows(snapshot, width),
    '',
    ...tenantRows(snapshot, width),
    '',
    ...actionRows(snapshot, 5),
  ];
}

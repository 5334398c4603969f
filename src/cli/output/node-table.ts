// One node as text: tables of GPUs, tenants and recent actions. Pure.
import type { Snapshot, SnapshotContainer } from '../../agent/snapshot/snapshot.ts';
import { MIB } from '../../common/quantity.ts';
import { oneCell, oneLine } from '../lib/text.ts';

export const mib = (bytes: number | undefined): string => (bytes === undefined ? '-' : String(Math.round(bytes / MIB)));

type Align = 'left' | 'right';

/** Columns as wide as their widest cell. Cells cannot send control characters to a terminal. */
export function columns(table: readonly (readonly string[])[], align: readonly Align[] = []): string[] {
  const rows = table.map((row) => row.map((cell) => oneCell(cell)));
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => (row[column] ?? '').length)));
  return rows.map((row) =>
    row
      .map((cell, column) =>
        align[column] === 'right' ? cell.padStart(widths[column] ?? 0) : cell.padEnd(widths[column] ?? 0),
      )
      .join('  ')
      .trimEnd(),
  );
}

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

export function gpuRows(snapshot: Snapshot): string[] {
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
  const head = ['GPU', 'MODEL', '', 'USED MiB', 'USABLE', 'GRANTED', 'BUSY', 'TENANTS', 'POLICY', ''];
  return columns([head, ...rows], ['right', 'left', 'left', 'right', 'right', 'right', 'right', 'right']);
}

/** The granted compute, and the limit while other containers leave compute idle. */
function coresOf({ coresPercent, coresLimitPercent, compute }: SnapshotContainer): string {
  if (coresPercent === 0) return '-';
  const most = coresLimitPercent === undefined ? '' : `-${coresLimitPercent}`;
  return `${coresPercent}${most}%${compute ? '' : ' not enforced'}`;
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

export function tenantRows(snapshot: Snapshot): string[] {
  const rows = snapshot.containers.map((container) => [
    tenantName(container),
    String(container.gpuIndex ?? '-'),
    container.memoryKnown ? bar(container.usedBytes, container.limitBytes) : '',
    mib(container.memoryKnown ? container.usedBytes : undefined),
    mib(container.limitBytes),
    container.smPercent === undefined ? '-' : `${container.smPercent}%`,
    coresOf(container),
    policyText(container, snapshot),
    container.fence,
    modeText(container),
    stateOf(container),
    container.grantId,
  ]);
  const head = ['TENANT', 'GPU', '', 'USED MiB', 'GRANT', 'SM', 'CORES', 'POLICY', 'FENCE', 'MODE', 'STATE', 'ID'];
  return columns([head, ...rows], ['left', 'right', 'left', 'right', 'right', 'right']);
}

export function actionRows(snapshot: Snapshot, most: number): string[] {
  return snapshot.recent
    .slice(-most)
    .map(({ atMs, action, message }) => `${new Date(atMs).toLocaleTimeString('en-GB')} ${action}: ${oneLine(message)}`);
}

/** The whole page of one node. */
export function nodeLines(snapshot: Snapshot): string[] {
  const head = snapshot.self.up
    ? `driver ${snapshot.driverVersion}, mode ${snapshot.self.mode}`
    : `the driver does not answer: ${snapshot.self.problem}`;
  return [oneLine(head), '', ...gpuRows(snapshot), '', ...tenantRows(snapshot), '', ...actionRows(snapshot, 5)];
}

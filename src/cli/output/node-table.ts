// The node as text: cards, tenants and what was done. Pure; who prints it, and how often, is the commands'.
import type { View, ViewContainer } from '../../agent/snapshot/snapshot.ts';
import { oneCell, oneLine } from '../lib/words.ts';

const MIB = 1024 * 1024;
const mib = (bytes: number | undefined): string => (bytes === undefined ? '-' : String(Math.round(bytes / MIB)));

type Align = 'left' | 'right';

/** Columns as wide as their widest cell. What a cell says is never more than text to a terminal. */
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

export function stateOf(container: ViewContainer): string {
  const words: string[] = [];
  if (container.withoutCards) words.push('NO CARDS');
  if (container.over) words.push('OVER');
  else if (container.usedBytes > container.limitBytes)
    words.push(`${mib(container.usedBytes - container.limitBytes)} MiB above, tolerated`);
  if (container.bypassBytes > 0) words.push(`BYPASS ${mib(container.bypassBytes)} MiB`);
  if (container.overShare) words.push('OVER SHARE');
  if (container.tampered) words.push('LEDGER DAMAGED');
  return words.join(', ') || (container.bytesTold ? 'within' : 'not told');
}

export function cardRows(view: View): string[] {
  const rows = view.devices.map(({ card, grantedBytes, containers, compute, fault }) => {
    const usable = (card.totalBytes ?? 0) - (card.reservedBytes ?? 0);
    return [
      String(card.index),
      card.name,
      bar(card.usedBytes ?? 0, usable),
      mib(card.usedBytes),
      mib(usable),
      mib(grantedBytes),
      card.utilizationPercent === undefined ? '-' : `${card.utilizationPercent}%`,
      containers === undefined ? '-' : String(containers),
      compute.policy,
      fault ? `XID ${fault.xid}` : card.healthy ? '' : 'LOST',
    ];
  });
  const head = ['GPU', 'MODEL', '', 'USED MiB', 'USABLE', 'GRANTED', 'BUSY', 'TENANTS', 'POLICY', ''];
  return columns([head, ...rows], ['right', 'left', 'left', 'right', 'right', 'right', 'right', 'right']);
}

/** What it is granted, and what it may have while others leave it idle. */
export function coresOf({ coresPercent, coresLimitPercent, compute }: ViewContainer): string {
  if (coresPercent === 0) return '-';
  const most = coresLimitPercent === undefined ? '' : `-${coresLimitPercent}`;
  return `${coresPercent}${most}%${compute ? '' : ' not enforced'}`;
}

const policyText = ({ computePolicy, priority }: ViewContainer): string =>
  priority === 'high' ? `${computePolicy}, high` : computePolicy;

/** The mode, and who said so where it is not the node's. */
const modeText = ({ enforcement: { mode, by } }: ViewContainer): string => (by === 'node' ? mode : `${mode}, ${by}`);

type Names = Pick<ViewContainer, 'namespace' | 'pod' | 'container'>;

export const containerName = ({ namespace, pod, container }: Names): string => `${namespace}/${pod}/${container}`;

/** A pod's container by all its names; a plain grant by its own, under which commands know it. */
export const tenantName = (of: Names & Pick<ViewContainer, 'podUid'>): string =>
  of.podUid === '' ? of.pod : containerName(of);

export function tenantRows(view: View): string[] {
  const rows = view.containers.map((container) => [
    tenantName(container),
    String(container.gpuIndex ?? '-'),
    container.bytesTold ? bar(container.usedBytes, container.limitBytes) : '',
    mib(container.bytesTold ? container.usedBytes : undefined),
    mib(container.limitBytes),
    container.smPercent === undefined ? '-' : `${container.smPercent}%`,
    coresOf(container),
    policyText(container),
    container.fence,
    modeText(container),
    stateOf(container),
    container.grantId,
  ]);
  const head = ['TENANT', 'GPU', '', 'USED MiB', 'GRANT', 'SM', 'CORES', 'POLICY', 'FENCE', 'MODE', 'STATE', 'ID'];
  return columns([head, ...rows], ['left', 'right', 'left', 'right', 'right', 'right']);
}

export function actionRows(view: View, most: number): string[] {
  return view.recent
    .slice(-most)
    .map(({ atMs, action, message }) => `${new Date(atMs).toLocaleTimeString('en-GB')} ${action}: ${oneLine(message)}`);
}

/** The whole page of one node. */
export function nodeLines(view: View): string[] {
  const head = view.self.up
    ? `driver ${view.driverVersion}, mode ${view.self.mode}`
    : `the driver does not answer: ${view.self.problem}`;
  return [oneLine(head), '', ...cardRows(view), '', ...tenantRows(view), '', ...actionRows(view, 5)];
}

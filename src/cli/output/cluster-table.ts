// Formats a cluster as text: one table for all nodes, waiting pods, a line with sums, and objects that could not be
// read. Pure.

import type { Inventory, InventoryGpu, InventoryNode, Tenant } from '../cluster/inventory.ts';
import { age, mib, oneLine } from '../lib/text.ts';
import { fitted, type Yielding } from './columns.ts';
import { containerName } from './node-table.ts';

export const HEAD = [
  'NODE',
  'GPU',
  'GPU, CONTAINER',
  'MODEL, STATE',
  'GRANTED MiB',
  'USABLE',
  'USED',
  'COMPUTE',
  'CONTAINERS',
  'MODE',
  '',
];
const ALIGN = ['left', 'right', 'left', 'left', 'right', 'right', 'right', 'right', 'right', 'left', 'left'] as const;
/** What gives way on a narrow terminal: ends of nodes' names, models and modes, then less and less important columns. */
const NARROW: Yielding = {
  going: [{ column: 0, shortest: 12 }, { column: 3, shortest: 12 }, { column: 9, shortest: 8 }, 9, 8, 5, 3, 7, 1, 4, 0],
  column: 2,
  name: 24,
  end: 12,
};
const number = (bytes: number): string => mib(bytes).replace(' MiB', '');
const numberOr = (bytes: number | undefined, otherwise: string): string =>
  bytes === undefined ? otherwise : number(bytes);
const percent = (value: number): string => (value > 0 ? `${value}%` : '-');

/** The table is as wide as the terminal. */
export function inventoryLines(inventory: Inventory, nowMs: number, width = Number.POSITIVE_INFINITY): string[] {
  const { nodes, pending, notes, totals } = inventory;
  const rows = [HEAD, ...nodes.flatMap(nodeRows)];
  const table = nodes.length === 0 ? ['No node reports GPUs.'] : fitted(rows, ALIGN, width, NARROW);
  const waiting = pending.map(({ namespace, pod, createdAt, asks, scheduler }) => {
    const since = createdAt === undefined ? '' : ` for ${age(createdAt, nowMs)}`;
    return oneLine(
      `${namespace}/${pod} waits${since}: ${asks}.${scheduler === undefined ? '' : ` The scheduler: ${scheduler}`}`,
    );
  });
  const share = totals.usableBytes > 0 ? ` (${Math.floor((totals.grantedBytes / totals.usableBytes) * 100)}%)` : '';
  const gpus = nodes.flatMap((node) => node.gpus);
  const faulty = gpus.filter(({ fault, healthy }) => fault !== undefined || healthy === false).length;
  const above = gpus
    .flatMap(({ containers }) => containers)
    .filter((one) => aboveOf(one).length > 0)
    .map((one) => oneLine(containerName(one)));
  const usable = totals.usableBytes > 0 ? number(totals.usableBytes) : '-';
  const sums = [
    `Granted/usable GPU memory: ${number(totals.grantedBytes)}/${usable} MiB${share}`,
    `${count(totals.gpus, 'GPU')}${faulty > 0 ? ` (${faulty} with a fault)` : ''} on ${count(totals.nodes, 'node')}`,
    `${count(totals.containers, 'container')} with a share${above.length > 0 ? ` (above its limit: ${listed(above)})` : ''}`,
    `${count(pending.length, 'pod')} pending`,
  ];
  const free = nodes
    .filter((node) => node.free.bytes > 0)
    .map(({ name, free: { bytes, largestBytes } }) => {
      const elsewhere = Math.round(100 - (100 * largestBytes) / bytes);
      return `Free on ${name}: ${mib(bytes)}, the largest share ${mib(largestBytes)} (${elsewhere}% fragmented)`;
    });
  const blocks = [table, free, waiting, [`${sums.join(', ')}.`, ...notes.map((note) => oneLine(note))]];
  return blocks.filter((block) => block.length > 0).flatMap((block, index) => (index > 0 ? ['', ...block] : block));
}

const SHOWN = 3;
const listed = (names: readonly string[]): string => {
  const all = [...new Set(names)];
  return [...all.slice(0, SHOWN), ...(all.length > SHOWN ? [`${all.length - SHOWN} more`] : [])].join(', ');
};

const count = (of: number, what: string): string => `${of} ${what}${of === 1 ? '' : 's'}`;

function nodeRows(node: InventoryNode): string[][] {
  return node.gpus.flatMap((gpu, index) => [gpuRow(node, gpu, index === 0), ...containerRows(node, gpu)]);
}

function gpuRow(node: InventoryNode, gpu: InventoryGpu, first: boolean): string[] {
  const { mostTenantsPerGpu: most } = node;
  const warnings = [
    ...(gpu.fault !== undefined ? [`UNHEALTHY: ${gpu.fault}`] : gpu.healthy === false ? ['LOST'] : []),
    ...(gpu.mode === undefined ? [] : [gpu.mode === 'none' ? 'left to others' : 'not shared']),
    ...(node.ready === false ? ['NODE NOT READY'] : []),
    ...(gpu.usableBytes !== undefined && gpu.grantedBytes > gpu.usableBytes ? ['OVERCOMMITTED'] : []),
  ];
  return [
    first ? node.name : '',
    gpu.index === undefined ? '?' : String(gpu.index),
    gpu.gpuUuid,
    gpu.model ?? '-',
    number(gpu.grantedBytes),
    numberOr(gpu.usableBytes, '-'),
    numberOr(gpu.usedBytes, node.use === 'known' ? '-' : node.use),
    percent(gpu.grantedCoresPercent),
    most === undefined ? String(gpu.tenants) : `${gpu.tenants}/${most}`,
    first ? (node.mode ?? '') : '',
    warnings.join(', '),
  ];
}

/** The mode if it differs from its node's. */
const otherMode = (node: InventoryNode, { enforcement }: Tenant): string =>
  enforcement && enforcement.mode !== node.mode ? `${enforcement.mode}, ${enforcement.by}` : '';

/** A row below a GPU. */
type Use = {
  name: string;
  state?: string;
  granted: string;
  used?: string;
  cores: string;
  mode?: string;
  note?: string;
};
const useRow = ({ name, state = '', granted, used = '', cores, mode = '', note = '' }: Use): string[] => {
  return ['', '', `  ${name}`, state, granted, '', used, cores, '', mode, note];
};

const aboveOf = ({ usedBytes = 0, limitBytes }: Tenant): readonly string[] =>
  usedBytes > limitBytes ? [`${mib(usedBytes - limitBytes)} above`] : [];

const aboveFirst = (containers: readonly Tenant[]): readonly Tenant[] =>
  containers.toSorted((a, b) => aboveOf(b).length - aboveOf(a).length);

function containerRows(node: InventoryNode, { containers, foreign, others, ofGonePods }: InventoryGpu): string[][] {
  return [
    ...aboveFirst(containers).map((one) =>
      useRow({
        name: containerName(one),
        state: one.kind === 'app' ? one.state : `${one.kind}, ${one.state}`,
        granted: number(one.memoryBytes),
        used: numberOr(one.usedBytes, '-'),
        cores: percent(one.coresPercent),
        mode: otherMode(node, one),
        note: [...aboveOf(one), one.memoryIsolation === 'off' ? 'not limited' : (one.fence ?? '')].join(', '),
      }),
    ),
    ...(others ? [others] : []).map(({ memoryBytes, coresPercent }) =>
      useRow({ name: "by the node's agent", granted: number(memoryBytes), cores: percent(coresPercent) }),
    ),
    // Their grants are in the row above.
    ...ofGonePods.map((one) =>
      useRow({
        name: containerName(one),
        state: 'POD GONE',
        granted: `(${number(one.grantedBytes)})`,
        used: numberOr(one.usedBytes, '-'),
        cores: '-',
        note: `since ${one.goneSince.replace(/\.\d+Z$/, 'Z')}`,
      }),
    ),
    ...foreign.map((one) =>
      useRow({
        name: containerName(one),
        state: 'WITHOUT A GRANT',
        granted: '0',
        used: numberOr(one.usedBytes, '-'),
        cores: '-',
      }),
    ),
  ];
}

// One screen of `cotenant top`: a line for each card, one for each container on it with what it has of its grant, and the processes on
// request. Pure; no line is wider than the terminal, and what is cut off is a name's beginning or a state's end.
import type { View, ViewProcess } from '../agent/view.ts';
import { oneCell, oneLine } from './cluster/words.ts';
import { actionRows, columns, stateOf, tenantName } from './table.ts';

export const SORTS = ['card', 'memory', 'sm', 'name'] as const;
export type Sort = (typeof SORTS)[number];
export type Look = { readonly sort: Sort; readonly processes: boolean; readonly width: number };

/** Narrower than this a table says nothing any more; it is then wider than the terminal. */
const LEAST_NAME = 16;
const MIB = 2 ** 20;

/** Whoever holds memory of a card: by a grant, by others' word, or by nobody's. */
type User = {
  readonly gpuIndex: number;
  readonly name: string;
  readonly usedBytes: number | undefined;
  readonly limitBytes: number | undefined;
  readonly smPercent: number | undefined;
  readonly share: string;
  readonly heldBy: string;
  readonly state: string;
  readonly processes: readonly Omit<ViewProcess, 'inLedger'>[];
};

const mib = (bytes: number | undefined): string => (bytes === undefined ? '-' : String(Math.round(bytes / MIB)));
const percent = (value: number | undefined): string => (value === undefined ? '-' : `${Math.round(value)}%`);
/** Of many names in one namespace the end tells which. */
const endOf = (text: string, width: number): string => (text.length <= width ? text : `…${text.slice(1 - width)}`);
const startOf = (text: string, width: number): string =>
  text.length <= width ? text : `${text.slice(0, Math.max(0, width - 1))}…`;

const GIVEN = { exclusive: 'whole card', mig: 'instance', shared: "others' share" } as const;

export function usersOf(view: View): readonly User[] {
  return [
    ...view.containers.map((one): User => {
      const { coresPercent, coresLimitPercent, compute } = one;
      const most = coresLimitPercent === undefined ? '' : `-${coresLimitPercent}`;
      return {
        gpuIndex: one.gpuIndex,
        name: tenantName(one),
        usedBytes: one.bytesTold ? one.usedBytes : undefined,
        limitBytes: one.limitBytes,
        smPercent: one.smPercent,
        // What nothing holds it to is no more than a wish.
        share: coresPercent === 0 ? '-' : `${compute ? '' : '~'}${coresPercent}${most}%`,
        heldBy: one.fence,
        state: stateOf(one),
        processes: one.processes,
      };
    }),
    ...view.assigned.map(
      (one): User => ({
        ...one,
        name: tenantName(one),
        limitBytes: undefined,
        share: '-',
        heldBy: 'none',
        state: GIVEN[one.mode],
      }),
    ),
    ...view.foreign.map(
      (one): User => ({
        gpuIndex: one.gpuIndex,
        name: one.pod === '' ? one.containerId.slice(0, 12) || one.podUid : tenantName(one),
        usedBytes: one.usedBytes,
        limitBytes: undefined,
        smPercent: undefined,
        share: '-',
        heldBy: 'none',
        state: 'NO GRANT',
        processes: [],
      }),
    ),
  ];
}

const falling = (a: number | undefined, b: number | undefined): number => (b ?? -1) - (a ?? -1);
const ORDERS: Readonly<Record<Sort, (a: User, b: User) => number>> = {
  card: (a, b) => a.gpuIndex - b.gpuIndex || falling(a.usedBytes, b.usedBytes),
  memory: (a, b) => falling(a.usedBytes, b.usedBytes),
  sm: (a, b) => falling(a.smPercent, b.smPercent),
  name: (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : a.gpuIndex - b.gpuIndex),
};

export function cardLines(view: View, width: number): readonly string[] {
  const rows = view.devices.map(({ card, containers, fault }) => {
    const usable = card.totalBytes === undefined ? undefined : card.totalBytes - (card.reservedBytes ?? 0);
    const most = card.powerLimitMw === undefined ? '' : `/${Math.round(card.powerLimitMw / 1000)}`;
    return [
      String(card.index),
      card.name,
      `${mib(card.usedBytes)}/${mib(usable)}`,
      percent(card.utilizationPercent),
      card.temperatureC === undefined ? '-' : `${card.temperatureC}C`,
      card.powerMw === undefined ? '-' : `${Math.round(card.powerMw / 1000)}${most}W`,
      String(containers),
      fault ? `XID ${fault.xid}` : card.healthy ? '' : 'LOST',
    ];
  });
  const head = ['GPU', 'MODEL', 'USED/USABLE MiB', 'BUSY', 'TEMP', 'POWER', 'IN USE BY', 'FAULT'];
  return fitted([head, ...rows], ['right', 'left', 'right', 'right', 'right', 'right', 'right'], width);
}

export function userLines(view: View, { sort, processes, width }: Look): readonly string[] {
  const head = ['GPU', 'CONTAINER', 'USED/GRANT MiB', 'SM', 'SHARE', 'HELD BY', 'STATE'];
  const rows = usersOf(view)
    .toSorted(ORDERS[sort])
    .flatMap((user) => [
      [
        String(user.gpuIndex),
        user.name,
        `${mib(user.usedBytes)}/${mib(user.limitBytes)}`,
        percent(user.smPercent),
        user.share,
        user.heldBy,
        user.state,
      ],
      ...(processes ? processRows(user, sort) : []),
    ]);
  return fitted([head, ...rows], ['right', 'left', 'right', 'right', 'right'], width);
}

function processRows(user: User, sort: Sort): readonly (readonly string[])[] {
  const first = sort === 'sm' ? 'smPercent' : 'usedBytes';
  return user.processes
    .toSorted((a, b) => falling(a[first], b[first]) || a.pid - b.pid)
    .map(({ pid, command, usedBytes, smPercent }) => [
      '',
      `  ${pid} ${command}`,
      mib(usedBytes),
      percent(smPercent),
      '',
      '',
      '',
    ]);
}

/** The second column, and after it the last one, give way until the widest line fits. */
function fitted(
  table: readonly (readonly string[])[],
  align: readonly ('left' | 'right')[],
  width: number,
): readonly string[] {
  const plain = table.map((row) => row.map((cell) => oneCell(cell)));
  const widest = (column: number) => Math.max(...plain.map((row) => (row[column] ?? '').length));
  const last = (plain[0]?.length ?? 1) - 1;
  const widths = (plain[0] ?? []).map((_, column) => widest(column));
  const others = widths.reduce((sum, each) => sum + each + 2, -2) - (widths[1] ?? 0);
  const name = Math.min(widths[1] ?? 0, Math.max(LEAST_NAME, width - others));
  const end = Math.max(0, Math.min(widths[last] ?? 0, (widths[last] ?? 0) + width - others - name));
  const cut = plain.map((row) =>
    row.map((cell, column) => (column === 1 ? endOf(cell, name) : column === last ? startOf(cell, end) : cell)),
  );
  return columns(cut, align);
}

export function topLines(view: View, look: Look): readonly string[] {
  const head = view.self.up
    ? `driver ${view.driverVersion}, mode ${view.self.mode}, sorted by ${look.sort}`
    : `the driver does not answer: ${view.self.problem}`;
  return [
    startOf(oneLine(head), look.width),
    '',
    ...cardLines(view, look.width),
    '',
    ...userLines(view, look),
    '',
    ...actionRows(view, 5).map((line) => startOf(line, look.width)),
  ];
}

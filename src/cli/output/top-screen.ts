// One screen of `cotenant top`: a line for each GPU, one for each container on it with what it has of its grant, and
// the processes on request. Pure; no line is wider than the terminal: the beginning of a name is cut off, then less
// important columns are left out.
import { excessOf } from '../../agent/enforcement/action-record.ts';
import type { RecentAction, Snapshot, SnapshotProcess } from '../../agent/snapshot/snapshot.ts';
import { oneCell, oneLine } from '../lib/text.ts';
import { columns, containerName, isWell, mib, stateOf, tenantName } from './node-table.ts';

export const SORTS = ['gpu', 'memory', 'sm', 'name'] as const;
export type Sort = (typeof SORTS)[number];
type Look = {
  readonly sort: Sort;
  readonly processes: boolean;
  readonly width: number;
  /** Lines of the terminal; without: all are shown. */
  readonly height?: number;
};

/** Power, temperature, tenants; then how busy it is. */
const OF_GPUS: Yielding = { going: [5, 4, 6, 3], name: 12, end: 7 };
/** Columns that are left out first: isolation (shortened before), share, SM. The beginning of the state is always
 * shown. */
const OF_USERS: Yielding = { going: [{ column: 5, shortest: 7 }, 5, 4, 3], name: 16, end: 21 };

/** A user of GPU memory: with a grant, allocated by others, or without any allocation. */
type User = {
  readonly gpuIndex: number | undefined;
  readonly name: string;
  readonly usedBytes: number | undefined;
  readonly limitBytes: number | undefined;
  readonly smPercent?: number | undefined;
  readonly share: string;
  readonly heldBy: string;
  readonly state: string;
  readonly isWell: boolean;
  readonly processes: readonly Omit<SnapshotProcess, 'inLedger'>[];
};

const percent = (value: number | undefined): string => (value === undefined ? '-' : `${Math.round(value)}%`);
/** Long names in one namespace differ at the end. */
const endOf = (text: string, width: number): string =>
  text.length <= width ? text : `…${text.slice(text.length + 1 - width)}`.slice(0, width);
const startOf = (text: string, width: number): string =>
  text.length <= width ? text : `${text.slice(0, Math.max(0, width - 1))}…`.slice(0, width);

const GIVEN = { exclusive: 'whole GPU', mig: 'instance', shared: "others' share" } as const;

const WITHOUT_GRANT = { limitBytes: undefined, share: '-', heldBy: 'none' };

export function usersOf(snapshot: Snapshot): readonly User[] {
  return [
    ...snapshot.containers.map((one): User => {
      const { coresPercent, coresLimitPercent, compute } = one;
      const most = coresLimitPercent === undefined ? '' : `-${coresLimitPercent}`;
      return {
        gpuIndex: one.gpuIndex,
        name: tenantName(one),
        usedBytes: one.memoryKnown ? one.usedBytes : undefined,
        limitBytes: one.limitBytes,
        smPercent: one.smPercent,
        // A share without enforcement is only a request.
        share: coresPercent === 0 ? '-' : `${compute ? '' : '~'}${coresPercent}${most}%`,
        heldBy: one.fence,
        state: stateOf(one),
        isWell: isWell(one),
        processes: one.processes,
      };
    }),
    ...snapshot.assigned.map(
      (one): User => ({ ...one, ...WITHOUT_GRANT, name: containerName(one), state: GIVEN[one.mode], isWell: true }),
    ),
    ...snapshot.foreign.map(
      (one): User => ({
        ...one,
        ...WITHOUT_GRANT,
        name: one.pod === '' ? one.containerId.slice(0, 12) || one.podUid : containerName(one),
        state: 'NO GRANT',
        isWell: false,
        processes: [],
      }),
    ),
  ];
}

const falling = (a: number | undefined, b: number | undefined): number => (b ?? -1) - (a ?? -1);
const byGpu = (a: User, b: User): number =>
  (a.gpuIndex ?? Number.MAX_SAFE_INTEGER) - (b.gpuIndex ?? Number.MAX_SAFE_INTEGER);
const ORDERS: Readonly<Record<Sort, (a: User, b: User) => number>> = {
  gpu: (a, b) => byGpu(a, b) || falling(a.usedBytes, b.usedBytes),
  memory: (a, b) => falling(a.usedBytes, b.usedBytes),
  sm: (a, b) => falling(a.smPercent, b.smPercent),
  name: (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : byGpu(a, b)),
};

function gpuLines(snapshot: Snapshot, width: number): readonly string[] {
  const rows = snapshot.devices.map(({ gpu, containers, fault }) => {
    const usable = gpu.totalBytes === undefined ? undefined : gpu.totalBytes - (gpu.reservedBytes ?? 0);
    const most = gpu.powerLimitMilliwatts === undefined ? '' : `/${Math.round(gpu.powerLimitMilliwatts / 1000)}`;
    return [
      String(gpu.index),
      gpu.name,
      `${mib(gpu.usedBytes)}/${mib(usable)}`,
      percent(gpu.utilizationPercent),
      gpu.temperatureC === undefined ? '-' : `${gpu.temperatureC}C`,
      gpu.powerMilliwatts === undefined ? '-' : `${Math.round(gpu.powerMilliwatts / 1000)}${most}W`,
      containers === undefined ? '-' : String(containers),
      fault ? `XID ${fault.xid}` : gpu.healthy ? '' : 'LOST',
    ];
  });
  const head = ['GPU', 'MODEL', 'USED/USABLE MiB', 'BUSY', 'TEMP', 'POWER', 'IN USE BY', 'FAULT'];
  return fitted([head, ...rows], ['right', 'left', 'right', 'right', 'right', 'right', 'right'], width, OF_GPUS);
}

/** In an order; with `first` those with something wrong before it. */
export function userLines(
  snapshot: Snapshot,
  { sort, processes, width }: Look,
  first: 'wrong' | 'any' = 'any',
): readonly string[] {
  const head = ['GPU', 'CONTAINER', 'USED/GRANT MiB', 'SM', 'SHARE', 'HELD BY', 'STATE'];
  const rows = usersOf(snapshot)
    .toSorted((a, b) => (first === 'wrong' ? Number(a.isWell) - Number(b.isWell) : 0) || ORDERS[sort](a, b))
    .flatMap((user) => [
      [
        String(user.gpuIndex ?? '-'),
        user.name,
        `${mib(user.usedBytes)}/${mib(user.limitBytes)}`,
        percent(user.smPercent),
        user.share,
        user.heldBy,
        user.state,
      ],
      ...(processes ? processRows(user, sort) : []),
    ]);
  return fitted([head, ...rows], ['right', 'left', 'right', 'right', 'right'], width, OF_USERS);
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

type Yielding = {
  /** Columns to leave out on a narrow terminal, in this order; a column with `shortest` is shortened to that before. */
  readonly going: readonly (number | { readonly column: number; readonly shortest: number })[];
  /** So much of the second and of the last column is kept before others go. */
  readonly name: number;
  readonly end: number;
};

/** The second column shrinks first, then columns are left out, and last the state is cut. */
function fitted(
  table: readonly (readonly string[])[],
  align: readonly ('left' | 'right')[],
  width: number,
  { going, name: leastName, end: leastEnd }: Yielding,
): readonly string[] {
  const plain = table.map((row) => row.map((cell) => oneCell(cell)));
  const natural = (plain[0] ?? []).map((_, column) => Math.max(...plain.map((row) => (row[column] ?? '').length)));
  const last = natural.length - 1;
  const [nameWidth, endWidth] = [natural[1] ?? 0, natural[last] ?? 0];
  const widths = new Map(natural.entries());
  const spare = () =>
    [...widths].reduce((left, [column, each]) => left - 2 - (column === 1 || column === last ? 0 : each), width + 2);
  const isTight = () => spare() < Math.min(nameWidth, leastName) + Math.min(endWidth, leastEnd);
  for (const one of going) {
    if (!isTight()) break;
    if (typeof one === 'number') widths.delete(one);
    else widths.set(one.column, Math.min(widths.get(one.column) ?? 0, one.shortest));
  }
  const left = Math.max(0, spare());
  const name = Math.min(nameWidth, Math.max(Math.min(leastName, Math.floor(left / 2)), left - endWidth));
  widths.set(1, name);
  widths.set(last, Math.min(endWidth, left - name));
  const kept = [...widths.keys()].toSorted((a, b) => a - b);
  const rows = plain.map((row, index) =>
    kept.map((column) => (column === 1 && index > 0 ? endOf : startOf)(row[column] ?? '', widths.get(column) ?? 0)),
  );
  return columns(
    rows,
    kept.map((column) => align[column] ?? 'left'),
  ).map((line) => startOf(line, width));
}

/** At least so much of a container's name is shown. */
const SHORTEST_NAME = 12;

/** Action, container, use, GPU and reason, in this order: a narrow terminal cuts off the end of the reason. */
function actionLine(record: RecentAction, snapshot: Snapshot, width: number): string {
  const { namespace, pod, container, gpuUuid = '' } = record;
  const head = `${new Date(record.atMs).toLocaleTimeString('en-GB')} ${record.action}: `;
  const excess = record.action === 'evict' ? undefined : excessOf(record);
  if (excess === undefined) return startOf(`${head}${oneLine(record.message)}`, width);
  const index = snapshot.devices.find((device) => device.gpu.uuid === gpuUuid)?.gpu.index;
  const on = index === undefined ? startOf(oneCell(gpuUuid), 12) : `GPU ${index}`;
  const tail = ` ${excess.used} on ${on}: `;
  const name = endOf(
    oneCell(`${namespace}/${pod}/${container}`),
    Math.max(SHORTEST_NAME, width - head.length - tail.length),
  );
  return startOf(`${head}${name}${tail}${excess.reason}`, width);
}

const ACTIONS = 5;
/** With the head of the table. */
const LEAST_USERS = 4;

export function topLines(snapshot: Snapshot, look: Look): readonly string[] {
  const head = snapshot.self.up
    ? `driver ${snapshot.driverVersion}, mode ${snapshot.self.mode}, sorted by ${look.sort}`
    : `the driver does not answer: ${snapshot.self.problem}`;
  const before = [startOf(oneLine(head), look.width), '', ...gpuLines(snapshot, look.width), ''];
  const after = ['', ...snapshot.recent.slice(-ACTIONS).map((action) => actionLine(action, snapshot, look.width))];
  const users = userLines(snapshot, look);
  // The cursor has the last line.
  const room = (look.height ?? Number.POSITIVE_INFINITY) - 1 - before.length - after.length;
  if (users.length <= room) return [...before, ...users, ...after];
  const shown = Math.max(LEAST_USERS, room - 1);
  const more = startOf(`… ${users.length - shown} more lines; those with something wrong are first`, look.width);
  return [...before, ...userLines(snapshot, look, 'wrong').slice(0, shown), more, ...after];
}

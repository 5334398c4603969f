// One screen of `cotenant top`: a line for each GPU, one for each container on it with what it has of its grant, and
// the processes on request. Pure; no line is wider than the terminal: the beginning of a name is cut off, then less
// important columns are left out.
import { excessOf } from '../../agent/enforcement/action-record.ts';
import type { RecentAction, Snapshot, SnapshotProcess } from '../../agent/snapshot/snapshot.ts';
import { oneCell, oneLine } from '../lib/text.ts';
import { endOf, fitted, startOf, type Yielding } from './columns.ts';
import { computeOf, containerName, isWell, mib, standing, stateOf, tenantName } from './node-table.ts';

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
/** Columns that are left out first: isolation (shortened before), compute. The beginning of the state is always shown. */
const OF_USERS: Yielding = { going: [{ column: 4, shortest: 7 }, 4, 3], name: 24, end: 21 };

/** A user of GPU memory: with a grant, allocated by others, or without any allocation. */
type User = {
  readonly gpuIndex: number | undefined;
  readonly name: string;
  readonly usedBytes: number | undefined;
  readonly limitBytes: number | undefined;
  readonly smPercent?: number | undefined;
  readonly compute: string;
  readonly isolation: string;
  readonly state: string;
  readonly isWell: boolean;
  readonly processes: readonly Omit<SnapshotProcess, 'inLedger'>[];
};

const percent = (value: number | undefined): string => (value === undefined ? '-' : `${Math.round(value)}%`);
const GIVEN = { exclusive: 'whole GPU', mig: 'instance', shared: "others' share" } as const;

const WITHOUT_GRANT = { limitBytes: undefined, isolation: 'none' };
const computeWithoutGrant = (smPercent: number | undefined) =>
  `${smPercent === undefined ? '-' : Math.round(smPercent)}/-`;

export function usersOf(snapshot: Snapshot): readonly User[] {
  return [
    ...snapshot.containers.map(
      (one): User => ({
        gpuIndex: one.gpuIndex,
        name: tenantName(one),
        usedBytes: one.memoryKnown ? one.usedBytes : undefined,
        limitBytes: one.limitBytes,
        smPercent: one.smPercent,
        compute: computeOf(one),
        isolation: one.fence,
        state: stateOf(one),
        isWell: isWell(one),
        processes: one.processes,
      }),
    ),
    ...snapshot.assigned.map(
      (one): User => ({
        ...one,
        ...WITHOUT_GRANT,
        compute: computeWithoutGrant(one.smPercent),
        name: containerName(one),
        state: GIVEN[one.mode],
        isWell: true,
      }),
    ),
    ...snapshot.foreign.map(
      (one): User => ({
        ...one,
        ...WITHOUT_GRANT,
        compute: computeWithoutGrant(one.smPercent),
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
  const head = ['GPU', 'MODEL', 'USED/USABLE MiB', 'BUSY', 'TEMP', 'POWER', 'CONTAINERS', 'FAULT'];
  return fitted([head, ...rows], ['right', 'left', 'right', 'right', 'right', 'right', 'right'], width, OF_GPUS);
}

/** In an order; with `first` those with something wrong before it. */
export function userLines(
  snapshot: Snapshot,
  { sort, processes, width }: Look,
  first: 'wrong' | 'any' = 'any',
): readonly string[] {
  const head = ['GPU', 'CONTAINER', 'USED/GRANT MiB', 'COMPUTE %', 'ISOLATION', 'STATE'];
  const rows = usersOf(snapshot)
    .toSorted((a, b) => (first === 'wrong' ? Number(a.isWell) - Number(b.isWell) : 0) || ORDERS[sort](a, b))
    .flatMap((user) => [
      [
        String(user.gpuIndex ?? '-'),
        user.name,
        `${mib(user.usedBytes)}/${mib(user.limitBytes)}`,
        user.compute,
        user.isolation,
        user.state,
      ],
      ...(processes ? processRows(user, sort) : []),
    ]);
  return fitted([head, ...rows], ['right', 'left', 'right', 'right'], width, OF_USERS);
}

function processRows(user: User, sort: Sort): readonly (readonly string[])[] {
  const first = sort === 'sm' ? 'smPercent' : 'usedBytes';
  return user.processes
    .toSorted((a, b) => falling(a[first], b[first]) || a.pid - b.pid)
    .map(({ pid, command, usedBytes, smPercent }) => [
      '',
      `  ${pid} ${command}`,
      mib(usedBytes),
      smPercent === undefined ? '-' : String(Math.round(smPercent)),
      '',
      '',
    ]);
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
  const before = [
    startOf(oneLine(head), look.width),
    startOf(standing(snapshot), look.width),
    '',
    ...gpuLines(snapshot, look.width),
    '',
  ];
  const after = ['', ...snapshot.recent.slice(-ACTIONS).map((action) => actionLine(action, snapshot, look.width))];
  const users = userLines(snapshot, look);
  // The cursor has the last line.
  const room = (look.height ?? Number.POSITIVE_INFINITY) - 1 - before.length - after.length;
  const shown = users.length <= room ? room : Math.max(LEAST_USERS, room - 1);
  if (users.length <= shown) return [...before, ...users, ...after];
  const more = startOf(`… ${users.length - shown} more lines; those with a problem are first`, look.width);
  return [...before, ...userLines(snapshot, look, 'wrong').slice(0, shown), more, ...after];
}

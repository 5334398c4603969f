// What the families of other exporters have in common: their units, who is alone on a card, and a bound on single processes.
import type { View, ViewContainer, ViewDevice, ViewProcess } from '../../view.ts';
import { MOST_PROCESSES } from '../families/process.ts';

export const toMib = (bytes: number | undefined): number | undefined =>
  bytes === undefined ? undefined : bytes / 2 ** 20;

export type CompatContext = {
  /** Where their label for the node gets its value. */
  readonly nodeName: string;
};

/** A container on a card, by a grant or by others' word. */
export type Holder = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly mode: string;
  readonly gpuUuid: string;
  readonly gpuIndex: number;
  readonly usedBytes: number | undefined;
  /** Undefined: the driver did not tell. */
  readonly smPercent?: number | undefined;
  readonly lastActiveMs: number | undefined;
  readonly processes: readonly Omit<ViewProcess, 'inLedger'>[];
  /** With a grant only. */
  readonly grant: ViewContainer | undefined;
};

export function holdersOf(view: View): readonly Holder[] {
  return [
    ...view.containers.map((grant) => ({
      ...grant,
      mode: 'shared',
      usedBytes: grant.bytesTold ? grant.usedBytes : undefined,
      grant,
    })),
    ...view.assigned.map((entry) => ({ ...entry, grant: undefined })),
  ];
}

export const deviceOf = (view: View, gpuUuid: string): ViewDevice | undefined =>
  view.devices.find(({ card }) => card.uuid === gpuUuid);

/** The largest of the node: what has a series per process must not grow with what tenants start. */
export function largestProcesses(holders: readonly Holder[]) {
  return holders
    .flatMap((holder) => holder.processes.map((one) => ({ holder, one })))
    .toSorted((a, b) => (b.one.usedBytes ?? 0) - (a.one.usedBytes ?? 0))
    .slice(0, MOST_PROCESSES);
}

/** Names of processes are tenants' text; labels of these families hold no more than a name. */
export const plainName = (command: string): string => command.replace(/[^A-Za-z0-9._-]/g, '_');

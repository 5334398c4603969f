// Who uses a card: the processes of a sample with what each has there. Pure.
import type { SampledCard, SampledProcess, SampledUse } from './sample.ts';

export type ProcessState = {
  readonly pid: number;
  readonly startTicks: number;
  readonly command: string;
  readonly cgroup: string;
  /** Undefined: the driver does not tell. */
  readonly usedBytes: number | undefined;
  readonly smPercent: number;
  readonly types: number;
};

/** By the driver's list of them; the server is in the list of compute alone. */
export const isMpsClient = ({ types }: Pick<ProcessState, 'types'>): boolean => (types & 4) !== 0;

/** A container on one card. */
export type Using = { readonly process: SampledProcess; readonly use: SampledUse };

export const onCard = (process: SampledProcess, card: SampledCard): SampledUse | undefined =>
  process.cards.find((use) => use.card === card.index && use.listed);

/** Those of these that are on the card now. */
export const usingOf = (processes: readonly SampledProcess[], card: SampledCard | undefined): readonly Using[] =>
  processes.flatMap((process) => {
    const use = card && onCard(process, card);
    return use ? [{ process, use }] : [];
  });

export const processState = ({ process, use }: Using): ProcessState => ({
  pid: process.pid,
  startTicks: process.startTicks ?? 0,
  command: process.command ?? '',
  cgroup: process.cgroup ?? '',
  usedBytes: use.bytes,
  smPercent: use.smPercent,
  types: use.types,
});

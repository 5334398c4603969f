// A grant of this node with its open files and what the agent last read and wrote of it.
import type { LedgerReading } from '../os/addon.ts';
import type { GrantFiles } from './files.ts';
import type { Grant } from './grant.ts';
import type { Beat } from './heartbeat.ts';

/** What calibration measured on a GPU; limits pages carry it. 0: not measured. */
export type GpuProfile = {
  readonly contextBytes: number;
  readonly granuleBytes: number;
  readonly releasesLate: boolean;
  /** The GPU's total memory by CUDA, without what the driver keeps. Absent: measured by an older build. */
  readonly usableBytes?: number;
};
export const UNMEASURED: GpuProfile = { contextBytes: 0, granuleBytes: 0, releasesLate: false };

export type LiveGrant = GrantFiles & {
  grant: Grant;
  /** In the state folder; limits page and ledger of a process grant lie in it, too. */
  readonly folder: string;
  gateClosed: boolean;
  /** Its launches are scheduled by the arbiter, through the lease page. */
  leased: boolean;
  /** Increases when its ledger and lease page are created again. */
  ledgerTurn: number;
  /** The last reading of its ledger. */
  reading: LedgerReading | undefined;
  /** What its limits page was last written with. */
  beat: Beat | undefined;
};

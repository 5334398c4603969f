// Writes to the limits pages of live grants: amounts, GPU profiles, gate, leases and feedback. A page that cannot be
// written now is written at the next sample; nothing else may fail because of it.
import type { Logger } from '../../common/logger.ts';
import type { Feedback, Native } from '../os/addon.ts';
import { SLOTS } from './files.ts';
import type { Grant } from './grant.ts';
import { isDue } from './heartbeat.ts';
import type { GpuProfile, LiveGrant } from './live-grant.ts';

/** What `Native.writePage` takes for a grant, but for the engine. */
export const pageContent = (
  grant: Grant,
  leased: boolean,
  profileOf: (gpuUuid: string) => GpuProfile,
): Omit<Parameters<Native['writePage']>[1], 'engine'> => ({
  slots: SLOTS,
  isolateMemory: grant.isolateMemory,
  compute: true,
  leased,
  gpus: grant.gpus.map((gpu) => ({
    uuid: gpu.gpuUuid,
    memoryBytes: gpu.limitBytes,
    coresPercent: gpu.coresPercent,
    ...profileOf(gpu.gpuUuid),
  })),
});

type PageWriter = {
  /** Heartbeat, gate and lease, where they changed or a heartbeat is due. */
  touch(entry: LiveGrant): void;
  /** What the driver's figures say of the ledger's rows, and a heartbeat. */
  writeFeedback(entry: LiveGrant, entries: readonly Feedback[]): void;
  rewrite(entry: LiveGrant): void;
};

export function createPageWriter(options: {
  readonly native: Native;
  readonly pageOf: (grant: Grant) => Omit<Parameters<Native['writePage']>[1], 'engine'>;
  readonly log: Pick<Logger, 'warn'>;
}): PageWriter {
  const { native, pageOf, log } = options;
  const write = (entry: LiveGrant, use: (fd: number) => void): void => {
    try {
      entry.page.write(use);
    } catch (error) {
      const { namespace, pod } = entry.grant;
      log.warn(`cannot write the limits page of ${namespace}/${pod}: ${(error as Error).message}`);
    }
  };
  const touch = (entry: LiveGrant): void => {
    if (!isDue(entry.beat, entry)) return;
    write(entry, (fd) => {
      native.touchPage(fd, entry.gateClosed, entry.leased);
      entry.beat = { readNs: entry.reading?.readNs, gateClosed: entry.gateClosed, leased: entry.leased };
    });
  };
  return {
    touch,
    writeFeedback(entry, entries) {
      if (entries.length > 0) write(entry, (fd) => native.writeFeedback(fd, entry.grant.gpus.length, entries));
      touch(entry);
    },
    rewrite: (entry) => write(entry, (fd) => native.writePage(fd, pageOf(entry.grant))),
  };
}

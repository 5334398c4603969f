// Rebuilds samples from the sampler's lines, each of which says only what changed since the line before. A line that
// does not fit the ones before it makes all later lines of that sampler unusable: the next sampler starts with a full
// line.

import { err, ok, type Result } from '../../common/result.ts';
import { parseLine, type SampleLine, type UtilizationCursor } from './line-schema.ts';
import type { Sample, SampledProcess } from './sample.ts';

export type SampleDecoder = {
  /** The sample after this line, or why this line, and each one after it, cannot be used. */
  read(line: string): Result<Sample>;
  /** Up to when the newest sample counts each GPU's utilization. */
  utilizationCursors(): readonly UtilizationCursor[];
};

/** Its entry identifies the process, or says that it ended before anything of it could be read. */
const isIdentified = ({ startTicks, gone }: SampledProcess): boolean => startTicks !== undefined || gone === true;
/** Fields that an entry without identity must not have. */
const IDENTITY_FIELDS = ['gone', 'command', 'cgroup', 'pidNamespace', 'namespacePid', 'ancestors'] as const;

/**
 * For the lines of one sampler, from its first one on. `before`: the processes in the last sample of the sampler before
 * it, from whose utilization cursors it continues: of a process that has ended since, it knows only the PID.
 */
export function createSampleDecoder(before: readonly SampledProcess[] = []): SampleDecoder {
  const known = new Map<number, SampledProcess>();
  let processes: readonly SampledProcess[] = [];
  let rounds = 0;
  let refused: Result<Sample> | undefined;
  let cursors: readonly UtilizationCursor[] = [];

  /** In the first line, a PID without identity is the process that had it in the last sample of the sampler before. */
  const identified = (entry: SampledProcess): SampledProcess => {
    const last = rounds === 1 && entry.startTicks === undefined && before.find(({ pid }) => pid === entry.pid);
    return last && last.startTicks !== undefined ? { ...last, gone: true, gpus: entry.gpus } : entry;
  };

  /** Applies a line to the known processes; returns what does not fit. */
  const apply = ({ processes: changed, removedPids, processCount }: SampleLine): string | undefined => {
    let isOtherSet = removedPids.length > 0;
    for (const [index, pid] of removedPids.entries())
      if (!known.delete(pid)) return `removedPids[${index}]: process ${pid} is in no line before`;
    let last = 0;
    for (const [index, entry] of changed.entries()) {
      const earlier = known.get(entry.pid);
      if (entry.pid <= last) return `processes[${index}]: PID ${entry.pid} follows ${last}: want ascending PIDs`;
      last = entry.pid;
      if (isIdentified(entry)) {
        isOtherSet ||= earlier === undefined;
        known.set(entry.pid, identified(entry));
      } else if (earlier === undefined || IDENTITY_FIELDS.some((name) => entry[name] !== undefined))
        return `processes[${index}]: want startTicks, or gone: no line before identifies process ${entry.pid}`;
      else known.set(entry.pid, { ...earlier, gpus: entry.gpus });
    }
    if (known.size !== processCount) return `processCount: ${processCount}, but the lines so far have ${known.size}`;
    if (isOtherSet) processes = [...known.values()].sort((a, b) => a.pid - b.pid);
    else if (changed.length > 0) processes = processes.map((process) => known.get(process.pid) ?? process);
    return undefined;
  };

  const decode = (text: string): Result<Sample> => {
    const read = parseLine(text);
    if (!read.ok) return read;
    const line = read.value;
    if (line.round !== rounds + 1) return err(`round: ${line.round} follows ${rounds}`);
    rounds = line.round;
    const wrong = apply(line);
    if (wrong !== undefined) return err(wrong);
    const { removedPids: _, processCount: __, utilizationCursors, ...sample } = line;
    cursors = utilizationCursors;
    return ok({ ...sample, processes });
  };

  return {
    read(text) {
      if (refused) return refused;
      const decoded = decode(text);
      if (!decoded.ok) refused = decoded;
      return decoded;
    },
    utilizationCursors: () => cursors,
  };
}

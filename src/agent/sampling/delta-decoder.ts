// Samples from what a sampler prints. A line tells what is other than in the line before, so it is worth nothing by itself:
// whatever does not add up is refused, and all that follows with it, until another sampler begins with all there is.

import { parseLine, type SampleLine, type UsedUntil } from './line-schema.ts';
import type { Sample, SampledProcess } from './sample.ts';

export type Refused = { readonly wrong: string };

export type SampleReader = {
  /** The sample after this line, or why there is none, and will be none of this sampler. */
  read(line: string): Sample | Refused;
  /** Up to where the newest sample tells of each GPU's use. */
  usedUntil(): readonly UsedUntil[];
};

/** Its entry says who it is: of a process of which nothing could be read, that it is gone. */
const isWhole = ({ startTicks, gone }: SampledProcess): boolean => startTicks !== undefined || gone === true;
/** These may not stand without that. */
const PARTS = ['gone', 'command', 'cgroup', 'pidNamespace', 'namespacePid', 'ancestors'] as const;

/**
 * For the lines of one sampler, from its first one on. `before`: processes as the sampler before it told of them last, where this
 * one goes on: of who has ended since it knows nothing but its pid.
 */
export function createSampleReader(before: readonly SampledProcess[] = []): SampleReader {
  const known = new Map<number, SampledProcess>();
  let processes: readonly SampledProcess[] = [];
  let rounds = 0;
  let refused: Refused | undefined;
  let usedUntil: readonly UsedUntil[] = [];

  /** In its first line, of who is gone, who that was: none but its own use is told of it. */
  const named = (entry: SampledProcess): SampledProcess => {
    const last = rounds === 1 && entry.startTicks === undefined && before.find(({ pid }) => pid === entry.pid);
    return last && last.startTicks !== undefined ? { ...last, gone: true, gpus: entry.gpus } : entry;
  };

  /** Takes in what a line says of processes; undefined: it adds up. */
  const follow = ({ processes: told, left, total }: SampleLine): string | undefined => {
    let others = left.length > 0;
    for (const [index, pid] of left.entries())
      if (!known.delete(pid)) return `left[${index}]: process ${pid} was not told of`;
    let last = 0;
    for (const [index, entry] of told.entries()) {
      const earlier = known.get(entry.pid);
      if (entry.pid <= last) return `processes[${index}]: process ${entry.pid} stands behind ${last}: want them by pid`;
      last = entry.pid;
      if (isWhole(entry)) {
        others ||= earlier === undefined;
        known.set(entry.pid, named(entry));
      } else if (earlier === undefined || PARTS.some((part) => entry[part] !== undefined))
        return `processes[${index}]: want startTicks, or gone: who process ${entry.pid} is was not told`;
      else known.set(entry.pid, { ...earlier, gpus: entry.gpus });
    }
    if (known.size !== total) return `total: ${total} processes are told of, ${known.size} are known`;
    if (others) processes = [...known.values()].sort((a, b) => a.pid - b.pid);
    else if (told.length > 0) processes = processes.map((process) => known.get(process.pid) ?? process);
    return undefined;
  };

  return {
    read(text) {
      if (refused) return refused;
      const line = parseLine(text);
      if ('wrong' in line) refused = line;
      else if (line.round !== rounds + 1) refused = { wrong: `sample.round: ${line.round} follows ${rounds}` };
      else {
        rounds = line.round;
        const wrong = follow(line);
        if (wrong === undefined) {
          const { left: _, total: __, usedUntil: until, ...sample } = line;
          usedUntil = until;
          return { ...sample, processes };
        }
        refused = { wrong };
      }
      return refused;
    },
    usedUntil: () => usedUntil,
  };
}

// Whether a machine had processors left for a test: what it takes beside others' work is the machine's, and no fault.
import { cpus } from 'node:os';

/** Of the processors' time. With less of it idle, a rate or a wait is the machine's. */
export const LEAST_IDLE = 0.05;

/** Returns what reads the part of the processors' time, of the whole machine, that was idle since. */
export function countIdle(): () => number {
  const read = () =>
    cpus().reduce(
      (sum, { times }) => ({
        idle: sum.idle + times.idle,
        all: sum.all + Object.values(times).reduce((one, other) => one + other, 0),
      }),
      { idle: 0, all: 0 },
    );
  const begun = read();
  return () => {
    const now = read();
    return (now.idle - begun.idle) / Math.max(1, now.all - begun.all);
  };
}

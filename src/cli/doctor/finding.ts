// What `cotenant doctor` says of one thing that it looked at, and how that is shown.
import { oneLine } from '../lib/text.ts';

type Status = 'ok' | 'warn' | 'fail';

export type Finding = {
  readonly status: Status;
  readonly check: string;
  /** For programs: stays the same where the sentences change. */
  readonly reason: string;
  readonly found: string;
  /** What to do about it; absent: nothing. */
  readonly todo?: string;
};

/** Builds the findings of one check. */
export const checkOf = (check: string) => ({
  ok: (reason: string, found: string): Finding => ({ status: 'ok', check, reason, found }),
  warn: (reason: string, found: string, todo: string): Finding => ({ status: 'warn', check, reason, found, todo }),
  fail: (reason: string, found: string, todo: string): Finding => ({ status: 'fail', check, reason, found, todo }),
});

export function findingLines(findings: readonly Finding[]): readonly string[] {
  const width = Math.max(...findings.map(({ check }) => check.length));
  const counted = (status: Status) => findings.filter((one) => one.status === status).length;
  return [
    ...findings.flatMap(({ status, check, reason, found, todo }) => [
      `${status.padEnd(4)}  ${check.padEnd(width)}  ${oneLine(found)} [${reason}]`,
      ...(todo === undefined ? [] : [`${' '.repeat(6)}${oneLine(todo)}`]),
    ]),
    '',
    `${counted('ok')} ok, ${counted('warn')} warn, ${counted('fail')} fail`,
  ];
}

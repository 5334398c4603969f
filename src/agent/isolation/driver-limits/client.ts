// The program cotenant-limits, which reads and sets the driver's memory limits for cgroups: its commands and answers.
import type { DriverLimit } from '../../../policy/isolation.ts';
import type { HelperRunner } from '../../os/helper-process.ts';

export type LimitAnswer = Partial<DriverLimit> & { readonly result: number };
export type LimitPlace = { readonly gpuUuid: string; readonly folder: string };

/** NVML result codes. */
export const NOT_SUPPORTED = 3;
export const NOT_FOUND = 6;
/** The driver has no such limits. */
export const FUNCTION_NOT_FOUND = 13;
const TIMEOUT_MS = 20_000;

export const getLine = ({ gpuUuid, folder }: LimitPlace): string => `get ${gpuUuid} ${folder}`;
/** `hardBytes` undefined: no limit. */
export const setLine = ({ gpuUuid, folder }: LimitPlace, hardBytes: number | undefined): string =>
  `set ${gpuUuid} 0 ${hardBytes ?? 'max'} ${folder}`;

/** One answer for each line; undefined: the driver is released. Rejects with the program's error. */
export async function askDriverLimits(
  tools: Pick<HelperRunner, 'run'>,
  nvmlLibrary: string,
  lines: readonly string[],
): Promise<readonly LimitAnswer[] | undefined> {
  if (lines.length === 0) return [];
  const { LD_PRELOAD: _, ...env } = process.env;
  const answer = await tools.run({
    program: 'cotenant-limits',
    args: ['--library', nvmlLibrary],
    env,
    timeoutMs: TIMEOUT_MS,
    input: lines.map((line) => `${line}\n`).join(''),
  });
  if (!answer) return undefined;
  if (answer.problem !== undefined) throw new Error(answer.stderr.trim() || answer.problem);
  const answers = answer.stdout.trim().split('\n');
  if (answers.length !== lines.length) throw new Error('the program did not answer each command');
  return answers.map((line) => JSON.parse(line) as LimitAnswer);
}

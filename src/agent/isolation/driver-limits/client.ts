// The driver's limits of memory for cgroups as cotenant-limits asks for and sets them: its commands, its answers.
import type { DriverLimit } from '../../../policy/isolation.ts';
import type { HelperRunner } from '../../os/helper-process.ts';

export type LimitAnswer = Partial<DriverLimit> & { readonly result: number };
export type LimitPlace = { readonly gpuUuid: string; readonly folder: string };

/** NVML's. */
export const NOT_SUPPORTED = 3;
export const NOT_FOUND = 6;
/** The driver has no such limits. */
export const FUNCTION_NOT_FOUND = 13;
const TIMEOUT_MS = 20_000;

export const getLine = ({ gpuUuid, folder }: LimitPlace): string => `get ${gpuUuid} ${folder}`;
/** `hardBytes` undefined: none. */
export const setLine = ({ gpuUuid, folder }: LimitPlace, hardBytes: number | undefined): string =>
  `set ${gpuUuid} 0 ${hardBytes ?? 'max'} ${folder}`;

/** One answer to each line; undefined: there were none, for the driver is given up. Rejects with what the program says. */
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
  if (answers.length !== lines.length) throw new Error('it did not answer each question');
  return answers.map((line) => JSON.parse(line) as LimitAnswer);
}

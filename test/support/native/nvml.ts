// The scripted NVML program of test/native/programs/scripted/nvml.c: reads one command, prints one answer.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { BUILD, environment, type SimulatedNode, type Teardown } from './node.ts';

export const NVML = {
  SUCCESS: 0,
  INVALID_ARGUMENT: 2,
  NOT_SUPPORTED: 3,
  NO_PERMISSION: 4,
  NOT_FOUND: 6,
  INSUFFICIENT_SIZE: 7,
  FUNCTION_NOT_FOUND: 13,
  VERSION_MISMATCH: 25,
} as const;

export type NvmlAnswer = {
  readonly result: number;
  /** The count after the call. */
  readonly count: number;
  /** Bytes were written beyond the array, or although the call failed. */
  readonly spilled: boolean;
  readonly rows: readonly (readonly number[])[];
};
export type NvmlClient = { ask(command: string): Promise<NvmlAnswer>; end(): Promise<void> };

/** `within`: a command that runs the program; `program`: another one than nvml.c, with its own commands. */
export function startNvml(
  t: Teardown,
  node: SimulatedNode,
  preload?: string,
  within: readonly string[] = [],
  program = 'nvml',
): NvmlClient {
  const env = environment({ PATH: process.env.PATH ?? '', LD_LIBRARY_PATH: node.lib }, preload);
  const [file = '', ...args] = [...within, join(BUILD, 'tests', program)];
  const child = spawn(file, args, { env, stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  child.stdin.on('error', () => {}); // it may have ended
  const exited = once(child, 'exit');
  const end = async () => {
    child.stdin.end();
    await exited;
  };
  t.teardown(end);
  return {
    async ask(command) {
      child.stdin.write(`${command}\n`);
      const { value, done } = await lines.next();
      if (done) throw new Error(`the NVML program ended at: ${command}`);
      return JSON.parse(String(value)) as NvmlAnswer;
    },
    end,
  };
}

/** An initialized program with the handle of the first GPU. */
export async function readyNvml(
  t: Teardown,
  node: SimulatedNode,
  preload?: string,
  within?: readonly string[],
): Promise<NvmlClient> {
  const client = startNvml(t, node, preload, within);
  const { result } = await client.ask('init');
  if (result !== NVML.SUCCESS) throw new Error(`nvmlInit: ${result}`);
  return client;
}

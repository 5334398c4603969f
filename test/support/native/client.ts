// The scripted CUDA program of test/native/programs/scripted/client.c: reads one command, prints one answer. The test
// can send commands, let it exit or kill it.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { BUILD, environment, type SimulatedNode, type Teardown } from './node.ts';

export const OUT_OF_MEMORY = 2;

export type Client = {
  readonly pid: number;
  readonly child: ChildProcess;
  /** The driver's result code, then the returned values. */
  ask(command: string): Promise<number[]>;
  /** Fails the test unless the result is success; returns the first value. */
  must(command: string): Promise<number>;
  kill(signal?: NodeJS.Signals): Promise<void>;
  end(): Promise<number>;
};

export type ClientOptions = {
  readonly env?: Record<string, string>;
  readonly preload?: string;
  readonly library?: string;
  /** A command that runs the client, such as unshare. */
  readonly within?: readonly string[];
};

export function startClient(t: Teardown, node: SimulatedNode, options: ClientOptions = {}): Client {
  const variables = { PATH: process.env.PATH ?? '', LD_LIBRARY_PATH: node.lib, ...options.env };
  const env = environment(variables, options.preload);
  const library = options.library ? [options.library] : [];
  const [file = '', ...args] = [...(options.within ?? []), join(BUILD, 'tests/client'), ...library];
  const child = spawn(file, args, { env, stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  child.stdin.on('error', () => {}); // it may have ended
  const exited = once(child, 'exit') as Promise<[number | null, NodeJS.Signals | null]>;
  const kill = async (signal: NodeJS.Signals = 'SIGKILL') => {
    if (child.exitCode === null && child.signalCode === null) child.kill(signal);
    await exited;
  };
  let unanswered = 0;
  t.teardown(async () => {
    // A process that is killed is not checked for leaks; one in the middle of a command would not read that it is to end.
    if (process.env.COTENANT_SANITIZER_PRELOAD && unanswered === 0) {
      child.stdin.end();
      await Promise.race([exited, delay(3000, undefined, { ref: false })]);
    }
    await kill();
  });
  const ask = async (command: string): Promise<number[]> => {
    child.stdin.write(`${command}\n`);
    unanswered += 1;
    const { value, done } = await lines.next();
    unanswered -= 1;
    if (done) {
      const [code, signal] = await exited;
      throw new Error(`the client ended (${signal ?? code}) at: ${command}`);
    }
    return String(value).split(' ').map(Number);
  };
  return {
    pid: child.pid ?? 0,
    child,
    ask,
    async must(command) {
      const [result, value = 0] = await ask(command);
      if (result !== 0) throw new Error(`${command}: the driver answered ${result}`);
      return value;
    },
    kill,
    async end() {
      child.stdin.end();
      const [code] = await exited;
      return code ?? -1;
    },
  };
}

/** A client that has initialized CUDA and made the primary context of a device current. */
export async function readyClient(
  t: Teardown,
  node: SimulatedNode,
  options: ClientOptions = {},
  device = 0,
): Promise<Client> {
  const client = startClient(t, node, options);
  await client.must('init');
  await client.must(`context ${device}`);
  return client;
}

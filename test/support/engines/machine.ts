// A machine without Kubernetes for a test: simulated GPUs, an agent with a slices file, and containers that are talked
// to through their standard streams.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { SliceState } from '../../../src/agent/containers/slices.ts';
import { ask } from '../../../src/cli/lib/agent-client.ts';
import { eventually, type SimulatedNode, startNode, type Teardown, temporaryFolder } from '../native/node.ts';
import { type RunningAgent, startAgent } from '../product/agent.ts';
import { MAIN } from '../product/cli.ts';
import { writeNvidiaSpec } from './image.ts';

export type Machine = {
  readonly node: SimulatedNode;
  /** Of CDI files. */
  readonly cdi: string;
  readonly slicesFile: string;
  agent(): RunningAgent;
  /** After the agent was ended. */
  restart(): Promise<void>;
  slices(): Promise<readonly SliceState[]>;
  /** Writes the slices file and waits until each of these devices has a grant. */
  write(text: string, ...devices: readonly string[]): Promise<void>;
};

export async function startMachine(t: Teardown, ...gpus: readonly string[]): Promise<Machine> {
  const node = await startNode(t, ...gpus.flatMap((gpu) => ['--gpu', gpu]));
  const cdi = writeNvidiaSpec(t, node, gpus.length);
  const slicesFile = join(temporaryFolder(t), 'slices.yaml');
  const state = join(temporaryFolder(t), 'state');
  const start = () =>
    startAgent(t, node, {
      state,
      settings: { 'slices.file': slicesFile, 'slices.cdiFolders': cdi, canary: false, intervalMs: 200 },
    });
  let agent = await start();
  await agent.measured(gpus.length);
  const slices = async () => (await ask(state, 'GET', '/v1/slices')).body as readonly SliceState[];
  return {
    node,
    cdi,
    slicesFile,
    agent: () => agent,
    async restart() {
      agent = await start();
    },
    slices,
    async write(text, ...devices) {
      writeFileSync(slicesFile, text);
      const isGranted = ({ device, grantId }: SliceState) => grantId !== undefined && devices.includes(device);
      await eventually(
        async () => (await slices()).filter(isGranted).length === devices.length || undefined,
        `slices ${devices.join(', ')}`,
      );
    },
  };
}

export type Talk = {
  readonly child: ChildProcess;
  readonly ended: Promise<number | null>;
  readonly errors: string[];
  /** The result of the driver and the values of the client's answer to this command. */
  tell(command: string): Promise<readonly number[]>;
};

/** A program with the scripted client in it. */
export function talk(t: Teardown, program: string, args: readonly string[], env: Record<string, string> = {}): Talk {
  const child = spawn(program, args, { env: { ...process.env, ...env }, stdio: ['pipe', 'pipe', 'pipe'] });
  const errors: string[] = [];
  createInterface({ input: child.stderr }).on('line', (line) => errors.push(line));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  child.stdin.on('error', () => {});
  const ended = once(child, 'exit').then(([code]) => code as number | null);
  t.teardown(async () => {
    child.stdin.end();
    await ended;
  });
  return {
    child,
    ended,
    errors,
    async tell(command) {
      child.stdin.write(`${command}\n`);
      const { value, done } = await lines.next();
      if (done) throw new Error(`${program} ended: ${errors.join('\n')}`);
      return String(value).split(' ').map(Number);
    },
  };
}

/** `cotenant ENGINE run …`, with that engine first on the PATH. */
export function talkByWrapper(t: Teardown, machine: Machine, bin: string, args: readonly string[]): Talk {
  const env = { PATH: `${bin}:${process.env.PATH}`, COTENANT_STATE: machine.agent().state };
  return talk(t, process.execPath, [MAIN, ...args], env);
}

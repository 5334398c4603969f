// A full node: containers with grants of a running agent, each with processes that hold memory of one GPU.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { GrantAnswer, GrantBody } from '../../../src/agent/admin-api.ts';
import { loadNative } from '../../../src/agent/os/addon.ts';
import { ask, errorOf } from '../../../src/cli/lib/agent-client.ts';
import { BUILD, type SimulatedNode, type Teardown } from '../../support/native/node.ts';
import type { RunningAgent } from '../../support/product/agent.ts';

const MIB = 2 ** 20;

export type Load = {
  /** From now on one of its processes runs a kernel of 1 ms once a second. */
  work(): void;
};

export type ContainerLoad = {
  readonly name: string;
  readonly gpu: number;
  readonly processes: number;
  readonly contextBytes: number;
  /** Its processes run without the interposer. */
  readonly bypass?: boolean;
};

/** One container on a GPU with so many processes. It has its grant before its program starts, as `cotenant run`
 * does. */
export async function startContainer(
  scope: Teardown,
  node: SimulatedNode,
  agent: RunningAgent,
  { name, gpu, processes, contextBytes, bypass = false }: ContainerLoad,
): Promise<Load> {
  // A shell that waits for a line of input: the owner of the grant exists before the grant that its program is started with.
  const args = [join(BUILD, 'bench/holders'), String(processes), '0', String(4 * MIB)];
  const preload = bypass ? '' : 'LD_PRELOAD="$folder" ';
  const script = `read folder; ${preload}CUDA_VISIBLE_DEVICES="$GPU" exec "$0" "$@"`;
  const child = spawn('/bin/sh', ['-c', script, ...args], {
    env: { LD_LIBRARY_PATH: node.lib, GPU: node.uuid(gpu) },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  scope.teardown(async () => {
    child.kill('SIGKILL');
    await exited;
  });
  const facts = loadNative().readProcess(child.pid ?? 0);
  if (!facts) throw new Error('the owner of a grant has ended');
  const body: GrantBody = {
    name,
    container: 'main',
    shares: [{ memory: { kind: 'bytes', bytes: processes * (contextBytes + 64 * MIB) }, coresPercent: 5 }],
    gpuUuids: [node.uuid(gpu)],
    isolateMemory: true,
    pid: child.pid ?? 0,
    startTicks: facts.startTicks,
  };
  const answer = await ask(agent.state, 'POST', '/v1/grants', body);
  if (answer.status !== 201) throw new Error(`no grant: ${errorOf(answer)}`);
  child.stdin.write(`${(answer.body as GrantAnswer).preload}\n`);
  const [line] = await Promise.race([
    once(createInterface({ input: child.stdout }), 'line'),
    exited.then(([code]) => Promise.reject(new Error(`holders ended with ${code}`))),
  ]);
  if (line !== 'holding') throw new Error(`holders said ${line}`);
  return { work: () => void child.stdin.write('\n') };
}

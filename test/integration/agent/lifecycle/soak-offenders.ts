// The containers of soak-inside.ts that take more memory than they may, each in one of the ways that there are.
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { unifiedMount } from '../../../../src/agent/os/cgroup.ts';
import { type Span, startWatch, stopping, type Watched } from '../../../support/machine/scheduling-delays.ts';
import { BUILD, eventually, type SimulatedNode, type Teardown } from '../../../support/native/node.ts';
import { type RunningAgent, type RunningTenant, runTenant, tell } from '../../../support/product/agent.ts';

const CLIENT = join(BUILD, 'tests/client');
const DODGE = ['env', '-u', 'LD_PRELOAD'];
/** From which processes of the soak take their pids, too few to be left alone for long; a signal that comes late meets
 * another one. */
export const PIDS = ['5000', '5180'];
const WITHIN = [join(BUILD, 'tests/run_in_pid_range'), ...PIDS];
const GRANT = '256Mi';
const OVER = 512 * 2 ** 20;
const LOOK_EVERY_MS = 100;
/** How `cotenant run` ends then. */
const NO_GRANT = 125;
/** PIDs and mounts that no other process sees. */
export const OWN_NAMESPACES = ['unshare', '--pid', '--fork', '--kill-child', '--mount', '--mount-proc'];

/**
 * Writes noise over the container's ledger, all slots of it, while the other goes on. The pause is the offender's own
 * pace, some twenty times a second: no process waits for anything by it.
 */
const SCRIBBLE = `first=\${LD_PRELOAD%% *} && ledger=\${first%/*}/ledger && unset LD_PRELOAD && test -w "$ledger" &&
  while sleep 0.05; do dd if=/dev/urandom of="$ledger" bs=4096 count=32 conv=notrunc 2>/dev/null; done </dev/null >/dev/null &
  unset LD_PRELOAD; exec "$0"`;

export type Offender = {
  readonly name: string;
  readonly kind: string;
  /** `taken`: since its first byte over was asked for. */
  readonly ended: Promise<{ readonly code: number | null; readonly taken: Watched }>;
};

/** Who takes the memory, once it runs. */
type Taker = { ask(command: string): Promise<unknown> };
type Site = { readonly scope: Teardown; readonly node: SimulatedNode; readonly agent: RunningAgent };
type TakerOf = (site: Site, tenant: RunningTenant, name: string) => Taker | Promise<Taker>;

const inOwn: TakerOf = (_, tenant) => ({ ask: (command) => tell(tenant, command) });

/** A process of the host that joins the container's group, so that what it takes is the container's. */
const joined: TakerOf = async ({ scope, node, agent }, tenant, name) => {
  for (const order of ['init', 'context 0']) await tell(tenant, order);
  const { pid, gpu } = await eventually(async () => {
    const container = (await agent.snapshot())?.containers.find(({ pod }) => pod === name);
    const [first] = container?.processes ?? [];
    return container && first && { pid: first.pid, gpu: container.gpuUuid };
  }, 'it is seen on its GPU');
  const group = /^0::(.*)$/m.exec(readFileSync(`/proc/${pid}/cgroup`, 'utf8'))?.[1] ?? '';
  const script = `echo 0 >"${unifiedMount()}${group}/cgroup.procs" && exec "$@"`;
  const child = spawn('/bin/sh', ['-c', script, '', ...WITHIN, CLIENT], {
    // On the GPU of the grant: another one is none of its container's.
    env: { ...process.env, LD_LIBRARY_PATH: node.lib, CUDA_VISIBLE_DEVICES: gpu },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  scope.teardown(() => void child.kill('SIGKILL'));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  child.stdin.on('error', () => {});
  return {
    async ask(command) {
      child.stdin.write(`${command}\n`);
      return (await lines.next()).value;
    },
  };
};

const KINDS: readonly (readonly [kind: string, command: readonly string[], takerOf: TakerOf])[] = [
  ['without the interposer', [...WITHIN, ...DODGE, CLIENT], inOwn],
  ['in namespaces of its own', [...WITHIN, ...OWN_NAMESPACES, ...DODGE, CLIENT], inOwn],
  ['by a process of the host that joins it', [CLIENT], joined],
  ['while another one writes over its ledger', [...WITHIN, '/bin/sh', '-c', SCRIBBLE, CLIENT], inOwn],
];

/**
 * Starts the one of this index, which takes its turn of the ways, and resolves once it has asked for more than it may.
 * `blind`: when no container can be stopped, as far as it is known when this one has ended.
 */
export async function offend(site: Site, index: number, blind: readonly Span[]): Promise<Offender> {
  const name = `offender-${index}`;
  const [kind, command, takerOf] = KINDS[index % KINDS.length] as (typeof KINDS)[number];
  const { tenant, taker } = await eventually(() => begin(site, name, command, takerOf), 'it has a grant', 60_000);
  const watch = startWatch(stopping(site.agent.child, site.node.child), LOOK_EVERY_MS);
  const ended = tenant.ended.then(({ code }) => ({ code, taken: watch(blind) }));
  await taker.ask(`alloc ${OVER}`).catch(() => {}); // it may be stopped before it answers
  return { name, kind, ended };
}

/** With a context, and nothing more than it may have. Undefined: there is no grant to be had while the driver does not
 * answer. */
async function begin(
  site: Site,
  name: string,
  command: readonly string[],
  takerOf: TakerOf,
): Promise<{ readonly tenant: RunningTenant; readonly taker: Taker } | undefined> {
  const { scope, node, agent } = site;
  const tenant = runTenant(scope, node, agent, ['--gpu-memory', GRANT, '--name', name], command);
  try {
    const taker = await takerOf(site, tenant, name);
    for (const order of ['init', 'context 0']) await taker.ask(order);
    return { tenant, taker };
  } catch (error) {
    const end = await Promise.race([tenant.ended, delay(LOOK_EVERY_MS)]);
    if (end?.code === NO_GRANT) return undefined;
    const mentions = agent.log.filter((line) => line.includes(name)).join('\n');
    throw new Error(`${name} was to take nothing yet, and ended: ${JSON.stringify(end)}; the agent: ${mentions}`, {
      cause: error,
    });
  }
}

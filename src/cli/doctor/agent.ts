// Asks this machine's agent how it is: whether it answers, has the driver, and its GPUs are well.
import type { Snapshot, SnapshotDevice } from '../../agent/snapshot/snapshot.ts';
import { ask, errorOf } from '../lib/agent-client.ts';
import { UsageError } from '../lib/command.ts';
import { checkOf, type Finding } from './finding.ts';

export async function agentFindings(folder: string, nowMs: number): Promise<readonly Finding[]> {
  const { warn, fail } = checkOf('agent');
  try {
    const answer = await ask(folder, 'GET', '/v1/status');
    if (answer.status !== 200) return [fail('agent-error', errorOf(answer), 'look into its log')];
    const snapshot = answer.body as Snapshot | null;
    if (snapshot === null) return [warn('agent-starting', 'it has no sample yet', 'try again in a second')];
    return [stateOf(snapshot, nowMs), ...snapshot.devices.flatMap(gpuFindings)];
  } catch (error) {
    if (!(error instanceof UsageError)) throw error;
    return [warn('agent-absent', error.message, 'without it nothing is granted on this machine')];
  }
}

const LATE_MS = 60_000;

function stateOf({ self, atMs, devices, containers }: Snapshot, nowMs: number): Finding {
  const { ok, warn, fail } = checkOf('agent');
  const what = `${self.version}, mode ${self.mode}`;
  if (!self.driverHeld)
    return warn(
      'driver-released',
      `${what}: the driver is given up, no container is watched`,
      'run "cotenant driver take"',
    );
  if (!self.up || nowMs - atMs > LATE_MS)
    return fail(
      'agent-stale',
      `${what}: ${self.problem ?? 'the driver does not answer'}`,
      "look into the agent's log and nvidia-smi",
    );
  if (self.mode !== 'enforce')
    return warn(
      'agent-lenient',
      `${what}: what exceeds its grant is not stopped`,
      'set enforcement.mode to enforce where tenants do not trust each other',
    );
  return ok(
    'agent-up',
    `${what}, ${devices.length} GPU(s), ${new Set(containers.map(({ grantId }) => grantId)).size} grant(s)`,
  );
}

function gpuFindings({ gpu, fault, fences }: SnapshotDevice): readonly Finding[] {
  const { ok, warn, fail } = checkOf(`GPU ${gpu.index}`);
  if (!gpu.healthy) return [fail('gpu-lost', `${gpu.uuid} is lost to the driver`, 'drain the node and reset the GPU')];
  if (fault)
    return [
      fail(
        'gpu-fault',
        `${gpu.uuid} is cordoned for Xid ${fault.xid}`,
        'docs/operate/faults.md says what the Xid needs',
      ),
    ];
  const broken = Object.entries(fences).filter(([, verdict]) => verdict?.result === 'fails');
  if (broken.length > 0)
    return [
      warn(
        'limits-do-not-hold',
        `${gpu.uuid}: ${broken.map(([name, verdict]) => `${name}: ${verdict?.why}`).join('; ')}`,
        'docs/operate/enforcement.md, The canary',
      ),
    ];
  return [ok('gpu-healthy', `${gpu.uuid}, ${gpu.name}`)];
}

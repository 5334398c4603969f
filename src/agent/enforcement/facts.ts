// What one sample shows of one container, as src/policy/enforcement.ts needs it: figures of the driver, processes that
// a stop was sent to, and other containers whose memory is about to be released.

import type { Mode } from '../../api/request.ts';
import type { EnforcementFacts, EnforcementPolicy, EnforcementState } from '../../policy/enforcement.ts';
import type { MemoryEvidence } from '../../policy/memory-evidence.ts';
import { judge, type MemoryVerdict, type Tolerance, type Verdict } from '../../policy/memory-verdict.ts';
import type { Stop } from '../../policy/stop-rate.ts';
import { judgedUses } from '../usage/container-usage.ts';
import type { ContainerState, NodeState } from '../usage/node-usage.ts';
import { keyOf } from './targets.ts';

/** How long the memory of a stopped container is waited for, before another one is stopped because the GPU is full. */
const RELEASE_MS = 5000;

type Moment = {
  readonly node: NodeState;
  /** The states of all grants of the node. */
  readonly states: ReadonlyMap<string, EnforcementState>;
  readonly recentStops: readonly Stop[];
  readonly nowMs: number;
  readonly sampleAgeMs: number;
  readonly policy: EnforcementPolicy;
};

export function factsOf(container: ContainerState, mode: Mode, moment: Moment): EnforcementFacts {
  const { node, states, recentStops, nowMs, sampleAgeMs, policy } = moment;
  const { grant, gpus, verdict } = container;
  const { signaled } = states.get(grant.id) ?? {};
  const afterSignal = signaled && {
    holdsMemory: gpus.some(({ processes }) => processes.some((process) => signaled.has(keyOf(process)))),
    verdict: verdictWithout(container, signaled, node, policy),
  };
  const worst = [verdict, afterSignal?.verdict].flatMap((one) => worstGpu(one) ?? []);
  const evidence = new Map(
    worst.flatMap((gpuUuid) => {
      const found = evidenceOn(gpuUuid, container, node);
      return found === undefined ? [] : [[gpuUuid, found] as const];
    }),
  );
  return {
    nowMs,
    sampleAgeMs,
    mode,
    isComplete: container.allGpusKnown,
    verdict,
    holdsMemory: gpus.some(({ usedBytes }) => usedBytes > 0),
    ...(afterSignal && { afterSignal }),
    evidence,
    releasing: new Set(worst.filter((gpuUuid) => isReleasing(gpuUuid, container, moment))),
    grant: { id: grant.id, namespace: grant.namespace },
    recentStops,
  };
}

const worstGpu = (verdict: Verdict | undefined): string | undefined =>
  verdict === undefined || verdict.severity === 'within' ? undefined : verdict.worst.gpuUuid;

/** Was another container on that GPU stopped so recently that its memory may still come back? */
const isReleasing = (gpuUuid: string, { grant: { id } }: ContainerState, { node, states, nowMs }: Moment): boolean =>
  node.containers.some(({ grant, gpus }) => {
    if (grant.id === id) return false;
    const ladder = states.get(grant.id)?.ladder;
    const isStopped = ladder?.rung === 'killed' && nowMs - ladder.rungSinceMs < RELEASE_MS;
    return isStopped && gpus.some((gpu) => gpu.gpuUuid === gpuUuid);
  });

/** Undefined where the driver does not report how much of the GPU is in use. */
function evidenceOn(
  gpuUuid: string,
  { grant: { id }, gpus }: ContainerState,
  { containers, devices, sample }: NodeState,
): MemoryEvidence | undefined {
  const gpu = devices.find((entry) => entry.gpu.uuid === gpuUuid)?.gpu;
  if (gpu?.usedBytes === undefined) return undefined;
  const own = gpus.find((entry) => entry.gpuUuid === gpuUuid)?.processes ?? [];
  const allBytes = sample.processes
    .flatMap((process) => process.gpus)
    .filter((use) => use.gpu === gpu.index && use.listed)
    .reduce((sum, use) => sum + (use.bytes ?? 0), 0);
  // A ledger counts only in favor of other containers, and for no more than its container was granted and does not
  // show.
  const unlistedBytes = containers
    .filter(({ grant }) => grant.id !== id)
    .flatMap((other) => other.gpus.filter((entry) => entry.gpuUuid === gpuUuid))
    .reduce((sum, { ledger, limitBytes, usedBytes }) => {
      const unusedBytes = Math.max(0, limitBytes - usedBytes);
      return sum + Math.min(ledger.managedBytes, unusedBytes);
    }, 0);
  return {
    own: own.map(({ usedBytes = 0, inLedger }) => ({ bytes: usedBytes, inLedger })),
    allBytes,
    usedBytes: gpu.usedBytes,
    unlistedBytes,
  };
}

/** The verdict on those of a container's processes that the last signal was not sent to. */
function verdictWithout(
  { grant, gpus }: ContainerState,
  signaled: ReadonlySet<string>,
  { sample }: NodeState,
  tolerance: Tolerance,
): MemoryVerdict {
  if (!grant.isolateMemory) return { severity: 'within' };
  const rest = gpus.map((gpu) => {
    const ending = gpu.processes.filter((process) => signaled.has(keyOf(process)));
    const sum = (of: typeof ending) => of.reduce((total, { usedBytes = 0 }) => total + usedBytes, 0);
    const bypass = ending.filter(({ inLedger }) => !inLedger);
    return { ...gpu, usedBytes: gpu.usedBytes - sum(ending), bypassBytes: gpu.bypassBytes - sum(bypass) };
  });
  return judge(judgedUses(sample, grant, rest), tolerance);
}

// Stops a container: finds its processes, signals them, and finds and signals again those that were forked meanwhile.
// Each process is checked again when it is signaled (targets.ts). Writes the audit log's begin line and the termination
// message first.
import type { Logger } from '../../common/logger.ts';
import type { Verdict } from '../../policy/memory-verdict.ts';
import type { ContainerIndex } from '../attribution/container-index.ts';
import type { GrantMounts } from '../attribution/grant-mounts.ts';
import type { Grant } from '../grants/grant.ts';
import type { Native } from '../os/addon.ts';
import { unifiedMount } from '../os/cgroup.ts';
import type { ContainerState } from '../usage/node-usage.ts';
import { describe, type Outcome, recordOf } from './action-record.ts';
import type { Audit } from './audit-log.ts';
import { findTargets, keyOf, killTargets, type Signaled, signalTargets, type Target } from './targets.ts';

const SIGTERM = 15;
/** A fork can escape one round; a cgroup is killed as a whole. */
const MOST_ROUNDS = 10;

export type StopPods = {
  readonly containers: Pick<ContainerIndex, 'nameOf'>;
  /** Containers without a pod, by the grants that they mount. */
  readonly mounts?: Pick<GrantMounts, 'processesWith'>;
  /** Writes the container's termination message: only possible while the container is there. */
  readonly beforeStop: (grant: Grant, message: string) => void;
};

type StopResult = {
  readonly outcome: Outcome;
  readonly hit: readonly Signaled[];
  /** Keys of all processes that are expected to end. */
  readonly signaled: ReadonlySet<string>;
};

type Stopper = (container: ContainerState, kind: 'terminate' | 'kill', verdict: Verdict, atMs: number) => StopResult;

export function createStopper({
  native,
  audit,
  pods,
  log,
}: {
  readonly native: Native;
  readonly audit: Pick<Audit, 'begin'>;
  readonly pods: StopPods | undefined;
  readonly log: Pick<Logger, 'warn'>;
}): Stopper {
  const mount = unifiedMount();

  return ({ grant, gpus }, kind, verdict, atMs) => {
    const sampled: Target[] = gpus.flatMap((gpu) => gpu.processes);
    const hit: Signaled[] = [];
    const reached = new Set<string>();
    pods?.beforeStop(grant, describe(grant, kind, verdict));
    const remaining = (): Target[] => {
      try {
        const all = findTargets(grant, native, sampled, pods?.containers, pods?.mounts);
        return all.filter((target) => !reached.has(keyOf(target)));
      } catch (error) {
        // Processes that were signaled already must still be recorded and counted.
        if (hit.length === 0) throw error;
        log.warn(
          `not all processes of ${grant.namespace}/${grant.pod} could be found: ${(error as Error).stack ?? error}`,
        );
        return [];
      }
    };
    for (let round = 0; round < MOST_ROUNDS; round++) {
      const targets = remaining();
      if (targets.length === 0) break;
      if (round === 0) {
        const begun = targets.map((target) => ({ ...target, result: 'not known' }));
        audit.begin(recordOf({ grant, action: kind, verdict, atMs, result: 'begun', processes: begun }));
      }
      if (kind === 'terminate') {
        hit.push(...signalTargets(targets, native, SIGTERM));
        break;
      }
      const killed = killTargets(grant, targets, { native, mount, containers: pods?.containers });
      hit.push(...killed.hit);
      if (killed.whole) break;
      // A process takes time to end, which another signal would not shorten.
      for (const target of killed.hit) if (target.result !== 'moved') reached.add(keyOf(target));
    }
    return { outcome: outcomeOf(hit), hit, signaled: new Set([...sampled, ...hit].map(keyOf)) };
  };
}

function outcomeOf(hit: readonly Signaled[]): Outcome {
  if (hit.some(({ result }) => result === 'sent')) return 'sent';
  return hit.every(({ result }) => result === 'gone' || result === 'reused') ? 'none-left' : 'refused';
}

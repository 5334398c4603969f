// Use by GPU and container as the agent of a node reports it, for the commands that ask a cluster. Pure.
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';
import type { Mode } from '../../api/request.ts';
import type { EffectiveMode } from '../../policy/mode.ts';
import { given } from '../../request/rules/namespace-rules.ts';

export type ContainerUse = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly gpuUuid: string;
  readonly usedBytes?: number;
  /** Of the GPU's compute, 0 to 1. */
  readonly smRatio?: number;
  readonly fence?: string;
  /** More than its grant, where memory isolation is off; absent: none, or unknown. */
  readonly aboveGrantBytes?: number;
  /** Its launches that were let go, as work in flight might wait for them; absent: none. */
  readonly relieved?: number;
  readonly enforcement?: EffectiveMode;
};

export type KnownUse = {
  readonly known: true;
  /** Bytes in use, by the GPU's UUID. */
  readonly gpus: ReadonlyMap<string, number>;
  readonly containers: readonly ContainerUse[];
  /** Those without a grant. */
  readonly foreign: readonly ContainerUse[];
  /** Those whose pod is gone from the API server, while the agent holds their grant. */
  readonly ofGonePods: readonly GoneHolder[];
  /** The node's enforcement mode. */
  readonly mode: Mode;
};

export type GoneHolder = ContainerUse & {
  readonly grantedBytes: number;
  /** At the latest: an agent that was restarted learns it anew. */
  readonly goneSince: string;
};

/** `short` fits into a column, `why` is the sentence. */
export type UnknownUse = {
  readonly known: false;
  readonly short: 'no agent' | 'no answer' | 'forbidden' | 'not asked' | 'no driver';
  readonly why: string;
};

export type Use = KnownUse | UnknownUse;

export function useOf({ self, devices, containers, foreign }: Snapshot): Use {
  if (!self.up) return { known: false, short: 'no driver', why: 'its driver does not answer' };
  return {
    known: true,
    mode: self.mode,
    gpus: new Map(devices.flatMap(({ gpu }) => (gpu.usedBytes === undefined ? [] : [[gpu.uuid, gpu.usedBytes]]))),
    containers: containers.map(({ namespace, pod, container, gpuUuid, fence, enforcement, compute, ...one }) => ({
      ...{ namespace, pod, container, gpuUuid, fence, enforcement },
      ...given({
        usedBytes: one.memoryKnown ? one.usedBytes : undefined,
        aboveGrantBytes:
          !one.isolateMemory && one.memoryKnown ? Math.max(0, one.usedBytes - one.limitBytes) || undefined : undefined,
        smRatio: one.smPercent === undefined ? undefined : one.smPercent / 100,
        relieved: compute?.relieved || undefined,
      }),
    })),
    ofGonePods: containers.flatMap(({ podGoneSinceMs, limitBytes, ...one }) => {
      if (podGoneSinceMs === undefined) return [];
      const { namespace, pod, container, gpuUuid, memoryKnown, usedBytes } = one;
      const goneSince = new Date(podGoneSinceMs).toISOString();
      const used = given({ usedBytes: memoryKnown ? usedBytes : undefined });
      return { namespace, pod, container, gpuUuid, ...used, grantedBytes: limitBytes, goneSince };
    }),
    foreign: foreign.map(({ namespace, pod, container, gpuUuid, usedBytes }) => ({
      ...{ namespace, pod, container, gpuUuid },
      ...given({ usedBytes }),
    })),
  };
}

/** Of one container; undefined: the agent does not report it, or does not answer. `gpuUuid` absent: on any GPU. */
export const useOn = (
  use: Use | undefined,
  of: Pick<ContainerUse, 'namespace' | 'pod' | 'container'> & { readonly gpuUuid?: string },
): ContainerUse | undefined =>
  use?.known
    ? use.containers.find(
        (one) =>
          one.namespace === of.namespace &&
          one.pod === of.pod &&
          one.container === of.container &&
          (of.gpuUuid === undefined || one.gpuUuid === of.gpuUuid),
      )
    : undefined;

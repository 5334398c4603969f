// Reports containers with a grant that the container runtime created without their GPUs because the agent did not
// answer its NRI call. Each container is reported once, also across restarts of the agent, when a sample shows none of
// its processes on a GPU. A container with a process on a GPU has its GPUs and is not reported.
import { join } from 'node:path';
import * as v from 'valibot';
import type { Logger } from '../../common/logger.ts';
import { listOf } from '../../common/schema.ts';
import { openStateFile, type StateFormat } from '../../common/state-file.ts';
import type { ContainerIndex } from '../attribution/container-index.ts';
import { knownOwnerOf } from '../os/cgroup.ts';
import type { Snapshot } from '../snapshot/snapshot.ts';
import type { ProcessState } from '../usage/gpu-processes.ts';
import type { NriContainer } from './nri/plugin.ts';

export type MissedContainer = Omit<NriContainer, 'terminationLog'>;

type MissedContainers = {
  /** Ignored for a container that has its GPUs. */
  add(container: MissedContainer): void;
  /** `processesOf`: those on the GPUs of a grant. */
  after(
    snapshot: Pick<Snapshot, 'self' | 'containers'>,
    processesOf: (grantId: string) => readonly Pick<ProcessState, 'cgroup'>[],
  ): void;
};

/** Stored ids: more than a node has containers. */
const MAX_IDS = 1000;
const MAX_ID_CHARS = 256;

const ids = listOf(v.pipe(v.string(), v.maxLength(MAX_ID_CHARS, 'a container id')), 0, MAX_IDS);

/** Ids of containers, newest last. `usedGpu`: those that were created without their GPUs and used one nevertheless. */
const REPORTS = v.object({ reported: ids, usedGpu: ids });
export const WITHOUT_GPUS_FORMAT: StateFormat<v.InferOutput<typeof REPORTS>> = { version: 2, schema: REPORTS };

/** False: the process belongs to an earlier container. With a sandboxed runtime the cgroup does not show the
 * container. */
function mayBelongTo(container: MissedContainer, { cgroup }: Pick<ProcessState, 'cgroup'>): boolean {
  const podOf = (id: string) => (id === container.containerId ? container.podUid : undefined);
  const { containerId = container.containerId } = knownOwnerOf(cgroup, podOf);
  return containerId === container.containerId;
}

type MissedContainersOptions = {
  readonly stateFolder: string;
  readonly log: Logger;
  readonly containers: Pick<ContainerIndex, 'markMissed' | 'isMissed' | 'hasGpus'>;
  readonly report: (container: MissedContainer) => void;
};

export function openMissedContainers(options: MissedContainersOptions): MissedContainers {
  const { stateFolder, log, containers: index, report } = options;
  const file = openStateFile(join(stateFolder, 'without-gpus.json'), WITHOUT_GPUS_FORMAT, {
    lost: 'containers that were created without their GPUs are reported again',
    log,
    sync: false,
  });
  let { reported, usedGpu } = file.found ?? { reported: [], usedGpu: [] };
  /** By id: created without the agent's answer, and without a process on a GPU so far. */
  const candidates = new Map<string, MissedContainer>();
  return {
    add(container) {
      const { containerId } = container;
      if (!usedGpu.includes(containerId) && index.markMissed(containerId)) candidates.set(containerId, container);
    },
    after({ self, containers }, processesOf) {
      if (!self.up || candidates.size === 0) return;
      const [using, missing]: [string[], MissedContainer[]] = [[], []];
      for (const [id, container] of candidates) {
        const rows = containers.filter(({ containerId }) => containerId === id);
        if (!index.isMissed(id)) candidates.delete(id);
        else if (rows.some(({ grantId }) => processesOf(grantId).some((process) => mayBelongTo(container, process)))) {
          index.hasGpus(id);
          using.push(id);
          candidates.delete(id);
        } else if (rows.some(({ withoutGpus }) => withoutGpus) && !reported.includes(id)) missing.push(container);
      }
      if (missing.length + using.length === 0) return;
      for (const container of missing) report(container);
      reported = [...reported, ...missing.map(({ containerId }) => containerId)].slice(-MAX_IDS);
      usedGpu = [...usedGpu, ...using].slice(-MAX_IDS);
      try {
        file.write({ reported, usedGpu });
      } catch (error) {
        log.warn(`cannot save the list of containers reported without GPUs: ${(error as Error).message}`);
      }
    },
  };
}

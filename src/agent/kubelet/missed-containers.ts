// Containers with a share that the runtime made without their GPUs: each is told of once, with the first sample that shows nothing
// of it on a GPU, by whichever agent comes to it first; whoever was seen on a GPU has its GPUs from then on. Owns what is
// remembered of both, also over restarts; who it is, is the runtime's word, and what the page says of them is the snapshot's.
import { join } from 'node:path';
import { field } from '../../common/json.ts';
import { openStateFile, type StateFormat } from '../../common/state-file.ts';
import type { ContainerBook } from '../attribution/container-index.ts';
import type { PassedBy } from '../node-api.ts';
import { knownOwnerOf } from '../os/cgroup.ts';
import type { Snapshot } from '../snapshot/snapshot.ts';
import type { ProcessState } from '../usage/gpu-processes.ts';

export type PassedByBook = {
  /** Of one that has its GPUs: nothing. */
  add(container: PassedBy): void;
  /** `processesOf`: of a grant, those on its GPUs. */
  after(
    snapshot: Pick<Snapshot, 'self' | 'containers'>,
    processesOf: (grantId: string) => readonly Pick<ProcessState, 'cgroup'>[],
  ): void;
};

/** Those told of last: more than a node has containers. */
const MOST = 1000;
const LONGEST_ID = 256;

const isId = (value: unknown): value is string => typeof value === 'string' && value.length <= LONGEST_ID;

const isList = (value: unknown): value is string[] => Array.isArray(value) && value.length <= MOST && value.every(isId);

/** Ids of containers, the newest last: of whom it was told, and who was seen on a GPU though they had been passed by. */
export const WITHOUT_GPUS_FORMAT: StateFormat<{ readonly told: readonly string[]; readonly seen: readonly string[] }> =
  {
    version: 1,
    read(value) {
      // Agents before it was kept wrote none.
      const [told, seen = []] = [field(value, 'told'), field(value, 'seen')];
      if (!isList(told)) return { wrong: 'what was told is no list of containers' };
      return isList(seen) ? { told, seen } : { wrong: 'what was seen is no list of containers' };
    },
  };

/** Not if it is another one's: what is left of the container before it. Behind a sandboxed runtime nobody can tell. */
function mayBeOf(container: PassedBy, { cgroup }: Pick<ProcessState, 'cgroup'>): boolean {
  const podOf = (id: string) => (id === container.containerId ? container.podUid : undefined);
  const { containerId = container.containerId } = knownOwnerOf(cgroup, podOf);
  return containerId === container.containerId;
}

export type PassedByOptions = {
  readonly stateFolder: string;
  readonly onProblem: (text: string) => void;
  readonly containers: Pick<ContainerBook, 'passBy' | 'isPassedBy' | 'hasGpus'>;
  readonly tell: (container: PassedBy) => void;
};

export function openPassedBy({ stateFolder, onProblem, containers: book, tell }: PassedByOptions): PassedByBook {
  const lost = 'who is without its GPUs is told of again';
  const path = join(stateFolder, 'without-gpus.json');
  const file = openStateFile(path, WITHOUT_GPUS_FORMAT, { lost, onProblem, sync: false });
  let { told, seen } = file.found ?? { told: [], seen: [] };
  /** By id: passed by, and not seen on a GPU yet. */
  const doubted = new Map<string, PassedBy>();
  return {
    add(container) {
      const { containerId } = container;
      if (!seen.includes(containerId) && book.passBy(containerId)) doubted.set(containerId, container);
    },
    after({ self, containers }, processesOf) {
      if (!self.up || doubted.size === 0) return;
      const [using, news]: [string[], PassedBy[]] = [[], []];
      for (const [id, container] of doubted) {
        const gpus = containers.filter(({ containerId }) => containerId === id);
        if (!book.isPassedBy(id)) doubted.delete(id);
        else if (gpus.some(({ grantId }) => processesOf(grantId).some((process) => mayBeOf(container, process)))) {
          book.hasGpus(id);
          using.push(id);
          doubted.delete(id);
        } else if (gpus.some(({ withoutGpus }) => withoutGpus) && !told.includes(id)) news.push(container);
      }
      if (news.length + using.length === 0) return;
      for (const container of news) tell(container);
      told = [...told, ...news.map(({ containerId }) => containerId)].slice(-MOST);
      seen = [...seen, ...using].slice(-MOST);
      try {
        file.write({ told, seen });
      } catch (error) {
        onProblem(`of whom it was told that they are without GPUs is not kept: ${(error as Error).message}`);
      }
    },
  };
}

// Containers with a share that the runtime made without their cards: each is told of once, with the first sample that shows nothing
// of it on a card, by whichever agent comes to it first. Owns what is remembered of that, also over restarts; who it is, is the
// runtime's word, and what the page says of them is the view's.
import { join } from 'node:path';
import { field } from '../request/json.ts';
import type { PassedBy } from './node-types.ts';
import { openStateFile, type StateFormat } from './state-file.ts';
import type { View } from './view.ts';

export type PassedByBook = {
  add(container: PassedBy): void;
  after(view: Pick<View, 'self' | 'containers'>): void;
};

/** Those told of last: more than a node has containers. */
const MOST = 1000;
const LONGEST_ID = 256;

const isId = (value: unknown): value is string => typeof value === 'string' && value.length <= LONGEST_ID;

export const WITHOUT_CARDS_FORMAT: StateFormat<{ readonly told: readonly string[] }> = {
  version: 1,
  read(value) {
    const told = field(value, 'told');
    return Array.isArray(told) && told.length <= MOST && told.every(isId)
      ? { told }
      : { wrong: 'what was told is no list of containers' };
  },
};

export type PassedByOptions = {
  readonly stateFolder: string;
  readonly onProblem: (text: string) => void;
  readonly tell: (container: PassedBy) => void;
};

export function openPassedBy({ stateFolder, onProblem, tell }: PassedByOptions): PassedByBook {
  const lost = 'who is without its cards is told of again';
  const path = join(stateFolder, 'without-cards.json');
  const file = openStateFile(path, WITHOUT_CARDS_FORMAT, { lost, onProblem, untilReboot: true });
  let told: readonly string[] = file.found?.told ?? [];
  const waiting = new Map<string, PassedBy>();
  return {
    add(container) {
      if (!told.includes(container.containerId)) waiting.set(container.containerId, container);
    },
    after({ self, containers }) {
      if (!self.up || waiting.size === 0) return;
      const without = new Set(containers.flatMap((one) => (one.withoutCards ? [one.containerId] : [])));
      const news = [...waiting.values()].filter(({ containerId }) => without.has(containerId));
      waiting.clear();
      if (news.length === 0) return;
      for (const container of news) tell(container);
      told = [...told, ...news.map(({ containerId }) => containerId)].slice(-MOST);
      try {
        file.write({ told });
      } catch (error) {
        onProblem(`of whom it was told that they are without cards is not kept: ${(error as Error).message}`);
      }
    },
  };
}

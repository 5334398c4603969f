// What `cotenant set` said of this node's compute, in the state folder: it outlives the agent. Owns the file.
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { field, isObject, isWithin } from '../../request/json.ts';
import type { ComputePolicy } from '../../request/request.ts';
import { COMPUTE_POLICIES } from '../../request/rules.ts';

export type NodeCompute = {
  readonly policy?: ComputePolicy;
  readonly cards: Readonly<Record<string, ComputePolicy>>;
  readonly highCapPercent?: number;
};
export const NOTHING_SET: NodeCompute = { cards: {} };

const VERSION = 1;

export function formatNodeCompute(compute: NodeCompute): string {
  return `${JSON.stringify({ version: VERSION, ...compute }, null, 2)}\n`;
}

export function parseNodeCompute(text: string): NodeCompute | { readonly wrong: string } {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { wrong: (error as Error).message };
  }
  if (field(value, 'version') !== VERSION) return { wrong: `it is not of version ${VERSION}` };
  const isPolicy = (given: unknown): given is ComputePolicy => COMPUTE_POLICIES.some((name) => name === given);
  const [policy, cards, cap] = [field(value, 'policy'), field(value, 'cards'), field(value, 'highCapPercent')];
  if (policy !== undefined && !isPolicy(policy)) return { wrong: 'its policy is none' };
  if (!isObject(cards) || !Object.values(cards).every(isPolicy)) return { wrong: 'its cards are no policies' };
  if (cap !== undefined && !isWithin(cap, 1, 100)) return { wrong: 'its highCapPercent is no percentage' };
  return {
    ...(policy && { policy }),
    cards: cards as Readonly<Record<string, ComputePolicy>>,
    ...(cap !== undefined && { highCapPercent: cap }),
  };
}

export type ComputeStore = {
  get(): NodeCompute;
  /** Throws where it cannot be kept: nothing has changed then. */
  put(compute: NodeCompute): void;
};

export function openComputeStore(stateFolder: string, onProblem: (text: string) => void): ComputeStore {
  const path = join(stateFolder, 'compute.json');
  const read = existsSync(path) ? parseNodeCompute(readFileSync(path, 'utf8')) : NOTHING_SET;
  if ('wrong' in read) onProblem(`${path} is passed over: ${read.wrong}`);
  let held = 'wrong' in read ? NOTHING_SET : read;
  return {
    get: () => held,
    put(compute) {
      writeFileSync(`${path}.new`, formatNodeCompute(compute), { mode: 0o644 });
      renameSync(`${path}.new`, path);
      held = compute;
    },
  };
}

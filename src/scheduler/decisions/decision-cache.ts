// Decisions about kinds of pods and nodes, kept until the node changes: bounded, the least recently used first to go.
// Numbers in typed arrays, 28 bytes each: a cluster of 5,000 nodes has kinds of pods by the hundred.
import type { Allocations } from '../../placement/allocations.ts';
import type { PodRefusal } from '../../placement/place-pod.ts';
import { type Cost, compareCosts } from '../../placement/score.ts';

/** Grants and sentences are computed again from the request where they are needed. */
export type Decided =
  | { readonly fits: true; readonly cost: Cost }
  | ({ readonly fits: false } & Pick<PodRefusal, 'summary' | 'distance' | 'temporary'>);
export type RefusedNode = Omit<Extract<Decided, { fits: false }>, 'fits'> & { readonly node: string };

/** What is decided about the nodes that were asked about, by their position. Until the next call. */
export type DecidedNodes = {
  /** Another one than before: nothing of what was decided before is kept. */
  readonly kind: object;
  /** How many fit of all that were ever asked about. */
  readonly fitting: number;
  /** From 0, the best of those; below 0: it does not fit. */
  rankAt(position: number): number;
  /** Of one that does not fit. */
  refusalAt(position: number): RefusedNode;
  nodeAt(rank: number): string;
};

/** All requests with the same amounts. By a node's number: */
type Kind = {
  /** Of the allocations that it was decided by. */
  version: number;
  /** UNKNOWN, or where it fits a number from 0, else that of the refusal, below UNKNOWN. */
  ranks: Int32Array;
  /** Where it fits the two parts of the cost, else `first` is the distance. */
  first: Float64Array;
  second: Float64Array;
  /** Nodes about which something is decided. */
  known: number;
  /** Nodes that can take it, best first. */
  readonly order: number[];
  /** Whether the ranks are positions in `order`. */
  isRanked: boolean;
};

type DecisionCache = {
  /** The decisions about these nodes for the request with this key. */
  decideAll(key: string, nodes: readonly string[], decide: (node: string) => Decided): DecidedNodes;
  /** The best of these nodes, found without looking at each of them; undefined: they must be. */
  best(key: string, nodes: readonly string[], decide: (node: string) => Decided): string | undefined;
  clear(): void;
  readonly size: { readonly requests: number; readonly decisions: number };
};

/** Places for decisions of all requests together, some 20 MiB. */
const MOST_DECISIONS = 750_000;
/** Of the best nodes, these are looked for among those asked about: each takes some 4 ns for each of them. */
const MOST_TRIED = 4;
/** Summaries are few, so that kube-scheduler can count equal ones. */
const MOST_REFUSALS = 1000;
const UNKNOWN = -1;
/** Of a node that has gone meanwhile. */
const NO_NODE = { summary: 'no GPU is shared', distance: 8, temporary: false };

export function createDecisionCache(allocations: Allocations): DecisionCache {
  /** By the request's key, the least recently used first. */
  const kinds = new Map<string, Kind>();
  let places = 0;
  /** Of nodes with shared GPUs: others come and go without a change of the allocations. */
  const numbers = new Map<string, number>();
  const nodes: { readonly name: string; readonly tie: number }[] = [];
  const refusals: Pick<PodRefusal, 'summary' | 'temporary'>[] = [];

  const drop = (key: string): void => {
    places -= kinds.get(key)?.ranks.length ?? 0;
    kinds.delete(key);
  };
  const clear = (): void => {
    for (const key of kinds.keys()) drop(key);
    numbers.clear();
    nodes.length = 0;
    refusals.length = 0;
  };

  const before = ({ first, second }: Kind, a: number, b: number): number => {
    const [costA, costB] = [costAt(first, second, a), costAt(first, second, b)];
    const [nodeA, nodeB] = [nodes[a], nodes[b]];
    if (!nodeA || !nodeB) return 0;
    return compareCosts(costA, costB) || nodeA.tie - nodeB.tie || (nodeA.name < nodeB.name ? -1 : 1);
  };
  /** Where it is in the order, or belongs. */
  const placeOf = (kind: Kind, number: number): number => {
    const { order } = kind;
    let [low, high] = [0, order.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const other = order[middle] ?? number;
      if (other !== number && before(kind, other, number) < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  /** A few by binary search, many by sorting all. */
  const insert = (kind: Kind, fresh: readonly number[]): void => {
    const { order } = kind;
    if (fresh.length === 0) return;
    kind.isRanked = false;
    if (fresh.length > 64) {
      for (const one of fresh) order.push(one);
      order.sort((a, b) => before(kind, a, b));
    } else for (const one of fresh) order.splice(placeOf(kind, one), 0, one);
  };

  const forget = (kind: Kind, node: string): void => {
    const number = numbers.get(node);
    const rank = number === undefined ? UNKNOWN : (kind.ranks[number] ?? UNKNOWN);
    if (number === undefined || rank === UNKNOWN) return;
    if (rank >= 0) {
      kind.order.splice(placeOf(kind, number), 1);
      kind.isRanked = false;
    }
    kind.ranks[number] = UNKNOWN;
    kind.known -= 1;
  };
  const empty = (): Kind => ({
    ...{ version: allocations.version, known: 0, order: [], isRanked: true },
    ...{ ranks: new Int32Array(0), first: new Float64Array(0), second: new Float64Array(0) },
  });
  /** Without the decisions about nodes that have changed; now the most recently used. */
  const kindOf = (key: string): Kind => {
    // Most are of nodes that are gone.
    if (nodes.length > 2 * allocations.nodes + 1000 || refusals.length > MOST_REFUSALS) clear();
    let kind = kinds.get(key) ?? empty();
    const changed = allocations.changedSince(kind.version);
    if (changed === undefined) {
      drop(key);
      kind = empty();
    }
    for (const node of changed ?? []) forget(kind, node);
    kind.version = allocations.version;
    kinds.delete(key);
    kinds.set(key, kind);
    return kind;
  };

  const numberOf = (node: string): number => {
    const known = numbers.get(node);
    if (known !== undefined) return known;
    numbers.set(node, nodes.length);
    return nodes.push({ name: node, tie: hashOf(node) }) - 1;
  };
  const refusalOf = (summary: string, temporary: boolean): number => {
    const known = refusals.findIndex((one) => one.summary === summary && one.temporary === temporary);
    return UNKNOWN - 1 - (known >= 0 ? known : refusals.push({ summary, temporary }) - 1);
  };
  const grow = (kind: Kind): void => {
    const length = nodes.length <= allocations.nodes ? allocations.nodes : nodes.length + 64;
    places += length - kind.ranks.length;
    const { ranks, first, second } = kind;
    kind.ranks = new Int32Array(length).fill(UNKNOWN);
    kind.first = new Float64Array(length);
    kind.second = new Float64Array(length);
    kind.ranks.set(ranks);
    kind.first.set(first);
    kind.second.set(second);
  };
  /** Returns whether it fits. */
  const put = (kind: Kind, number: number, decided: Decided): boolean => {
    if (number >= kind.ranks.length) grow(kind);
    const { fits } = decided;
    kind.ranks[number] = fits ? 0 : refusalOf(decided.summary, decided.temporary);
    kind.first[number] = fits ? decided.cost.first : decided.distance;
    kind.second[number] = fits ? decided.cost.second : 0;
    kind.known += 1;
    return fits;
  };

  /** The numbers of the nodes, and below 0 what was decided about those that share no GPU. */
  const decideEach = (key: string, names: readonly string[], decide: (node: string) => Decided) => {
    const kind = kindOf(key);
    const asked: number[] = [];
    const others: RefusedNode[] = [];
    const fitting: number[] = [];
    // A plain loop: it runs for each call of kube-scheduler over all nodes of the cluster.
    for (const name of names) {
      let number = numbers.get(name);
      if (number === undefined || (kind.ranks[number] ?? UNKNOWN) === UNKNOWN) {
        const decided = decide(name);
        if (allocations.placeableNode(name)) {
          number = numberOf(name);
          if (put(kind, number, decided)) fitting.push(number);
        } else {
          number = -others.push({ node: name, ...(decided.fits ? NO_NODE : decided) });
        }
      }
      asked.push(number);
    }
    insert(kind, fitting);
    for (const oldest of kinds.keys()) {
      if (places <= MOST_DECISIONS) break;
      drop(oldest);
    }
    return { kind, asked, others };
  };

  return {
    decideAll(key, names, decide) {
      const { kind, asked, others } = decideEach(key, names, decide);
      const { order, ranks, first } = kind;
      if (!kind.isRanked) for (let at = 0; at < order.length; at += 1) ranks[order[at] ?? 0] = at;
      kind.isRanked = true;
      const rankAt = (position: number) => ranks[asked[position] ?? UNKNOWN] ?? UNKNOWN;
      return {
        ...{ kind, fitting: order.length, rankAt },
        refusalAt(position) {
          const number = asked[position] ?? UNKNOWN;
          const refusal = refusals[UNKNOWN - 1 - rankAt(position)] ?? NO_NODE;
          return others[-1 - number] ?? { node: names[position] ?? '', ...refusal, distance: first[number] ?? 0 };
        },
        nodeAt: (rank) => nodes[order[rank] ?? 0]?.name ?? '',
      };
    },
    best(key, names, decide) {
      const changed = allocations.changedSince(kinds.get(key)?.version ?? Number.NEGATIVE_INFINITY);
      if (changed === undefined) return undefined;
      const { kind } = decideEach(key, [...changed], decide);
      // Of a node without a decision nothing is known, unless it shares no GPU.
      if (kind.known < allocations.nodes) return undefined;
      for (const number of kind.order.slice(0, MOST_TRIED)) {
        const { name = '' } = nodes[number] ?? {};
        if (names.includes(name)) return name;
      }
      return undefined;
    },
    clear,
    get size() {
      return { requests: kinds.size, decisions: [...kinds.values()].reduce((sum, { known }) => sum + known, 0) };
    },
  };
}

const costAt = (first: Float64Array, second: Float64Array, number: number): Cost => ({
  first: first[number] ?? 0,
  second: second[number] ?? 0,
});

/** FNV-1a, 31 bits. */
function hashOf(text: string): number {
  let hash = 0x811c9dc5;
  for (let at = 0; at < text.length; at += 1) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  return hash >>> 1;
}

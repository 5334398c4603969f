// What a canary's try to exceed a grant proves of the fence that it was behind, and what follows for a node. Pure.
const MIB = 1024 * 1024;

/** What a canary asks for of a grant of its context and `ROOM_BYTES`: one that fits, one that cannot. */
export const ROOM_BYTES = 64 * MIB;
export const WITHIN_BYTES = 2 * MIB;
export const BEYOND_BYTES = 65 * MIB;
/** All that it holds at a time where nothing refuses it, its context aside; with what a granule rounds up. */
export const MOST_TAKEN_BYTES = 128 * MIB;

const OUT_OF_MEMORY = 2;

/** What the program prints: results of the driver. */
export type CanaryFacts =
  | {
      readonly loaded: boolean;
      readonly within: number;
      /** By the way that the driver's function was found. */
      readonly beyond: Readonly<Record<string, number>>;
    }
  | { readonly loaded: boolean; readonly failed: string; readonly code: number };

/** `broken`: it did not come to print anything, and why. */
export type CanaryRun = CanaryFacts | { readonly broken: string };

/** `untried`: by no fault of the fence's, as far as can be told. */
export type CanaryResult = 'holds' | 'fails' | 'untried';
export type CanaryVerdict = { readonly result: CanaryResult; readonly why: string };

const holds: CanaryVerdict = { result: 'holds', why: '' };
const fails = (why: string): CanaryVerdict => ({ result: 'fails', why });

/**
 * `alone`: the same program behind no fence, where it is needed to tell the fence's fault from the card's: it was not, where
 * the answer is clear.
 */
export function verdictOf(run: CanaryRun, alone?: CanaryRun): CanaryVerdict {
  if (!('broken' in run) && !run.loaded) return fails('the interposer is not in the process');
  if ('within' in run) {
    const open = Object.entries(run.beyond).filter(([, code]) => code !== OUT_OF_MEMORY);
    const [[way, code] = ['', 0]] = open;
    if (open.length > 0)
      return fails(
        code === 0
          ? `a request beyond the grant succeeded (${way})`
          : `a request beyond the grant was answered with ${code} (${way})`,
      );
    if (run.within !== 0) return fails(`a request within the grant was answered with ${run.within}`);
    return holds;
  }
  const what = 'broken' in run ? run.broken : `${run.failed} failed with ${run.code}`;
  if (alone && 'within' in alone) return fails(`${what}; without the interposer it works`);
  return { result: 'untried', why: what };
}

/** Does it take a run without the fence to tell whose fault it is? */
export const isUnclear = (run: CanaryRun): boolean => 'broken' in run || (run.loaded && 'failed' in run);

/** For a condition: of the Node, or of whatever holds the cards. */
export type FenceState = {
  readonly status: 'True' | 'False' | 'Unknown';
  readonly reason: 'FencesHold' | 'FenceFails' | 'FenceNotTried';
  readonly message: string;
};

export type CardVerdict = { readonly gpuUuid: string; readonly verdict: CanaryVerdict | undefined };

/** Undefined: it is not known of every card yet, and nothing is wrong so far. */
export function fenceState(cards: readonly CardVerdict[]): FenceState | undefined {
  const told = (result: CanaryResult) =>
    cards.flatMap(({ gpuUuid, verdict }) => (verdict?.result === result ? [`${gpuUuid}: ${verdict.why}`] : []));
  const [failing, untried] = [told('fails'), told('untried')];
  if (failing.length > 0) return { status: 'False', reason: 'FenceFails', message: failing.join('; ') };
  if (cards.length === 0 || cards.some(({ verdict }) => verdict === undefined)) return undefined;
  if (untried.length > 0) return { status: 'Unknown', reason: 'FenceNotTried', message: untried.join('; ') };
  return { status: 'True', reason: 'FencesHold', message: 'what exceeds a grant is refused' };
}

// When a container takes more of a GPU's compute than a share that is a hard limit. Pure: counters of one look after the other
// in, verdict out. The driver samples who is on a GPU, so that only a time says something of a share; and a suspicion is put to
// the test, which no honest program fails: while its gate is closed it uses nothing.

/** One look at a container on one GPU. Counters in seconds, which only grow. */
export type ShareLook = {
  /** A clock that nobody sets back while looks are compared. */
  readonly atMs: number;
  /** Of the SMs, by the driver's samples. */
  readonly usedSeconds: number;
  /** By the arbiter: what it let pass. */
  readonly chargedSeconds: number;
  /** Its share, 0 to 1. */
  readonly limitRatio: number;
  readonly gateClosed: boolean;
  /** Times that the driver's samples had gaps. */
  readonly gaps: number;
};

/** Looks that belong together, oldest first. Nothing may have changed between them but the counters. */
export type ShareWatch = {
  readonly looks: readonly ShareLook[];
  readonly last: ShareLook;
  /** What it had when its gate was closed. */
  readonly suspected?: ShareUse;
  /** It was suspected, and passed the test or is in it. */
  readonly account?: ShareAccount;
};

/**
 * Of one suspicion after the other: since when, what it had used by then, how many there were, and when the last one was over.
 * Who only pauses while its gate is closed passes every test; from the second suspicion on the gate stays closed until it has had
 * no more than its share since the first one began.
 */
export type ShareAccount = {
  readonly fromMs: number;
  readonly usedSeconds: number;
  readonly suspicions: number;
  readonly openedMs: number;
};

/** What it had of a GPU over a time. */
export type ShareUse = {
  readonly gpuUuid: string;
  readonly limitRatio: number;
  readonly usedRatio: number;
  readonly chargedRatio: number;
  readonly seconds: number;
};

export type ShareVerdict =
  | { readonly severity: 'within' }
  /** soft: suspected. hard: it launches past its closed gate. */
  | { readonly severity: 'soft' | 'hard'; readonly reason: 'over-share'; readonly worst: ShareUse };

/** The shorter window; the longer one is ten times as long. */
export const DEFAULT_SHARE_SECONDS = 60;
const LONGER = 10;

/** Fewer than any driver takes: 6 or more. Each names one process, however many had the GPU meanwhile. */
const SAMPLES_PER_SECOND = 6;
/** A container is suspected wrongly less than once in e^21, which is a thousand million windows. */
const DOUBT = 21;
/** More than so long between two looks, and what passed meanwhile is not known. */
const LONGEST_STEP_MS = 10_000;
const LOOKS_PER_WINDOW = 30;
/** Of the shorter window: launches that were under way at the closing of the gate may take so long. */
const SETTLING = 1 / 6;
/** Likewise: shortest and longest time for which one is watched then. */
const SHORTEST_TEST = 1 / 20;
const LONGEST_TEST = 1 / 3;
/** Seconds of use that prove something: some samples of the driver's. */
const PROOF_SECONDS = 0.7;

/** `undefined` in: nothing was looked at before. */
export function watchShare(before: ShareWatch | undefined, look: ShareLook, windowSeconds: number): ShareWatch {
  if (!before || !follows(before.last, look)) return { looks: [look], last: look };
  const newest = before.looks.at(-1) as ShareLook;
  if (newest.gateClosed !== look.gateClosed) {
    const suspected = look.gateClosed ? suspicion(before, windowSeconds) : undefined;
    const account = suspected ? oneMore(before, suspected, windowSeconds) : openedAt(before.account, look);
    return { looks: [look], last: look, ...(suspected && { suspected }), ...(account && { account }) };
  }
  const stepMs = (windowSeconds * 1000) / LOOKS_PER_WINDOW;
  const oldestMs = look.atMs - (LONGER * windowSeconds * 1000 + 2 * stepMs);
  const isLong = (before.looks[0] as ShareLook).atMs < oldestMs;
  const kept = isLong ? before.looks.filter(({ atMs }) => atMs >= oldestMs) : before.looks;
  const { suspected, account } = before;
  return {
    looks: look.atMs - newest.atMs >= stepMs || kept.length === 0 ? [...kept, look] : kept,
    last: look,
    ...(suspected && { suspected }),
    ...(account && { account }),
  };
}

/** Long after the last one, a suspicion is the first again. */
function oneMore({ account, last }: ShareWatch, use: ShareUse, windowSeconds: number): ShareAccount {
  if (account && last.atMs - account.openedMs <= LONGER * windowSeconds * 1000)
    return { ...account, suspicions: account.suspicions + 1 };
  return {
    fromMs: last.atMs - use.seconds * 1000,
    usedSeconds: last.usedSeconds - use.usedRatio * use.seconds,
    suspicions: 1,
    openedMs: last.atMs,
  };
}

const openedAt = (account: ShareAccount | undefined, { gateClosed, atMs }: ShareLook): ShareAccount | undefined =>
  account && !gateClosed ? { ...account, openedMs: atMs } : account;

/** Has it had more than its share since it was suspected first? */
const owes = ({ account, last }: ShareWatch): boolean =>
  account !== undefined &&
  account.suspicions > 1 &&
  last.usedSeconds - account.usedSeconds > (last.limitRatio * (last.atMs - account.fromMs)) / 1000;

const follows = (last: ShareLook, look: ShareLook): boolean =>
  look.atMs >= last.atMs &&
  look.atMs - last.atMs <= LONGEST_STEP_MS &&
  look.limitRatio === last.limitRatio &&
  look.gaps === last.gaps &&
  look.usedSeconds >= last.usedSeconds &&
  look.chargedSeconds >= last.chargedSeconds;

/** `gpuUuid`: for the words of the verdict. */
export function judgeShare(gpuUuid: string, watch: ShareWatch, windowSeconds: number): ShareVerdict {
  const over = (severity: 'soft' | 'hard', use: ShareUse): ShareVerdict => ({
    severity,
    reason: 'over-share',
    worst: { ...use, gpuUuid },
  });
  if (watch.last.gateClosed) {
    if (!watch.suspected) return { severity: 'within' };
    const found = test(watch, watch.suspected, windowSeconds);
    return found === 'passed' && !owes(watch)
      ? { severity: 'within' }
      : over(found === 'failed' ? 'hard' : 'soft', watch.suspected);
  }
  const use = suspicion(watch, windowSeconds);
  return use ? over('soft', use) : { severity: 'within' };
}

/** Over the shorter window what the arbiter let pass is no fault: a long launch, for which it will wait. Over the longer one it
 * is, but for one launch: who says of itself that it is at work all the time would never be over. */
function suspicion(watch: ShareWatch, windowSeconds: number): ShareUse | undefined {
  if (watch.last.usedSeconds === watch.looks[0]?.usedSeconds) return undefined; // it has used nothing at all
  const shorter = useOver(watch, windowSeconds);
  if (!shorter) return undefined;
  const { limitRatio, usedRatio, chargedRatio } = shorter;
  if (usedRatio > shareSeenAs(Math.max(limitRatio, chargedRatio), shorter.seconds)) return shorter;
  const longer = useOver(watch, LONGER * windowSeconds);
  if (!longer) return undefined;
  return longer.usedRatio > shareSeenAs(longer.limitRatio, longer.seconds) + windowSeconds / longer.seconds
    ? longer
    : undefined;
}

/** Undefined: it has not been watched for so long. */
function useOver({ looks, last }: ShareWatch, seconds: number): ShareUse | undefined {
  const first = looks.findLast(({ atMs }) => atMs <= last.atMs - seconds * 1000);
  return first && useBetween(first, last);
}

function useBetween(first: ShareLook, last: ShareLook): ShareUse {
  const seconds = (last.atMs - first.atMs) / 1000;
  return {
    gpuUuid: '',
    limitRatio: last.limitRatio,
    usedRatio: (last.usedSeconds - first.usedSeconds) / seconds,
    chargedRatio: (last.chargedSeconds - first.chargedSeconds) / seconds,
    seconds,
  };
}

/**
 * What a share may at most look like in samples of so many seconds (Bernstein's inequality: it holds for small shares, too, where
 * a normal distribution says too little).
 */
export function shareSeenAs(ratio: number, seconds: number): number {
  const samples = SAMPLES_PER_SECOND * seconds;
  const variance = ratio < 1 ? ratio * (1 - ratio) : 0;
  return ratio + (DOUBT / 3 + Math.sqrt((DOUBT / 3) ** 2 + 2 * DOUBT * samples * variance)) / samples;
}

/** What it does with its gate closed, for as long as its use until then would have to show. */
function test(
  { looks, last }: ShareWatch,
  { usedRatio }: ShareUse,
  windowSeconds: number,
): 'passed' | 'failed' | 'going on' {
  const closedMs = looks[0]?.atMs ?? last.atMs;
  const settled = looks.find(({ atMs }) => atMs >= closedMs + SETTLING * windowSeconds * 1000);
  if (!settled) return 'going on';
  const uncharged = last.usedSeconds - settled.usedSeconds - (last.chargedSeconds - settled.chargedSeconds);
  if (uncharged >= PROOF_SECONDS) return 'failed';
  const needed = (2 * PROOF_SECONDS) / usedRatio;
  const seconds = Math.min(Math.max(needed, SHORTEST_TEST * windowSeconds), LONGEST_TEST * windowSeconds);
  return last.atMs - settled.atMs >= seconds * 1000 ? 'passed' : 'going on';
}

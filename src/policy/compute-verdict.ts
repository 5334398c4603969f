// Is a container over its compute share, where the share is a hard limit? Pure: counters of successive looks in,
// verdict out. The driver samples which process runs on the GPU, so only a long time shows a share; and a suspicion is
// tested before a stop: while its gate is closed a container must use nothing, which every program that keeps to the
// gate passes.

/** One look at a container on one GPU. Counters in seconds, which only grow. */
export type ShareLook = {
  /** By a monotonic clock. */
  readonly atMs: number;
  /** SM seconds by the driver's samples. */
  readonly usedSeconds: number;
  /** GPU seconds that the arbiter granted. */
  readonly chargedSeconds: number;
  /** Its share, 0 to 1. */
  readonly limitRatio: number;
  readonly gateClosed: boolean;
  /** How often the driver's samples had gaps. */
  readonly gaps: number;
};

/** Comparable looks, oldest first: only the counters changed between them. */
export type ShareWatch = {
  readonly looks: readonly ShareLook[];
  readonly last: ShareLook;
  /** Its use when its gate was closed. */
  readonly suspected?: ShareUse;
  /** It was suspected, and passed the test or is being tested. */
  readonly account?: ShareAccount;
};

/**
 * Successive suspicions: since when, the use at that time, their number, and when the last one ended. A program that
 * pauses while its gate is closed passes every test; from the second suspicion on the gate stays closed until its use
 * since the first one is down to its share.
 */
type ShareAccount = {
  readonly fromMs: number;
  readonly usedSeconds: number;
  readonly suspicions: number;
  readonly openedMs: number;
};

/** Use of a GPU over some seconds. */
type ShareUse = {
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
/** In longer windows: a suspicion so soon after another one is not the first. The longer window begins anew after each. */
const SOON = 2;

/** A lower bound for all drivers. Each sample names one process, however many ran meanwhile. */
const SAMPLES_PER_SECOND = 6;
/** A container is wrongly suspected less than once in e^21 (about 10^9) windows. */
const DOUBT = 21;
/** With more time between two looks the use in between is unknown. */
const LONGEST_STEP_MS = 10_000;
const LOOKS_PER_WINDOW = 30;
/** As a part of the shorter window: how long launches that ran when the gate closed may take to end. */
const SETTLING = 1 / 6;
/** Likewise: the shortest and the longest test. */
const SHORTEST_TEST = 1 / 20;
const LONGEST_TEST = 1 / 3;
/** So much use fails the test: a few samples of the driver. */
const PROOF_SECONDS = 0.7;

/** `before` undefined: this is the first look. */
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

/** Long after the last suspicion the next one counts as the first. */
function oneMore({ account, last }: ShareWatch, use: ShareUse, windowSeconds: number): ShareAccount {
  if (account && last.atMs - account.openedMs <= SOON * LONGER * windowSeconds * 1000)
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

/** Has it used more than its share since it was first suspected? */
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

/** `gpuUuid`: for the verdict. */
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

/**
 * Over the shorter window GPU time that the arbiter granted is allowed: a long launch, after which the container will
 * wait. Over the longer window only one such launch is: else a container that reports work all the time would never be
 * over its share.
 */
function suspicion(watch: ShareWatch, windowSeconds: number): ShareUse | undefined {
  if (watch.last.usedSeconds === watch.looks[0]?.usedSeconds) return undefined; // no use at all
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

/** Undefined: the looks do not go back that far. */
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
 * The largest ratio that a share may show in the samples of so many seconds (Bernstein's inequality, which unlike a
 * normal distribution holds for small shares, too).
 */
export function shareSeenAs(ratio: number, seconds: number): number {
  const samples = SAMPLES_PER_SECOND * seconds;
  const variance = ratio < 1 ? ratio * (1 - ratio) : 0;
  return ratio + (DOUBT / 3 + Math.sqrt((DOUBT / 3) ** 2 + 2 * DOUBT * samples * variance)) / samples;
}

/**
 * The result of the closed gate, after the time in which its earlier use would show. What the arbiter charges meanwhile
 * is allowed for as long as over the longer window: a launch that was made before. A container can report use without
 * end.
 */
function test(
  { looks, last }: ShareWatch,
  { usedRatio }: ShareUse,
  windowSeconds: number,
): 'passed' | 'failed' | 'running' {
  const closedMs = looks[0]?.atMs ?? last.atMs;
  const settled = looks.find(({ atMs }) => atMs >= closedMs + SETTLING * windowSeconds * 1000);
  if (!settled) return 'running';
  const chargedSeconds = Math.min(last.chargedSeconds - settled.chargedSeconds, windowSeconds);
  const uncharged = last.usedSeconds - settled.usedSeconds - chargedSeconds;
  if (uncharged >= PROOF_SECONDS) return 'failed';
  const needed = (2 * PROOF_SECONDS) / usedRatio;
  const seconds = Math.min(Math.max(needed, SHORTEST_TEST * windowSeconds), LONGEST_TEST * windowSeconds);
  return last.atMs - settled.atMs >= seconds * 1000 ? 'passed' : 'running';
}

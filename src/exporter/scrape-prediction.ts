// When the next scrape is to be expected, from the times of those before: a Prometheus comes in even steps. Keeps times alone and
// tells nobody apart by name: two servers that scrape in turns, each in steps of its own, are known by their steps. Pure; times
// are milliseconds of a clock that nobody sets.

/** Times of scrapes, oldest first. */
export type Arrivals = readonly number[];

/** Some minutes of a pair of servers, and room for whoever looks in between. */
const MOST_ARRIVALS = 16;
const FORGET_MS = 10 * 60 * 1000;
/** What comes so close together finds the same page: one time stands for all. */
const TOGETHER_MS = 100;
/** Of so many turns that a step would have had before a scrape, so many were kept: one that was missed is forgiven. */
const TURNS = 4;
const KEPT = 3;
/** So far from its turn a scrape may have come: three such times are in one step that is told by two. */
const MOST_JITTER_MS = 150;
/** So far from the time that is foretold a scrape may come, and still find its page. */
const EARLY_OR_LATE_MS = 100;
const MOST_GRACE_MS = 250;

export function withArrival(arrivals: Arrivals, atMs: number): Arrivals {
  const kept = arrivals.filter((arrival) => arrival <= atMs && arrival > atMs - FORGET_MS).slice(1 - MOST_ARRIVALS);
  const last = kept.at(-1);
  return last !== undefined && atMs - last < TOGETHER_MS ? kept : [...kept, atMs];
}

/** Is a scrape to be expected between these two times? */
export function expects(arrivals: Arrivals, fromMs: number, toMs: number): boolean {
  return arrivals.some((late, index) =>
    arrivals.slice(0, index).some((early) => {
      const step = late - early;
      // By its last turn; and by the one before where it missed one.
      return [late + step, late + 2 * step].some((due) => due >= fromMs && due <= toMs && isKept(arrivals, due, step));
    }),
  );
}

/** Did whoever should come at `due` come in these steps until then? Two times alone are no step: any two are. */
function isKept(arrivals: Arrivals, due: number, step: number): boolean {
  const jitter = Math.min(MOST_JITTER_MS, step / 4);
  let kept = 0;
  for (let turn = 1; turn <= TURNS; turn += 1) {
    const at = due - turn * step;
    if (arrivals.some((arrival) => Math.abs(arrival - at) <= jitter)) kept += 1;
  }
  return kept >= KEPT;
}

/** For so long after the next sample a page is still handed out: that is what the next page may take to be made. */
export function graceMs(intervalMs: number): number {
  return Math.min(MOST_GRACE_MS, intervalMs / 4);
}

/** Is a page that is begun now, with a sample each `intervalMs`, likely to be handed out before there is a newer one? */
export function isWanted(arrivals: Arrivals, nowMs: number, intervalMs: number): boolean {
  const from = nowMs + graceMs(intervalMs);
  return expects(arrivals, from - EARLY_OR_LATE_MS, from + intervalMs + EARLY_OR_LATE_MS);
}

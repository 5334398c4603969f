// Every threshold and name that the board and the alert rules share, in one object, so that they cannot disagree.
// Owns the numbers and why they are what they are; what is built from them is in node-gpu.ts and alerts.ts.

/** Numbers and times may be other ones; tests shorten them. */
type Loose<T> = T extends string
  ? string
  : T extends number
    ? number
    : T extends readonly string[]
      ? readonly string[]
      : { readonly [K in keyof T]: Loose<T[K]> };
export type Configuration = Loose<typeof CONFIGURATION>;

export const CONFIGURATION = {
  /** Job under which Prometheus scrapes the node agents. The chart's ServiceMonitor sets it; a hand-written job must too. */
  job: 'cotenant',
  /** Where the runbook is, from the root of the repository. The chart can put the address of a rendered copy before it. */
  runbook: 'docs/operate/runbook.md',
  exporterDown: { for: '5m' },
  /** Many frameworks fill what they see on purpose, so being near the limit is worth a look and nobody's sleep. */
  nearLimit: { ratio: 0.95, for: '5m' },
  /** Longer than the agent's own ladder takes (10 s and 10 s of grace): who is over for this long was not stopped. */
  overLimit: { for: '1m' },
  /** For how long a stopped container is told of. */
  stopped: { withinSeconds: 900 },
  /** For so long the page has named an engine that a process could not change to, and nobody has named another one. */
  engineRefused: { for: '5m' },
  /** Less than any CUDA context holds: a process that uses the GPU is never below it. */
  bypass: { bytes: 64 * 1024 * 1024, for: '2m' },
  /** A page is made each second. */
  collectorStale: { seconds: 120 },
  /** Once in a while a call fails without any harm; one in ten seconds does not. */
  // A call that always fails is asked every 8 to 10 s.
  nvmlErrors: { perSecond: 0.05, window: '5m', lasts: '10m' },
  samplerAbandoned: { within: '15m' },
  utilizationGaps: { within: '15m', lasts: '15m' },
  seriesDropped: { within: '10m' },
  volumesNotGiven: { within: '5m', lasts: '10m' },
  notEnforcing: { lasts: '1h' },
  /** What somebody has made less for a look at one container is over by then, or was forgotten. */
  notEnforced: { lasts: '24h', within: '15m' },
  /** Longer than it takes to reload a driver. */
  deviceMissing: { within: '6h', step: '5m', lasts: '10m' },
  deviceUnhealthy: { lasts: '1m' },
  /** For how long an Xid is told of. */
  xid: { withinSeconds: 600 },
  /** Not those of an idle GPU, of set clocks, or of a power limit that a busy GPU runs into day in, day out. */
  clocksHeld: { reasons: ['hw_slowdown', 'hw_thermal', 'power_brake', 'sw_thermal'], lasts: '5m' },
  fenceFails: { lasts: '1m' },
  overcommitted: { lasts: '5m' },
  /** A few contexts of the host's own tools are below it. */
  unattributed: { ratio: 0.05, lasts: '15m' },
  foreign: { bytes: 0, lasts: '5m' },
  stopLoop: { stops: 3, withinSeconds: 3600 },
  stopFailed: { within: '15m' },
  /** A refusal is written down every 10 s; one of now and then is gone from the window before the alert is due. */
  stopsRefused: { window: '3m', lasts: '5m' },
  /** `step`: how finely that time is looked through; less than between scrapes says nothing more. */
  fenceWeakened: { within: '1h', step: '30s', lasts: '2m' },
  /** More than code, rounding and the memory of kernels' stacks make out. */
  ledgerMismatch: { bytes: 512 * 1024 * 1024, lasts: '10m' },
  denialStorm: { perSecond: 0.1, window: '10m', lasts: '10m' },
  /** Means over the window are off by some points, see docs/reference/metrics.md. */
  coresIgnored: { ratio: 1.2, window: '10m', lasts: '15m' },
  /** Five points: over ten minutes the standard error of the driver's samples is 0.8 of them at most (docs/reference/metrics.md). */
  computeDrift: { ratio: 0.05, window: '10m', lasts: '10m' },
  /** Of all threads together. */
  throttled: { secondsPerSecond: 0.5, window: '10m', lasts: '30m' },
  /** Who has a whole GPU and keeps so little of it at work has no use for the rest. */
  idle: { window: '2h', lasts: '10m', activeRatio: 0.05 },
  unknownEntryPoints: { lasts: '5m' },
  /** An upgrade reaches the last container within minutes. */
  engineBehind: { lasts: '30m' },
  withoutGpus: { lasts: '1m' },
} as const;

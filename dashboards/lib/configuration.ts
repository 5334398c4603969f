// Thresholds and names that boards and alert rules share, and the reasons for them.

/** Tests use other numbers and durations. */
type Loose<T> = T extends string
  ? string
  : T extends number
    ? number
    : T extends readonly string[]
      ? readonly string[]
      : { readonly [K in keyof T]: Loose<T[K]> };
export type Configuration = Loose<typeof CONFIGURATION>;

export const CONFIGURATION = {
  /** Job under which Prometheus scrapes the agents. The chart's ServiceMonitor sets it; other configurations must,
   * too. */
  job: 'cotenant',
  /** The runbook, from the root of the repository. The chart can put a URL before it. */
  runbook: 'docs/operate/runbook.md',
  /** How long an alert stays after its condition was last true: longer than a scrape that fails, an agent that restarts,
   * or a value that dips below its threshold for a moment, each of which would end it and begin another one. */
  keepsFiring: '10m',
  exporterDown: { for: '5m' },
  /** Many frameworks allocate all memory that they see, so this is only information. */
  nearLimit: { ratio: 0.95, for: '5m' },
  /** Longer than a stop takes (10 s, and 10 s of grace). */
  overLimit: { for: '1m' },
  /** How long the alert lasts after a stop. */
  stopped: { withinSeconds: 900 },
  engineRefused: { for: '5m' },
  /** Less than any CUDA context has. */
  bypass: { bytes: 64 * 1024 * 1024, for: '2m' },
  collectorStale: { seconds: 120 },
  /** Single failures are harmless. A call that always fails is tried every 8 to 10 s. */
  nvmlErrors: { perSecond: 0.05, window: '5m', lasts: '10m' },
  samplerAbandoned: { within: '15m' },
  utilizationGaps: { within: '15m', lasts: '15m' },
  seriesDropped: { within: '10m' },
  volumesNotPublished: { within: '5m', lasts: '10m' },
  /** Longer than a restart of the kubelet, of the runtime or of an API server takes. */
  agentDisconnected: { lasts: '5m' },
  /** Longer than a kubelet takes to end a pod and unpublish its volume. */
  podGone: { seconds: 300 },
  notEnforcing: { lasts: '24h' },
  /** A weaker mode for debugging one container is usually over by then, or was forgotten. */
  notEnforced: { lasts: '24h', within: '15m' },
  /** Longer than a reload of the driver takes. */
  gpuMissing: { within: '6h', step: '5m', lasts: '10m' },
  gpuUnhealthy: { lasts: '1m' },
  /** How long the alert lasts after an Xid. */
  xid: { withinSeconds: 600 },
  /** Without those of an idle GPU, of configured clocks, and of the power limit, which a busy GPU reaches all the
   * time. */
  clocksThrottled: { reasons: ['hw_slowdown', 'hw_thermal', 'power_brake', 'sw_thermal'], lasts: '5m' },
  /** How long the alert lasts after an error. */
  eccUncorrected: { within: '1h' },
  isolationFailed: { lasts: '1m' },
  overcommitted: { lasts: '5m' },
  /** More than a few CUDA contexts of tools on the host. */
  unattributed: { ratio: 0.05, lasts: '15m' },
  foreign: { bytes: 0, lasts: '5m' },
  stopLoop: { stops: 3, withinSeconds: 3600 },
  stopFailed: { within: '15m' },
  /** A refusal that lasts is counted every 10 s; single ones leave the window before the alert fires. */
  stopsRefused: { window: '3m', lasts: '5m' },
  /** `step`: resolution of the subquery; below the scrape interval it adds nothing. */
  isolationWeakened: { within: '1h', step: '30s', lasts: '2m' },
  /** More than code, rounding and the stack memory of kernels. */
  ledgerMismatch: { bytes: 512 * 1024 * 1024, lasts: '10m' },
  denialStorm: { perSecond: 0.1, window: '10m', lasts: '10m' },
  /** Means over the window have an error of some percentage points, see docs/reference/metrics.md. */
  computeOverLimit: { ratio: 1.2, window: '10m', lasts: '15m' },
  /** Over ten minutes the standard error of the driver's samples is at most 0.8 percentage points
   * (docs/reference/metrics.md). */
  computeDrift: { ratio: 0.05, window: '10m', lasts: '10m' },
  /** Sum of all threads. */
  throttled: { secondsPerSecond: 0.5, window: '10m', lasts: '30m' },
  idle: { window: '2h', lasts: '10m', activeRatio: 0.05 },
  unknownEntryPoints: { lasts: '5m' },
  /** An upgrade reaches all containers within minutes. */
  engineOutdated: { lasts: '30m' },
  gpuMissingInContainer: { lasts: '1m' },
  /** Jobs of the webhook and of the scheduler's extender, as the chart's ServiceMonitors set them. */
  webhookJob: 'cotenant-webhook',
  schedulerJob: 'cotenant-scheduler',
  /** Longer than an upgrade replaces replicas. */
  webhookDown: { lasts: '5m' },
  webhookFails: { within: '10m' },
  /** The API server waits for each review; its own timeout of the webhook is seconds. */
  webhookSlow: { seconds: 0.25, window: '10m', lasts: '10m' },
  certificateRefused: { within: '15m' },
  liveRulesInvalid: { lasts: '5m' },
  /** The webhook renews its own certificate 30 days before its end. */
  certificateExpires: { seconds: 14 * 86_400 },
  /** Longer than a Lease takes to expire, and a new leader to list all pods. */
  schedulerNotLeading: { lasts: '5m' },
  /** Single failures are retried. */
  bindFailures: { count: 5, within: '10m' },
  invalidObjects: { lasts: '10m' },
  /** kube-scheduler takes one pod at a time, and waits for each call. */
  schedulerSlow: { seconds: 0.5, window: '10m', lasts: '10m' },
  /** An API server that restarts costs each watch one or two. */
  apiProblems: { count: 20, within: '10m' },
  /** A restart of the agent is one gap. */
  scrapeGaps: { gaps: 3, within: '30m', keeps: '1h' },
  nearlyGranted: { ratio: 0.9, lasts: '1h' },
  /** Of a GPU's memory, on a node with more than a whole GPU free. */
  fragmented: { ratio: 0.5, lasts: '1h' },
} as const;

// Every threshold and name that the board and the alert rules share, in one object, so that they cannot disagree.
// Owns the numbers and why they are what they are; what is built from them is in node-card.ts and alerts.ts.

export type Configuration = typeof CONFIGURATION;

export const CONFIGURATION = {
  /** Job under which Prometheus scrapes the node agents. The chart's ServiceMonitor sets it; a hand-written job must too. */
  job: 'cotenant',
  /** Where the runbook is, from the root of the repository. The chart can put the address of a rendered copy before it. */
  runbook: 'docs/runbook.md',
  exporterDown: { for: '5m' },
  /** Many frameworks fill what they see on purpose, so being near the limit is worth a look and nobody's sleep. */
  nearLimit: { ratio: 0.95, for: '5m' },
  /** Longer than the agent's own ladder takes (10 s and 10 s of grace): who is over for this long was not stopped. */
  overLimit: { for: '1m' },
  /** For how long a stopped container is told of. */
  stopped: { withinSeconds: 900 },
  /** For so long the page has named an engine that a process could not change to, and nobody has named another one. */
  engineRefused: { for: '5m' },
  /** Less than any CUDA context holds: a process that uses the card is never below it. */
  bypass: { bytes: 64 * 1024 * 1024, for: '2m' },
} as const;

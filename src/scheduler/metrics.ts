// The extender's metrics about itself, in a registry of its own. Owns their names and buckets.
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { Displacement } from './overcommit-evictor.ts';

export type Verb = 'filter' | 'prioritize' | 'bind';
/** `refused`: no node, or not this one. `failed`: the API server, or a fault of ours. `malformed`: not the protocol. */
export type Outcome = 'ok' | 'refused' | 'failed' | 'malformed';

export type SchedulerMetrics = {
  readonly observe: (verb: Verb, outcome: Outcome, seconds: number) => void;
  readonly problem: (of: 'nodes' | 'pods' | 'lease') => void;
  readonly displaced: (outcome: Displacement) => void;
  /** The page in Prometheus' text format. */
  readonly render: () => Promise<string>;
  readonly contentType: string;
};

/** What is looked up when the page is asked for. */
export type SchedulerState = {
  /** Undefined: it does not lead. */
  readonly epoch: () => number | undefined;
  readonly nodes: () => number;
  readonly grantedPods: () => number;
  readonly underWay: () => number;
  readonly overbookedGpus: () => number;
  readonly unreadable: (of: 'nodes' | 'pods') => number;
};

const VERBS: readonly Verb[] = ['filter', 'prioritize', 'bind'];
const DISPLACEMENTS: readonly Displacement[] = ['evicted', 'kept', 'failed'];
const OUTCOMES: readonly Outcome[] = ['ok', 'refused', 'failed', 'malformed'];

export function createMetrics(state: SchedulerState): SchedulerMetrics {
  const registry = new Registry();
  const registers = [registry];
  const gauge = (name: string, help: string, value: () => number) =>
    new Gauge({
      name,
      help,
      registers,
      collect() {
        this.set(value());
      },
    });
  const decisions = new Counter({
    name: 'cotenant_scheduler_decisions_total',
    help: 'Calls of kube-scheduler by what came of them; refused: no node has room, or this replica must not bind',
    labelNames: ['verb', 'outcome'],
    registers,
  });
  const duration = new Histogram({
    name: 'cotenant_scheduler_decision_duration_seconds',
    help: 'Time from the last byte of a call to its answer; that of bind has the API server in it',
    labelNames: ['verb'],
    buckets: [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5],
    registers,
  });
  const problems = new Counter({
    name: 'cotenant_scheduler_watch_problems_total',
    help: 'Failures to follow the API server, each of which is tried again',
    labelNames: ['of'],
    registers,
  });
  gauge('cotenant_scheduler_leads', '1 while this replica may bind', () => (state.epoch() === undefined ? 0 : 1));
  gauge(
    'cotenant_scheduler_epoch',
    'Epoch of the grants that this replica writes; 0 while it does not lead',
    () => state.epoch() ?? 0,
  );
  gauge('cotenant_scheduler_nodes', 'Nodes that share GPUs', state.nodes);
  gauge('cotenant_scheduler_granted_pods', 'Bound pods that hold a grant, or are being bound', state.grantedPods);
  gauge('cotenant_scheduler_bindings_under_way', 'Grants that the watch has not shown yet', state.underWay);
  gauge(
    'cotenant_scheduler_overbooked_gpus',
    'GPUs of which more is granted than there is, as the replica that leads sees them',
    state.overbookedGpus,
  );
  const displacements = new Counter({
    name: 'cotenant_scheduler_displacements_total',
    help: 'Pods that had to go from an overbooked GPU before they started; kept: told only, for nobody would make them again',
    labelNames: ['outcome'],
    registers,
  });
  new Gauge({
    name: 'cotenant_scheduler_unreadable',
    help: 'Bound pods whose grant cannot be read, which closes their GPUs, and nodes whose GPUs cannot be read',
    labelNames: ['of'],
    registers,
    collect() {
      for (const kind of ['nodes', 'pods'] as const) this.set({ of: kind }, state.unreadable(kind));
    },
  });
  // Series that exist from the start let a rate see the first event.
  for (const verb of VERBS) for (const outcome of OUTCOMES) decisions.labels(verb, outcome).inc(0);
  for (const kind of ['nodes', 'pods', 'lease'] as const) problems.labels(kind).inc(0);
  for (const outcome of DISPLACEMENTS) displacements.labels(outcome).inc(0);
  const timers = new Map(VERBS.map((verb) => [verb, duration.labels(verb)]));
  return {
    observe(verb, outcome, seconds) {
      decisions.labels(verb, outcome).inc();
      timers.get(verb)?.observe(seconds);
    },
    problem: (of) => problems.labels(of).inc(),
    displaced: (outcome) => displacements.labels(outcome).inc(),
    render: () => registry.metrics(),
    contentType: registry.contentType,
  };
}

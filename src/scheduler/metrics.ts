// The metrics of the scheduler extender and of its process, in a registry of their own.
import { selfMetrics } from '../serving/process-metrics.ts';
import { Counter, Gauge, Histogram, type Registry } from '../serving/prom-client.ts';
import type { EvictionOutcome } from './evictions/overcommit-evictor.ts';
import { RESIZE_OUTCOMES, type ResizeOutcome } from './resizer.ts';

export type Verb = 'filter' | 'prioritize' | 'preempt' | 'bind' | 'fits';
/** `refused`: no node, or not this one. `failed`: the API server, or a fault of ours. `malformed`: not the protocol. */
export type Outcome = 'ok' | 'refused' | 'failed' | 'malformed';
type WatchKind = 'nodes' | 'pods' | 'budgets' | 'lease';

export type SchedulerMetrics = ReturnType<typeof createMetrics>;

type SchedulerState = {
  /** Undefined: this replica does not lead. */
  readonly epoch: () => number | undefined;
  readonly nodes: () => number;
  readonly grantedPods: () => number;
  readonly bindingsInFlight: () => number;
  readonly overcommittedGpus: () => number;
  readonly invalid: () => Readonly<Record<'nodes' | 'pods', number>>;
};

const VERBS: readonly Verb[] = ['filter', 'prioritize', 'preempt', 'bind', 'fits'];
const OUTCOMES: readonly Outcome[] = ['ok', 'refused', 'failed', 'malformed'];
const EVICTION_OUTCOMES: readonly EvictionOutcome[] = ['evicted', 'kept', 'failed'];
const WATCH_KINDS: readonly WatchKind[] = ['nodes', 'pods', 'budgets', 'lease'];

export function createMetrics() {
  const registry = selfMetrics();
  const registers = [registry];
  const decisions = new Counter({
    name: 'cotenant_scheduler_decisions_total',
    help: 'Calls of kube-scheduler by outcome; refused: no node fits, or this replica must not bind',
    labelNames: ['verb', 'outcome'],
    registers,
  });
  const duration = new Histogram({
    name: 'cotenant_scheduler_decision_duration_seconds',
    help: 'Time from the last byte of a call to its answer; bind includes the call to the API server',
    labelNames: ['verb'],
    buckets: [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5],
    registers,
  });
  const problems = new Counter({
    name: 'cotenant_scheduler_watch_problems_total',
    help: 'Failed lists and watches of the API server, each of which is retried',
    labelNames: ['kind'],
    registers,
  });
  const evictions = new Counter({
    name: 'cotenant_scheduler_overcommit_evictions_total',
    help: 'Pods chosen for eviction from an overcommitted GPU before they started; kept: got an Event only, for no controller would recreate them',
    labelNames: ['outcome'],
    registers,
  });
  const memoryChanges = new Counter({
    name: 'cotenant_scheduler_memory_changes_total',
    help: 'Changes of the memory of running pods; refused: once for each text of the annotation; failed: the API server did not take the grant',
    labelNames: ['outcome'],
    registers,
  });
  // Series that exist from the start let a rate see the first event.
  for (const verb of VERBS) for (const outcome of OUTCOMES) decisions.labels(verb, outcome).inc(0);
  for (const kind of WATCH_KINDS) problems.labels(kind).inc(0);
  for (const outcome of EVICTION_OUTCOMES) evictions.labels(outcome).inc(0);
  for (const outcome of RESIZE_OUTCOMES) memoryChanges.labels(outcome).inc(0);
  const timers = new Map(VERBS.map((verb) => [verb, duration.labels(verb)]));
  return {
    observe(verb: Verb, outcome: Outcome, seconds: number) {
      decisions.labels(verb, outcome).inc();
      timers.get(verb)?.observe(seconds);
    },
    watchProblem: (kind: WatchKind) => problems.labels(kind).inc(),
    eviction: (outcome: EvictionOutcome) => evictions.labels(outcome).inc(),
    memoryChange: (outcome: ResizeOutcome) => memoryChanges.labels(outcome).inc(),
    /** Adds the gauges, whose values are read at each scrape. */
    addState: (state: SchedulerState) => addGauges(registry, state),
    /** The page in Prometheus' text format. */
    render: () => registry.metrics(),
    contentType: registry.contentType,
  };
}

function addGauges(registry: Registry, state: SchedulerState): void {
  const registers = [registry];
  const gauge = (name: string, help: string, value: () => number) =>
    new Gauge({
      name: `cotenant_scheduler_${name}`,
      help,
      registers,
      collect() {
        this.set(value());
      },
    });
  gauge('leader', '1 while this replica may bind', () => (state.epoch() === undefined ? 0 : 1));
  gauge('epoch', 'Epoch of the grants that this replica writes; 0 while it does not lead', () => state.epoch() ?? 0);
  gauge('nodes', 'Nodes that share GPUs', state.nodes);
  gauge('granted_pods', 'Bound pods that hold a grant, and pods that are being bound', state.grantedPods);
  gauge('bindings_in_flight', 'Bindings that the watch has not shown yet', state.bindingsInFlight);
  gauge(
    'overcommitted_gpus',
    'GPUs on which more is granted than there is; 0 on replicas that do not lead',
    state.overcommittedGpus,
  );
  new Gauge({
    name: 'cotenant_scheduler_invalid_objects',
    help: 'Bound pods with an invalid grant, whose GPUs take no new pods, and nodes with an invalid list of GPUs',
    labelNames: ['kind'],
    registers,
    collect() {
      for (const [kind, count] of Object.entries(state.invalid())) this.set({ kind }, count);
    },
  });
}

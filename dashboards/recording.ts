// The recording rules: GPUs that each namespace is granted, uses and leaves idle, so that a month of it is one short sum. Owns
// the names and the pace; the expressions are those of `cotenant showback`, which so has one answer with the rules and without.
import { cards, RECORDED, RECORDED_CARDS, usage } from '../src/cli/prometheus/usage.ts';
import { AMOUNTS, KINDS } from '../src/quota/showback.ts';
import { CONFIGURATION, type Configuration } from './configuration.ts';
import { type MetricName, select } from './metrics.ts';

export type RecordingRule = { readonly record: string; readonly expr: string };
export type RecordingFile = {
  readonly groups: readonly {
    readonly name: string;
    readonly interval: string;
    readonly rules: readonly RecordingRule[];
  }[];
};

export function recordingRules({ job }: Configuration = CONFIGURATION): RecordingFile {
  const matcher = `job="${job}"`;
  const selectors = {
    of: (metric: string, ...more: readonly string[]) => select(metric as MetricName, matcher, ...more),
    ofCard: (metric: string) => select(metric as MetricName, matcher),
  };
  const now = usage(selectors, '5m');
  const rules = KINDS.flatMap((kind) =>
    AMOUNTS.map((amount) => ({ record: RECORDED[kind][amount], expr: now[kind][amount] })),
  );
  rules.push({ record: RECORDED_CARDS, expr: cards(selectors) });
  return { groups: [{ name: 'cotenant-showback', interval: '1m', rules }] };
}

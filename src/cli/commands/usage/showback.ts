// `cotenant showback`: GPU-hours that each namespace was granted, used and left idle, from Prometheus; as a table, CSV,
// JSON or YAML.
import { AMOUNTS, type Amounts, KINDS, type Kind, type Showback, showbackOf } from '../../../policy/chargeback.ts';
import { type Command, flag, text, UsageError } from '../../lib/command.ts';
import { formOf, outputOptions, print } from '../../lib/output.ts';
import { allNamespacesOption, namespaceOption } from '../../options/target.ts';
import { figuresOf, showbackLines } from '../../output/showback-table.ts';
import { PROMETHEUS_OPTIONS, type Prometheus, periodOf, prometheusOf, query } from '../../prometheus/client.ts';
import { selector } from '../../prometheus/container-series.ts';
import { gpus, NOT_OF_INSTANCES, RECORDED, RECORDED_GPUS, type Selectors, usage } from '../../prometheus/gpu-hours.ts';

const LONGEST_STEP_SECONDS = 60;
/** Points of a range that is so short that one minute matters. */
const LEAST_POINTS = 60;

export const showback: Command = {
  name: 'showback',
  summary: 'Shows how many GPU-hours each namespace was granted, used and left idle.',
  usage: '--prometheus URL [--range TIME] [-n NAMESPACE] [-o table|json|yaml|csv]',
  options: {
    ...outputOptions('table (default), json, yaml or csv', ['csv']),
    namespace: namespaceOption('only this one'),
    'all-namespaces': allNamespacesOption('of all namespaces. The default'),
    recorded: { help: 'from the series of the recording rules: quicker over long ranges' },
    ...PROMETHEUS_OPTIONS,
  },
  notes: 'A GPU-hour is one hour of all the memory, or all the compute, of one GPU.',
  async run(parsed) {
    const form = formOf(parsed, ['csv']);
    const prometheus = prometheusOf(parsed, Date.now());
    if (!prometheus) throw new UsageError('--prometheus is missing, and COTENANT_PROMETHEUS names none');
    const namespace = flag(parsed, 'all-namespaces') ? undefined : text(parsed, 'namespace');
    const result = await read(prometheus, namespace, flag(parsed, 'recorded'));
    const [from, until] = periodOf(prometheus);
    if (form === 'csv') console.log(csvLines(result).join('\n'));
    else
      await print(parsed, { from, until, ...result }, () =>
        showbackLines(result, `${prometheus.url}, ${from} to ${until}`, process.stdout.columns || undefined),
      );
    return result.shares.length === 0 ? 1 : 0;
  },
};

async function read(prometheus: Prometheus, namespace: string | undefined, recorded: boolean): Promise<Showback> {
  const { job, rangeSeconds } = prometheus;
  const step = Math.max(1, Math.min(LONGEST_STEP_SECONDS, Math.floor(rangeSeconds / LEAST_POINTS)));
  const selectors: Selectors = {
    of: (metric, ...matchers) => selector(metric, { job, namespace }, ...matchers),
    ofGpu: (metric, ...matchers) => selector(metric, { job }, ...matchers),
  };
  const now = usage(selectors, '5m');
  const steps = `[${rangeSeconds}s:${step}s]`;
  /** A mean over the range, where missing points count as 0. The number of steps in a range differs between versions of
   * Prometheus. */
  const hours = (expression: string) =>
    `sum_over_time((${expression})${steps}) / scalar(count_over_time(vector(1)${steps})) * ${rangeSeconds} / 3600`;
  const expressionOf = (kind: Kind, amount: keyof Amounts): string => {
    if (recorded) return hours(selectors.of(RECORDED[kind][amount]));
    // The counter includes use between the steps.
    if (kind === 'compute' && amount === 'used') {
      const counter = selectors.of('cotenant_container_sm_seconds_total', NOT_OF_INSTANCES);
      return `sum by (namespace) (increase(${counter}[${rangeSeconds}s])) / 3600`;
    }
    return hours(now[kind][amount]);
  };
  const ask = async (kind: Kind, amount: keyof Amounts) => {
    const series = await query(prometheus, expressionOf(kind, amount));
    return [`${kind} ${amount}`, new Map(series.map(({ labels, value }) => [labels.namespace ?? '', value]))] as const;
  };
  const all = await Promise.all(KINDS.flatMap((kind) => AMOUNTS.map((amount) => ask(kind, amount))));
  const answers = new Map<string, ReadonlyMap<string, number>>(all);
  const [had] = await query(prometheus, hours(recorded ? selector(RECORDED_GPUS, { job }) : gpus(selectors)));
  return showbackOf((kind, amount) => answers.get(`${kind} ${amount}`) ?? new Map(), had?.value ?? 0);
}

/** One line per namespace, for spreadsheets; a cell that they would read as a formula is quoted. */
function csvLines({ shares }: Showback): readonly string[] {
  const names = KINDS.flatMap((kind) => AMOUNTS.map((amount) => `${kind}_${amount}_gpu_hours`));
  const cell = (value: string) => {
    const safe = /^[=+\-@]/.test(value) ? `'${value}` : value;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [
    ['namespace', ...names].join(','),
    ...shares.map((share) => [cell(share.namespace), ...figuresOf(share, 6)].join(',')),
  ];
}

// A page's metrics as they are registered, set and written: Prometheus's text format 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/). Each page is set whole from one snapshot, so a series is a line and
// a number and nothing else; a general client keeps, hashes and copies the labels of each, which took most of a page's time.

export type Labels = Readonly<Record<string, string>>;
export type MetricType = 'gauge' | 'counter';
export type Metric = {
  readonly name: string;
  readonly type: MetricType;
  readonly help: string;
  readonly labelNames: readonly string[];
};

/** Of one metric. */
export type Series = {
  /** The newest value of these labels. Throws where a label was not registered. */
  set(labels: Labels, value: number): void;
  /** The same, and further values of the same labels are added up. */
  add(labels: Labels, value: number): void;
  clear(): void;
};

export type Exposition = {
  /** Throws where the name cannot be one, or is taken. */
  register(metric: Metric): Series;
  readonly metrics: () => readonly Metric[];
  /** Metrics in the order of their registration, series in the order in which they were first set. Empty lines
   * are between metrics; it ends with a line's end. */
  text(): string;
};

const NAME = /^[a-zA-Z_:][a-zA-Z0-9_:]*$/;
const LABEL = /^[a-zA-Z_][a-zA-Z0-9_]*$/;
const SPECIAL = /[\\\n"]/;

const escaped = (text: string): string => text.replaceAll('\\', '\\\\').replaceAll('\n', '\\n');
const quoted = (value: string): string =>
  SPECIAL.test(value) ? `"${escaped(value).replaceAll('"', '\\"')}"` : `"${value}"`;

/** As the format has it: sums can leave the range of numbers. */
const endless = (value: number): string => (Number.isNaN(value) ? 'NaN' : value > 0 ? '+Inf' : '-Inf');

/** `{a="b",c="d"}`, in the order of the names; those that are not set are left out. */
function written(name: string, labelNames: readonly string[], labels: Labels): string {
  let text = '';
  let set = 0;
  for (const label of labelNames) {
    const value = labels[label];
    if (value === undefined) continue;
    text += text === '' ? `${label}=${quoted(value)}` : `,${label}=${quoted(value)}`;
    set += 1;
  }
  for (const label in labels) if (labels[label] !== undefined) set -= 1;
  if (set !== 0) throw new Error(`${name}: ${Object.keys(labels)} are not the labels it has: ${labelNames.join(', ')}`);
  return text === '' ? '' : `{${text}}`;
}

export function createExposition(): Exposition {
  const all = new Map<string, { readonly metric: Metric; readonly values: Map<string, number> }>();
  return {
    register(metric) {
      const { name, labelNames } = metric;
      const wrong = NAME.test(name) ? labelNames.find((label) => !LABEL.test(label)) : name;
      if (wrong !== undefined) throw new Error(`${name}: "${wrong}" cannot be a name`);
      if (all.has(name)) throw new Error(`${name} is registered already`);
      const values = new Map<string, number>();
      all.set(name, { metric, values });
      // One object of labels is set in many metrics, one after another: most of a page.
      const texts = textsOf(labelNames);
      const textOf = (labels: Labels): string => {
        let text = texts.get(labels);
        if (text === undefined) {
          text = written(name, labelNames, labels);
          texts.set(labels, text);
        }
        return text;
      };
      return {
        set: (labels, value) => void values.set(textOf(labels), value),
        add(labels, value) {
          const text = textOf(labels);
          values.set(text, (values.get(text) ?? 0) + value);
        },
        clear: () => values.clear(),
      };
    },
    metrics: () => [...all.values()].map(({ metric }) => metric),
    text() {
      let page = '';
      for (const { metric, values } of all.values()) {
        if (page !== '') page += '\n';
        page += `# HELP ${metric.name} ${escaped(metric.help)}\n# TYPE ${metric.name} ${metric.type}\n`;
        for (const [labels, value] of values)
          page += `${metric.name}${labels} ${Number.isFinite(value) ? value : endless(value)}\n`;
      }
      return page;
    },
  };
}

/** By the list of names itself: metrics with the same labels share one list. */
const textsByNames = new WeakMap<readonly string[], WeakMap<Labels, string>>();
function textsOf(labelNames: readonly string[]): WeakMap<Labels, string> {
  const texts = textsByNames.get(labelNames) ?? new WeakMap<Labels, string>();
  textsByNames.set(labelNames, texts);
  return texts;
}

// Made-up series as a Prometheus would have recorded them: each is a function of time. Writes the OpenMetrics text; the
// values are the test's part.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Teardown, temporaryFolder } from '../native/node.ts';

export type RecordedSeries = {
  readonly metric: string;
  readonly labels: Readonly<Record<string, string>>;
  /** undefined: there is no sample at this time. */
  readonly at: (second: number) => number | undefined;
};

/** A file for `startPrometheus`: a sample each `everySeconds`, starting at the Unix time `from`. */
export function recordedFile(
  t: Teardown,
  series: readonly RecordedSeries[],
  { from, seconds, everySeconds }: { readonly from: number; readonly seconds: number; readonly everySeconds: number },
): string {
  const moments = Array.from({ length: Math.floor(seconds / everySeconds) + 1 }, (_, index) => index * everySeconds);
  const lines = [...Map.groupBy(series, ({ metric }) => metric)].flatMap(([metric, all]) => {
    const isCounter = metric.endsWith('_total');
    return [
      `# TYPE ${isCounter ? metric.slice(0, -'_total'.length) : metric} ${isCounter ? 'counter' : 'gauge'}`,
      ...all.flatMap(({ labels, at }) => {
        const text = Object.entries(labels).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
        return moments.flatMap((second) => {
          const value = at(second);
          return value === undefined ? [] : [`${metric}{${text.join(',')}} ${value} ${from + second}`];
        });
      }),
    ];
  });
  const file = join(temporaryFolder(t), 'recorded.om');
  writeFileSync(file, `${lines.join('\n')}\n# EOF\n`);
  return file;
}

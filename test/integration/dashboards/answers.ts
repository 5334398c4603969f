// Everything that a Prometheus can be asked of an agent, and which of it has no answer: each family of a page, each name that
// boards and rules may use, each query, mark and variable of the boards.
import { boards } from '../../../dashboards/boards.ts';
import { METRICS } from '../../../dashboards/metrics.ts';
import type { RunningPrometheus } from '../../support/prometheus.ts';

export type Question = { readonly where: string; readonly expr: string };

type Shown = { readonly title: string; readonly targets: readonly { readonly expr: string }[] };
type Read = {
  readonly panels: readonly Shown[];
  readonly annotations?: { readonly list?: readonly { readonly name: string; readonly expr: string }[] };
  readonly templating?: { readonly list?: readonly { readonly type: string; readonly query?: unknown }[] };
};

const read = (): readonly (readonly [name: string, board: Read])[] =>
  [...boards()].map(([name, built]) => [name, JSON.parse(JSON.stringify(built)) as Read]);

/** With all of a kind chosen in each of a board's variables. */
const sent = (text: string): string =>
  text.replaceAll('$__rate_interval', '10s').replaceAll('$__range', '5m').replace(/\$\w+/g, '.+');

/** Of panels and marks, as Grafana sends them. */
export function boardQuestions(): readonly Question[] {
  return read().flatMap(([name, board]) => [
    ...board.panels.flatMap(({ title, targets }) =>
      targets.map(({ expr }) => ({ where: `${name}, ${title}`, expr: sent(expr) })),
    ),
    ...(board.annotations?.list ?? []).map((mark) => ({ where: `${name}, mark ${mark.name}`, expr: sent(mark.expr) })),
  ]);
}

/** What a variable offers comes from another call than a query does: the values of a label over a selector. */
export function boardVariables(): readonly {
  readonly where: string;
  readonly selector: string;
  readonly label: string;
}[] {
  return read().flatMap(([name, board]) =>
    (board.templating?.list ?? []).flatMap(({ type, query }) => {
      const text = typeof query === 'string' ? query : (query as { query?: string } | undefined)?.query;
      if (type !== 'query') return [];
      const [, selector, label] = /^label_values\((.*), (\w+)\)$/.exec(text ?? '') ?? [];
      if (selector === undefined || label === undefined) throw new Error(`${name}: no variable of ours: ${text}`);
      return [{ where: `${name}, variable ${label}`, selector: sent(selector), label }];
    }),
  );
}

/** Names of all families of a page, those without a series included, and all that boards and rules may name. */
export function namesOf(page: string): readonly string[] {
  const served = [...page.matchAll(/^# TYPE (\S+)/gm)].map(([, name = '']) => name);
  return [...new Set([...served, ...Object.keys(METRICS)])].toSorted();
}

/** What has no answer. A query that Prometheus does not understand throws. */
export async function silentOf(
  prometheus: RunningPrometheus,
  page: string,
  questions: readonly Question[] = boardQuestions(),
): Promise<readonly string[]> {
  const silent: string[] = [];
  for (const name of namesOf(page)) if ((await prometheus.query(name)).length === 0) silent.push(name);
  for (const { where, expr } of questions)
    if ((await prometheus.query(expr)).length === 0) silent.push(`${where}: ${expr}`);
  for (const { where, selector, label } of boardVariables())
    if ((await prometheus.values(label, selector)).length === 0) silent.push(where);
  return silent;
}

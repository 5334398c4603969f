// Everything that a Prometheus can be asked of an agent, and which of it has no answer: each family of a page, each
// name that boards and rules may use, each query, mark and variable of the boards.
import { BOARDS } from '../../../dashboards/boards.ts';
import { CONTROL_PLANE_METRICS, METRICS } from '../../../dashboards/lib/metrics.ts';
import type { RunningPrometheus } from '../../support/services/prometheus.ts';

export type Question = { readonly where: string; readonly expr: string };

type Shown = {
  readonly title: string;
  readonly targets?: readonly { readonly refId: string; readonly expr: string; readonly instant?: boolean }[];
};
type Read = {
  readonly panels: readonly Shown[];
  readonly annotations?: { readonly list?: readonly { readonly name: string; readonly expr: string }[] };
  readonly templating?: { readonly list?: readonly { readonly type: string; readonly query?: unknown }[] };
};

const read = (): readonly (readonly [name: string, board: Read])[] =>
  [...BOARDS].map(([name, built]) => [name, JSON.parse(JSON.stringify(built)) as Read]);

type Times = { readonly rateInterval?: string; readonly interval?: string; readonly range?: string };

/** With all of a kind chosen in each of a board's variables. */
const sent = (text: string, { rateInterval = '10s', interval = '10s', range = '5m' }: Times = {}): string =>
  text
    .replaceAll('$__rate_interval', rateInterval)
    .replaceAll('$__interval', interval)
    .replaceAll('$__range', range)
    .replace(/\$[a-z_]\w*/gi, '.+');

type PanelQuery = {
  readonly board: string;
  readonly title: string;
  readonly refId: string;
  readonly expr: string;
  readonly isInstant: boolean;
};

/** Of the queries of panels, as Grafana sends them. */
export function panelQueries(times: Times = {}): readonly PanelQuery[] {
  return read().flatMap(([board, { panels }]) =>
    panels.flatMap(({ title, targets = [] }) =>
      targets.map(({ refId, expr, instant }) => ({
        ...{ board, title, refId, expr: sent(expr, times), isInstant: instant === true },
      })),
    ),
  );
}

/** Of panels and marks, as Grafana sends them. */
export function boardQuestions(): readonly Question[] {
  return [
    ...panelQueries().map(({ board, title, expr }) => ({ where: `${board}, ${title}`, expr })),
    ...read().flatMap(([name, board]) =>
      (board.annotations?.list ?? []).map((mark) => ({
        where: `${name}, mark ${mark.name}`,
        expr: sent(mark.expr),
      })),
    ),
  ];
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
  // Webhook and scheduler are not scraped here: test/unit/dashboards/served.test.ts asks their pages.
  const here = Object.keys(METRICS).filter((name) => !Object.hasOwn(CONTROL_PLANE_METRICS, name));
  return [...new Set([...served, ...here])].toSorted();
}

/**
 * Asks for everything, and at each further call for what has had no answer yet, and returns what that is. A scrape that
 * comes late leaves a second in which nothing has an answer; what was answered once is there. A query that Prometheus
 * does not understand throws.
 */
export function silentOf(prometheus: RunningPrometheus, page: string): () => Promise<readonly string[]> {
  let silent = [
    ...namesOf(page).map((name) => ({ text: name, ask: () => prometheus.query(name) })),
    ...boardQuestions().map(({ where, expr }) => ({ text: `${where}: ${expr}`, ask: () => prometheus.query(expr) })),
    ...boardVariables().map(({ where, selector, label }) => ({
      text: where,
      ask: () => prometheus.values(label, selector),
    })),
  ];
  return async () => {
    const left: typeof silent = [];
    for (const question of silent) if ((await question.ask()).length === 0) left.push(question);
    silent = left;
    return silent.map(({ text }) => text);
  };
}

// The rules of Grafana's dashboard-linter, by its names, over the board's JSON; and some of ours about the metrics'
// names, links and descriptions. Pure: a board in, complaints out. Two rules go further than the original: all panels
// need a title, and all queries are looked at. One exemption: metrics of webhook and scheduler have a job and instances
// of their own, among which a board's variables, which choose nodes, do not choose.
import { CONFIGURATION } from '../../../dashboards/lib/configuration.ts';
import { CLUSTER_METRICS, CONTROL_PLANE_METRICS, METRICS } from '../../../dashboards/lib/metrics.ts';
import { type Reading, readPromql, type Selector } from './promql.ts';

export type Target = { refId?: string; expr?: string; datasource?: { uid?: string } };
export type Link = { title?: string; url?: string };
export type LintPanel = {
  type: string;
  title?: string;
  description?: string;
  datasource?: { uid?: string };
  targets?: Target[];
  fieldConfig?: {
    defaults?: { unit?: string; links?: Link[] };
    overrides?: { properties: { id: string; value?: unknown }[] }[];
  };
};
export type Variable = {
  type: string;
  name: string;
  label?: string;
  query?: unknown;
  datasource?: { uid?: string };
  multi?: boolean;
  allValue?: string;
  refresh?: number;
};
export type Board = {
  editable?: boolean;
  links?: Link[];
  templating: { list?: Variable[] };
  annotations?: { list?: { expr?: string }[] };
  panels?: LintPanel[];
};

type Rule = (board: Board) => readonly string[];

const UNITS = ['none', 'short', 'percentunit', 'bytes', 'Bps', 'watt', 'joule', 'celsius', 'hertz', 's', 'd', 'string'];
const UNITLESS_PANELS = ['state-timeline'];
const COUNTING = ['rate', 'irate', 'increase'];
const ON_TIME_RANGE_CHANGE = 2;
const MOST_SERIES = 10;
/** Labels of which there are few values, whatever the cluster. */
const VALUES_OF: Readonly<Record<string, number>> = {
  ...{ outcome: 6, route: 2, result: 4, kind: 4, verb: 5, decision: 4, severity: 2, cause: 2, reason: 6, job: 2 },
};
const { webhookJob, schedulerJob } = CONFIGURATION;
const CONTROL_PLANE_JOBS: readonly string[] = [webhookJob, schedulerJob, `${webhookJob}|${schedulerJob}`];
const DATASOURCE = ['$datasource', '${' + 'datasource}'];

export const RULES: Readonly<Record<string, Rule>> = {
  'template-datasource-rule': (board) => {
    const found = variables(board).filter(({ type }) => type === 'datasource');
    if (found.length !== 1) return [`${found.length} variables of type datasource instead of one`];
    return found.flatMap(({ name, label, query }) => [
      ...complaint(name === 'datasource', `variable ${name} is not named datasource`),
      ...complaint(label === 'Data source', `variable ${name} is labeled ${label}`),
      ...complaint(query === 'prometheus', `variable ${name} offers ${String(query)}`),
    ]);
  },
  'template-job-rule': (board) => requiredVariable(board, 'job', 'Job'),
  'template-instance-rule': (board) => requiredVariable(board, 'instance', 'Instance'),
  'template-label-promql-rule': (board) =>
    queryVariables(board).flatMap(({ name, query }) => {
      const [, selector, label] = /^label_values\((.+), (\w+)\)$/.exec(String(query)) ?? [];
      if (selector === undefined || label === undefined) return [`variable ${name}: ${String(query)}`];
      const { selectors } = readPromql(selector);
      return [
        ...complaint(selectors.length === 1, `variable ${name} does not ask for one selector`),
        ...selectors.flatMap(({ metric }) =>
          complaint(labelsOf(metric).includes(label), `variable ${name}: ${metric} has no label ${label}`),
        ),
      ];
    }),
  'template-on-time-change-reload-rule': (board) =>
    queryVariables(board).flatMap(({ name, refresh }) =>
      complaint(refresh === ON_TIME_RANGE_CHANGE, `variable ${name} is not read again when the time range changes`),
    ),
  'panel-datasource-rule': (board) =>
    panelsOf(board).flatMap((panel) => [
      ...complaint(isTemplated(panel.datasource), `panel ${panel.title}: ${panel.datasource?.uid}`),
      ...(panel.targets ?? []).flatMap(({ refId, datasource }) =>
        complaint(isTemplated(datasource), `panel ${panel.title}, query ${refId}: ${datasource?.uid}`),
      ),
    ]),
  'panel-title-description-rule': (board) =>
    panelsOf(board).flatMap((panel, index) => [
      ...complaint((panel.title ?? '') !== '', `panel ${index + 1} has no title`),
      ...complaint((panel.description ?? '') !== '', `panel ${index + 1} has no description`),
    ]),
  'panel-units-rule': (board) =>
    panelsOf(board)
      .filter(({ type }) => !UNITLESS_PANELS.includes(type))
      .flatMap(({ title, fieldConfig }) => {
        const unit = fieldConfig?.defaults?.unit ?? '';
        return complaint(UNITS.includes(unit), `panel ${title} has the unit "${unit}"`);
      }),
  'panel-no-targets-rule': (board) =>
    panelsOf(board).flatMap(({ title, targets }) =>
      complaint((targets ?? []).length > 0, `panel ${title} has no query`),
    ),
  'target-promql-rule': (board) =>
    queries(board).flatMap(({ where, expr }) => {
      try {
        const known = [
          'datasource',
          '__rate_interval',
          '__range',
          '__interval',
          ...variables(board).map(({ name }) => name),
        ];
        // $1 is a part of what label_replace matched.
        const used = [...expr.matchAll(/\$\{?([a-z_]\w*)/gi)].map((match) => match[1] ?? '');
        const { selectors } = readPromql(expr);
        return [
          ...complaint(selectors.length > 0, `${where}: asks for nothing`),
          ...used.flatMap((name) => complaint(known.includes(name), `${where}: variable ${name} does not exist`)),
        ];
      } catch (error) {
        return [`${where}: ${error instanceof Error ? error.message : String(error)}`];
      }
    }),
  'target-rate-interval-rule': (board) =>
    selectorsOf(board).flatMap(({ where, selector: { metric, range, call } }) =>
      complaint(
        range === undefined || !COUNTING.includes(call ?? '') || range === '$__rate_interval',
        `${where}: ${call}(${metric}[${range}])`,
      ),
    ),
  'target-job-rule': (board) => requiredMatcher(board, 'job'),
  'target-instance-rule': (board) => requiredMatcher(board, 'instance'),
  'target-counter-agg-rule': (board) =>
    selectorsOf(board).flatMap(({ where, selector: { metric, range, call } }) =>
      complaint(
        !metric.endsWith('_total') || (range !== undefined && COUNTING.includes(call ?? '')),
        `${where}: counter ${metric} stands without rate or increase`,
      ),
    ),
  'uneditable-dashboard-rule': (board) => complaint(board.editable === false, 'the board can be edited'),
  'ours: metrics exist': (board) =>
    selectorsOf(board).flatMap(({ where, selector: { metric } }) =>
      complaint(Object.hasOwn(METRICS, metric), `${where}: no metric ${metric}`),
    ),
  'ours: labels exist': (board) => queries(board).flatMap(({ where, expr }) => unknownLabels(where, expr)),
  'ours: series are bounded': (board) =>
    panelsOf(board)
      .filter(({ type }) => type === 'timeseries' || type === 'state-timeline')
      .flatMap((panel) => {
        const most = (panel.targets ?? [])
          .map(({ expr }) => mostSeries(expr ?? ''))
          .reduce((sum, each) => sum + each, 0);
        return complaint(most <= MOST_SERIES, `panel ${panel.title} may have ${most} series`);
      }),
  'ours: descriptions explain': (board) =>
    panelsOf(board).flatMap(({ title, description = '' }) =>
      complaint(/^\S.{20,}\.$/.test(description), `panel ${title} is described as "${description}"`),
    ),
};

/** What a rule has against the board; nothing when it passes. */
export function lint(board: Board, rule: string): readonly string[] {
  const check = RULES[rule];
  if (check === undefined) throw new Error(`no rule ${rule}`);
  return check(board);
}

/** Labels that an expression matches or groups by and that no metric in it has. */
export function unknownLabels(where: string, expr: string): readonly string[] {
  const { selectors, groupings } = readOrNothing(expr);
  const all = new Set(selectors.flatMap(({ metric }) => labelsOf(metric)));
  return [
    ...selectors.flatMap(({ metric, matchers }) =>
      matchers.flatMap(({ label }) =>
        complaint(labelsOf(metric).includes(label), `${where}: ${metric} has no label ${label}`),
      ),
    ),
    ...groupings.flatMap((label) => complaint(all.has(label), `${where}: no metric in it has a label ${label}`)),
  ];
}

/** With those that Prometheus adds to everything it scrapes. */
function labelsOf(metric: string): readonly string[] {
  const known: Readonly<Record<string, { labels: readonly string[] }>> = METRICS;
  return ['job', 'instance', ...(known[metric]?.labels ?? [])];
}

function requiredVariable(board: Board, name: string, label: string): readonly string[] {
  const variable = variables(board).find((each) => each.name === name);
  if (variable === undefined) return [`no variable ${name}`];
  return [
    ...complaint(variable.type === 'query', `variable ${name} is of type ${variable.type}`),
    ...complaint(isTemplated(variable.datasource), `variable ${name}: ${variable.datasource?.uid}`),
    ...complaint(variable.label === label, `variable ${name} is labeled ${variable.label}`),
    ...complaint(variable.multi === true, `variable ${name} takes one value only`),
    ...complaint(variable.allValue === '.+', `variable ${name} says all by ${variable.allValue}`),
  ];
}

/** Bounded by topk, by an aggregation without labels, or by a label with few values. */
function mostSeries(expr: string): number {
  if (/^(?:clamp_min\()?(?:sum|max|min|count|avg)\(/.test(expr)) return 1;
  const first = Number(/(?:top|bottom)k\((\d+), /.exec(expr)?.[1] ?? 0);
  if (first > 0) return first;
  const by = /^(?:sum|max|min|count) by \(([\w, ]+)\)/.exec(expr)?.[1] ?? /sum by \(le, (\w+)\)/.exec(expr)?.[1];
  if (by === undefined) return Number.POSITIVE_INFINITY;
  return by.split(', ').reduce((product, label) => product * (VALUES_OF[label] ?? Number.POSITIVE_INFINITY), 1);
}

/** Whether a selector is of webhook or scheduler, or of the cluster: not of a node. */
const notOfNodes = ({ metric, matchers }: Selector): boolean =>
  Object.hasOwn({ ...CONTROL_PLANE_METRICS, ...CLUSTER_METRICS }, metric) ||
  matchers.some(({ label, value }) => label === 'job' && CONTROL_PLANE_JOBS.includes(value));

function requiredMatcher(board: Board, label: string): readonly string[] {
  return selectorsOf(board).flatMap(({ where, selector }) =>
    complaint(
      notOfNodes(selector) ||
        selector.matchers.some((each) => each.label === label && each.operator === '=~' && each.value === `$${label}`),
      `${where}: ${selector.metric} without ${label}=~"$${label}"`,
    ),
  );
}

const panelsOf = (board: Board): readonly LintPanel[] => (board.panels ?? []).filter(({ type }) => type !== 'row');
const variables = (board: Board): readonly Variable[] => board.templating.list ?? [];
const queryVariables = (board: Board) => variables(board).filter(({ type }) => type === 'query');
const isTemplated = (datasource: { uid?: string } | undefined) => DATASOURCE.includes(datasource?.uid ?? '');

/** Every expression of the board, those of its annotations too. */
export function queries(board: Board): readonly { readonly where: string; readonly expr: string }[] {
  const ofPanels = panelsOf(board).flatMap(({ title, targets }) =>
    (targets ?? []).map(({ refId, expr }) => ({ where: `panel ${title}, query ${refId}`, expr: expr ?? '' })),
  );
  const marks = (board.annotations?.list ?? []).map(({ expr }) => ({ where: 'annotation', expr: expr ?? '' }));
  return [...ofPanels, ...marks];
}

function selectorsOf(board: Board): readonly { readonly where: string; readonly selector: Selector }[] {
  return queries(board).flatMap(({ where, expr }) =>
    readOrNothing(expr).selectors.map((selector) => ({ where, selector })),
  );
}

/** What cannot be read is target-promql-rule's business. */
function readOrNothing(expr: string): Reading {
  try {
    return readPromql(expr);
  } catch {
    return { selectors: [], groupings: [] };
  }
}

function complaint(fine: boolean, words: string): readonly string[] {
  return fine ? [] : [words];
}

// Builds a dashboard from its panels: variables, links, annotations, and what all dashboards have in common. Pure.
import {
  AnnotationQueryBuilder,
  type Dashboard,
  DashboardBuilder,
  DashboardCursorSync,
  type DashboardLink,
  DatasourceVariableBuilder,
  QueryVariableBuilder,
  RowBuilder,
  VariableRefresh,
  VariableSort,
} from '@grafana/grafana-foundation-sdk/dashboard';
import { DATASOURCE, ofAgents, ofTarget, type Panel, prometheus } from './builders.ts';
import { BOARD_UIDS, type BoardKey } from './lib/board-uids.ts';
import { select } from './lib/metrics.ts';
import { type Link, withChosen } from './links.ts';

// Of Grafana 10.3. Newer versions migrate it; older ones cannot read newer schemas.
const SCHEMA_VERSION = 39;

/** Titles of the boards, in the order of the links from each to the others: from overview to detail. */
const TITLES: Readonly<Record<BoardKey, string>> = {
  cluster: 'Cluster',
  node: 'Node and GPU',
  namespace: 'Namespace',
  container: 'Container',
  health: 'Cotenant itself',
  exporters: 'GPUs, as other exporters show them',
};
const KEYS = Object.keys(TITLES) as readonly BoardKey[];

type Plan = {
  readonly board: BoardKey;
  readonly description: string;
  /** After data source, job and instance. */
  readonly variables?: readonly QueryVariableBuilder[];
  /** Besides those of agents and drivers. */
  readonly annotations?: readonly AnnotationQueryBuilder[];
  readonly panels: readonly Panel[];
};

/** In Grafana's classic JSON model, which all ways of provisioning accept. */
export function boardOf({ board: key, description, variables = [], annotations = [], panels }: Plan): Dashboard {
  const board = new DashboardBuilder(`Cotenant / ${TITLES[key]}`)
    .uid(BOARD_UIDS[key])
    .description(description)
    .tags(['cotenant', 'gpu'])
    .readonly()
    .refresh('30s')
    .time({ from: 'now-1h', to: 'now' })
    .tooltip(DashboardCursorSync.Crosshair)
    .links(KEYS.filter((other) => other !== key).map((other) => linkTo(other)))
    .withVariable(new DatasourceVariableBuilder('datasource').label('Data source').type('prometheus'))
    .withVariable(variable('job', select('cotenant_up')))
    .withVariable(variable('instance', select('cotenant_up', 'job=~"$job"')));
  for (const each of variables) board.withVariable(each);
  for (const each of [...annotations, EVICTIONS, RESTARTS, DRIVER_CHANGES]) board.annotation(each);
  for (const panel of panels) {
    if (panel instanceof RowBuilder) board.withRow(panel);
    else board.withPanel(panel);
  }
  const built = board.build();
  // Numbered by position, so that links to a panel stay valid while the order does.
  const numbered = (built.panels ?? []).map((panel, index) => ({ ...panel, id: index + 1 }));
  const own = (built.templating?.list ?? []).map(({ name }) => name);
  const panels_ = JSON.parse(JSON.stringify(numbered), (name, value) =>
    name === 'url' ? withChosen(value, own) : value,
  );
  return { ...built, schemaVersion: SCHEMA_VERSION, panels: panels_ };
}

/** At the top of each other board. All variables go with it; a board ignores those that it does not have. */
const linkTo = (board: BoardKey): Link => ({
  build: () =>
    ({
      ...{
        title: TITLES[board],
        type: 'link',
        url: `/d/${BOARD_UIDS[board]}`,
        icon: 'dashboard',
        tooltip: '',
        tags: [],
      },
      ...{ asDropdown: false, targetBlank: false, includeVars: true, keepTime: true },
    }) as unknown as DashboardLink,
});

type Mark = { readonly name: string; readonly color: string; readonly title: string; readonly text: string };

/** A vertical line in all panels at each time at which the expression has a value. */
const marks = ({ name, color, title, text }: Mark, expr: string): AnnotationQueryBuilder =>
  new AnnotationQueryBuilder()
    .name(name)
    .datasource(DATASOURCE)
    .enable(true)
    .iconColor(color)
    .expr(expr)
    .target(prometheus(expr, ''))
    .titleFormat(title)
    .textFormat(text);

/** A red line at the time of each stop, which is the value of the series. Counters would miss a container's first
 * stop. */
export const stopMarks = (expr: string): AnnotationQueryBuilder =>
  marks(
    {
      name: 'Stops',
      color: 'red',
      title: '{{namespace}}/{{pod}} {{container}} stopped',
      text: '{{reason}}, {{action}}',
    },
    expr,
  ).useValueForTime(true);

const EVICTED = select(
  'cotenant_enforcement_decisions_total',
  'job=~"$job"',
  'instance=~"$instance"',
  'decision="evicted"',
);
const EVICTIONS = marks(
  { name: 'Evictions', color: 'orange', title: 'pod evicted on {{instance}}', text: '{{reason}}' },
  `sum by (instance, reason) (increase(${EVICTED}[$__rate_interval])) > 0`,
);
const RESTARTS = marks(
  { name: 'Agent restarts', color: 'blue', title: 'agent of {{instance}} started', text: 'counters begin at 0' },
  `max by (instance) (${ofAgents('process_start_time_seconds')}) * 1000`,
).useValueForTime(true);
const DRIVERS = (offset: string) =>
  `count by (instance, driver_version) (${ofTarget('cotenant_device_info')}${offset})`;
/** Versions of a node that had another one a quarter of an hour ago. */
const DRIVER_CHANGES = marks(
  { name: 'Driver changes', color: 'purple', title: 'driver of {{instance}} changed', text: '{{driver_version}}' },
  `${DRIVERS('')} unless ${DRIVERS(' offset 15m')} and on (instance) ${DRIVERS(' offset 15m')}`,
);

/** A variable with the values of the label of its name, queried again when the time range changes. */
export function variable(label: string, selector: string): QueryVariableBuilder {
  return new QueryVariableBuilder(label)
    .label(label.replace(/^./, (first) => first.toUpperCase()))
    .datasource(DATASOURCE)
    .query(`label_values(${selector}, ${label})`)
    .refresh(VariableRefresh.OnTimeRangeChanged)
    .sort(VariableSort.NaturalAsc)
    .multi(true)
    .includeAll(true)
    .current({ selected: true, text: 'All', value: '$__all' })
    .allValue('.+');
}

// Every link of every board, followed as Grafana follows it: from the series and rows of a recorded fleet, by the rules
// of Grafana's data links (grafana.com/docs/grafana/latest/panels-visualizations/configure-data-links). What the series
// or row says of a variable of the other board must be chosen there, and otherwise what is chosen here.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { field, listAt, textAt } from '../../../src/common/json.ts';
import { type Recorded, recordedFleet } from '../../boards/recorded.ts';
import { ROOT, readPage } from '../../support/docs.ts';
import { testUnless } from '../../support/gate.ts';
import { prometheusReason } from '../../support/services/prometheus.ts';

const testWithPrometheus = testUnless(prometheusReason());

type Labels = Readonly<Record<string, string>>;
/** Chosen values of variables. */
type Chosen = ReadonlyMap<string, string>;
type Target = { readonly refId: string; readonly expr: string };
type Panel = { readonly title: string; readonly targets: readonly Target[]; readonly json: unknown };
type Board = {
  readonly title: string;
  readonly uid: string;
  readonly variables: ReadonlyMap<string, string>;
  readonly panels: readonly Panel[];
  readonly links: readonly unknown[];
};
type Click = { readonly panel: Panel; readonly title: string; readonly url: string; readonly labels: Labels };

const BOARDS: readonly Board[] = ['cluster', 'node-gpu', 'namespace', 'container', 'health', 'exporters'].map(
  (name) => {
    const json: unknown = JSON.parse(readFileSync(join(ROOT, 'dashboards/output', `${name}.json`), 'utf8'));
    const templating = listAt(field(json, 'templating'), 'list');
    return {
      title: textAt(json, 'title')?.split(' / ')[1] ?? '',
      uid: textAt(json, 'uid') ?? '',
      variables: new Map(templating.map((each) => [textAt(each, 'name') ?? '', textAt(each, 'query') ?? ''])),
      panels: listAt(json, 'panels').map((panel) => ({
        title: textAt(panel, 'title') ?? '',
        targets: listAt(panel, 'targets') as Target[],
        json: panel,
      })),
      links: listAt(json, 'links'),
    };
  },
);
const boardOf = (wanted: string): Board => {
  const found = BOARDS.find(({ title, uid }) => title === wanted || uid === wanted);
  if (found === undefined) throw new Error(`no board ${wanted}`);
  return found;
};

/** The hour ends two minutes after a step of five, whatever the time is: what happened before that step is ranked. */
const TIMES: Labels = { __rate_interval: '5m', __interval: '1m', __range: '1h' };
/** As Grafana sends it. */
const sent = (expr: string, chosen: Chosen): string =>
  expr.replace(/\$\{?([a-z_]\w*)\}?/gi, (_, name: string) => chosen.get(name) ?? TIMES[name] ?? '.+');

/** With the names that the table shows. */
function rowOf(panel: Panel, labels: Labels): Labels {
  const organize = listAt(panel.json, 'transformations').find((each) => textAt(each, 'id') === 'organize');
  const names = field(field(organize, 'options'), 'renameByName') as Labels;
  return Object.fromEntries(Object.entries(labels).map(([name, value]) => [names[name] ?? name, value]));
}

/** What can be clicked in a panel: for each query and link, the first series that has it, by its labels. */
async function clicksOf(recorded: Recorded, panel: Panel, chosen: Chosen): Promise<readonly Click[]> {
  const config = field(panel.json, 'fieldConfig');
  const isTable = textAt(panel.json, 'type') === 'table';
  const overrides = listAt(config, 'overrides').flatMap((override) => {
    const links = listAt(override, 'properties').filter((each) => textAt(each, 'id') === 'links');
    const matcher = textAt(field(override, 'matcher'), 'options') ?? '';
    return links.flatMap((each) => listAt(each, 'value')).map((link) => ({ matcher, link }));
  });
  const everywhere = listAt(field(config, 'defaults'), 'links').map((link) => ({ matcher: undefined, link }));
  const clicks: Click[] = [];
  for (const { matcher, link } of [...everywhere, ...overrides]) {
    const targets = isTable
      ? panel.targets.slice(0, 1)
      : panel.targets.filter(({ refId }) => (matcher ?? refId) === refId);
    for (const { expr } of targets) {
      // Prometheus answers in no order.
      const answer = await recorded.prometheus.query(sent(expr, chosen), recorded.toSeconds);
      const [first] = answer.toSorted((a, b) => (JSON.stringify(a.metric) < JSON.stringify(b.metric) ? -1 : 1));
      if (first === undefined) continue;
      const labels = isTable ? rowOf(panel, first.metric) : first.metric;
      clicks.push({ panel, title: textAt(link, 'title') ?? '', url: textAt(link, 'url') ?? '', labels });
    }
  }
  return clicks;
}

/** Where a click leads: the board and what is chosen there. A placeholder without a value throws. */
function followed(click: Click, from: Board, chosen: Chosen): { readonly board: Board; readonly chosen: Chosen } {
  const url = click.url.replace(/\$\{([^}]+)\}/g, (_, text: string) => {
    if (text === '__url_time_range') return 'from=now-1h&to=now';
    const variable = /^(\w+):queryparam$/.exec(text)?.[1];
    if (variable !== undefined) {
      if (!from.variables.has(variable)) throw new Error(`${from.title} has no variable ${variable}`);
      return `var-${variable}=${encodeURIComponent(chosen.get(variable) ?? '$__all')}`;
    }
    const value = click.labels[text.replace(/^__field\.labels\.|^__data\.fields\./, '')];
    if (value === undefined || value === '')
      throw new Error(`${from.title}, ${click.panel.title}: no value for ${text}`);
    return encodeURIComponent(value);
  });
  const { pathname, searchParams } = new URL(url, 'http://grafana');
  if (!searchParams.has('from')) throw new Error(`${url} forgets the time range`);
  const given = [...searchParams].flatMap(([name, value]) => (name.startsWith('var-') ? [[name.slice(4), value]] : []));
  return { board: boardOf(pathname.slice('/d/'.length)), chosen: new Map(given as [string, string][]) };
}

/** The value of a label that a series or row has, under the name of the label or its title. */
const TITLES: Labels = { instance: 'Hostname', gpu: 'GPU', namespace: 'Namespace', pod: 'Pod', container: 'Container' };
const saidOf = ({ labels }: Click, name: string) => labels[name] ?? labels[TITLES[name] ?? name];
const concrete = (chosen: Chosen): Chosen => new Map([...chosen].filter(([, value]) => value !== '$__all'));

testWithPrometheus('each link keeps what its row, series or board says of the other board', async (t) => {
  t.timeout(240_000);
  const recorded = await recordedFleet(t, { gpus: 2, tenants: 20 });
  const leading: string[] = [];
  for (const from of BOARDS) {
    const chosen = new Map([...from.variables.keys()].map((name) => [name, '$__all']));
    for (const panel of from.panels) {
      for (const click of await clicksOf(recorded, panel, concrete(chosen))) {
        leading.push(`${from.title}, ${panel.title}`);
        const where = `${from.title}, ${panel.title}, ${click.title}`;
        const there = followed(click, from, chosen);
        for (const name of there.board.variables.keys()) {
          const said = saidOf(click, name);
          const wanted = said ?? (from.variables.has(name) ? '$__all' : undefined);
          t.is(there.chosen.get(name), wanted, `${where}: ${name}`);
        }
        await hasChoices(t, recorded, there, where);
      }
    }
  }
  const withLinks = BOARDS.flatMap(({ title, panels }) =>
    panels.flatMap((panel) => (JSON.stringify(panel.json).includes('"/d/') ? [`${title}, ${panel.title}`] : [])),
  );
  t.true(withLinks.length > 30, String(withLinks.length));
  t.deepEqual([...new Set(leading)], withLinks, 'each panel with links has a series or row that leads');
});

/** What was chosen is among what the variables of the board offer. */
async function hasChoices(
  t: ExecutionContext,
  { prometheus }: Recorded,
  { board, chosen }: ReturnType<typeof followed>,
  where: string,
): Promise<void> {
  for (const [name, value] of concrete(chosen)) {
    const [, selector, label] = /^label_values\((.*), (\w+)\)$/.exec(board.variables.get(name) ?? '') ?? [];
    const offered = await prometheus.values(label ?? '', sent(selector ?? '', concrete(chosen)));
    t.true(offered.includes(value), `${where}: ${name}=${value} is not offered`);
  }
}

testWithPrometheus('links at the top keep variables and times, and lead to each other board', (t) => {
  for (const { title, uid, links } of BOARDS) {
    t.deepEqual(
      links.map((link) => textAt(link, 'url')),
      BOARDS.filter((each) => each.uid !== uid).map((each) => `/d/${each.uid}`),
      title,
    );
    for (const link of links) t.deepEqual([field(link, 'keepTime'), field(link, 'includeVars')], [true, true], title);
  }
});

/** Panels that show something only where something is wrong that is not in this fleet. */
const SILENT = ['Stops'];

testWithPrometheus('ten questions are answered by clicks on what is drawn', async (t) => {
  t.timeout(240_000);
  const recorded = await recordedFleet(t, { gpus: 2, tenants: 20 });
  const rows = readPage('docs/operate/boards.md')
    .split('\n')
    .filter((line) => line.startsWith('| ') && line.includes('**'));
  t.is(rows.length, 10);
  for (const row of rows) {
    const path = row.split(' | ')[1] ?? '';
    let [chosen, before]: [Chosen, { board: Board; panel: string } | undefined] = [new Map(), undefined];
    for (const step of path.split(/ (?=[→⇢] )/)) {
      const board = boardOf(/\*\*(.+?)\*\*/.exec(step)?.[1] ?? '');
      const panels = [...step.replace(/\*\*.+?\*\*/, '').matchAll(/\*(.+?)\*/g)].map((match) => match[1] ?? '');
      if (step.startsWith('→')) {
        const panel = before?.board.panels.find(({ title }) => title === before?.panel);
        if (before === undefined || panel === undefined) return t.fail(path);
        const clicks = await clicksOf(recorded, panel, concrete(chosen));
        const click = clicks.find(({ url }) => url.startsWith(`/d/${board.uid}?`));
        if (click === undefined) return t.fail(`${path}: nothing in ${panel.title} leads to ${board.title}`);
        chosen = followed(click, before.board, chosen).chosen;
      }
      // Links at the top take all variables along.
      for (const title of panels) {
        const panel = board.panels.find((each) => each.title === title);
        if (panel === undefined) return t.fail(`${path}: no ${title}`);
        const answers = panel.targets.map(({ expr }) =>
          recorded.prometheus.query(sent(expr, concrete(chosen)), recorded.toSeconds),
        );
        const found = (await Promise.all(answers)).flat();
        if (!SILENT.includes(title)) t.true(found.length > 0, `${path}: ${title} shows nothing`);
      }
      before = { board, panel: panels[0] ?? '' };
    }
  }
});

// Links from a series or a row to another board. They fill each variable of that board from the labels of the series or
// row, or else with what is chosen on this board.
import type { DashboardLink } from '@grafana/grafana-foundation-sdk/dashboard';
import { BOARD_UIDS, type BoardKey } from './lib/board-uids.ts';

/** Variables of each board that choose something, besides the data source. */
const VARIABLES: Readonly<Record<BoardKey, readonly string[]>> = {
  cluster: ['job', 'instance'],
  node: ['job', 'instance', 'gpu'],
  namespace: ['job', 'instance', 'namespace'],
  container: ['job', 'instance', 'namespace', 'pod', 'container'],
  health: ['job', 'instance'],
  exporters: ['job', 'instance', 'gpu'],
};

export type Link = { build(): DashboardLink };

/** To a board, and the label without which a series or row does not lead there. */
export type Lead = { readonly title: string; readonly board: BoardKey; readonly by: string };
export const toNode: Lead = { title: 'Node and GPU', board: 'node', by: 'node' };
export const toNamespace: Lead = { title: 'Namespace', board: 'namespace', by: 'namespace' };
export const toContainer: Lead = { title: 'Container', board: 'container', by: 'pod' };

/** `from`: the value in Grafana of each label that there is. */
function linkOf({ title, board }: Lead, from: ReadonlyMap<string, string>): Link {
  const given = VARIABLES[board].flatMap((name) => (from.has(name) ? [`var-${name}=\${${from.get(name)}}`] : []));
  // biome-ignore lint/suspicious/noTemplateCurlyInString: Grafana replaces these.
  const kept = ['${datasource:queryparam}', '${__url_time_range}'];
  return { build: () => ({ title, url: `/d/${BOARD_UIDS[board]}?${[...kept, ...given].join('&')}` }) as DashboardLink };
}

/** From a series with these labels. */
export const seriesLink = (lead: Lead, labels: readonly string[]): Link =>
  linkOf(lead, new Map(labels.map((name) => [name, `__field.labels.${name}`])));

/** From a row that has these labels under these titles. */
export const rowLink = (lead: Lead, titles: Readonly<Record<string, string>>): Link =>
  linkOf(lead, new Map(Object.entries(titles).map(([label, title]) => [label, `__data.fields.${title}`])));

/** A link with what is chosen on its own board, which has these variables, where it gives nothing else. */
export function withChosen(url: string, own: readonly string[]): string {
  const target = (Object.keys(BOARD_UIDS) as BoardKey[]).find((key) => url.startsWith(`/d/${BOARD_UIDS[key]}?`));
  if (target === undefined) return url;
  const left = VARIABLES[target].filter((name) => own.includes(name) && !url.includes(`var-${name}=`));
  return [url, ...left.map((name) => `\${${name}:queryparam}`)].join('&');
}

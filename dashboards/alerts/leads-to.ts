// Where someone goes from an alert: the board that shows the thing, and the command that explains it. Pure.
import { COMPONENT_LABEL } from '../../src/api/names.ts';
import { BOARD_UIDS, type BoardKey } from '../lib/board-uids.ts';

/** What an alert is about: its labels name one of these. */
export type About = keyof typeof BOARD_OF;

const BOARD_OF = {
  container: 'container',
  gpu: 'node',
  node: 'node',
  agent: 'health',
  cluster: 'cluster',
  webhook: 'health',
  scheduler: 'health',
} as const satisfies Record<string, BoardKey>;

/** A variable of the board with the value of the label of the same name. */
const variable = (label: string) => `var-${label}={{ $labels.${label} | urlquery }}`;
const containers = ['namespace', 'pod', 'container'].map(variable).join('&');
/** Without a target there is no instance. */
const ofInstance = (text: string) => `{{ with $labels.instance }}${text}{{ end }}`;
const inspectNode = 'kubectl cotenant inspect --node {{ $labels.instance }}';
const podsOf = (component: string) => `kubectl get pods -A -o wide -l ${COMPONENT_LABEL}=${component}`;

const VARIABLES: Readonly<Record<About, string>> = {
  container: `?${containers}`,
  gpu: `?${['instance', 'gpu'].map(variable).join('&')}`,
  node: `?${variable('instance')}`,
  agent: ofInstance('?var-instance={{ . | urlquery }}'),
  ...{ cluster: '', webhook: '', scheduler: '' },
};
const COMMANDS: Readonly<Record<About, string>> = {
  container: 'kubectl cotenant why {{ $labels.namespace }}/{{ $labels.pod }}',
  gpu: inspectNode,
  node: inspectNode,
  agent: `kubectl cotenant inspect${ofInstance(' --node {{ . }}')}`,
  cluster: 'kubectl cotenant inspect',
  webhook: podsOf('webhook'),
  scheduler: podsOf('scheduler'),
};

/** The link is a path in Grafana; the chart puts its URL before it. */
export const leadsTo = (about: About): { readonly dashboard: string; readonly command: string } => ({
  dashboard: `/d/${BOARD_UIDS[BOARD_OF[about]]}${VARIABLES[about]}`,
  command: COMMANDS[about],
});

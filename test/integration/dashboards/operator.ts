// What the Prometheus operator makes of an AlertmanagerConfig for an Alertmanager with the matcher strategy None: its
// convertRoute, convertInhibitRule, makeNamespacedString and continueToNextRoute (pkg/alertmanager/amcfg.go). Pure.
import { stringify } from 'yaml';

type Matcher = { readonly name: string; readonly matchType: string; readonly value: string };
type Route = {
  readonly receiver: string;
  readonly groupBy?: readonly string[];
  readonly groupWait?: string;
  readonly groupInterval?: string;
  readonly repeatInterval?: string;
  readonly matchers?: readonly Matcher[];
  readonly routes?: readonly Route[];
};
export type AlertmanagerConfig = {
  readonly metadata: { readonly name: string };
  readonly spec: {
    readonly route: Route;
    readonly receivers: readonly { readonly name: string }[];
    readonly inhibitRules: readonly {
      readonly sourceMatch: readonly Matcher[];
      readonly targetMatch: readonly Matcher[];
      readonly equal?: readonly string[];
    }[];
  };
};

const matcher = ({ name, matchType, value }: Matcher): string => `${name}${matchType}${JSON.stringify(value)}`;

/** The file that Alertmanager reads; `prefix` comes before the names of receivers. */
export function asOperator(config: AlertmanagerConfig, namespace: string): { text: string; prefix: string } {
  const { metadata, spec } = config;
  const prefix = `${namespace}/${metadata.name}/`;
  const route = (one: Route): object => ({
    receiver: `${prefix}${one.receiver}`,
    ...(one.groupBy && { group_by: one.groupBy }),
    ...(one.groupWait && { group_wait: one.groupWait }),
    ...(one.groupInterval && { group_interval: one.groupInterval }),
    ...(one.repeatInterval && { repeat_interval: one.repeatInterval }),
    ...(one.matchers && { matchers: one.matchers.map(matcher) }),
    ...(one.routes && { routes: one.routes.map(route) }),
  });
  const inhibit_rules = spec.inhibitRules.map(({ sourceMatch, targetMatch, equal }) => ({
    source_matchers: sourceMatch.map(matcher),
    target_matchers: targetMatch.map(matcher),
    ...(equal && { equal }),
  }));
  const receivers = [{ name: 'null' }, ...spec.receivers.map(({ name }) => ({ name: `${prefix}${name}` }))];
  const top = { receiver: 'null', routes: [{ ...route(spec.route), continue: true }] };
  return { text: stringify({ route: top, receivers, inhibit_rules }), prefix };
}

// The example configuration of Alertmanager as an AlertmanagerConfig of the Prometheus operator: the same routes and
// inhibitions in the operator's words. The chart puts receivers to it.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';

type Route = {
  readonly receiver: string;
  readonly matchers?: readonly string[];
  readonly group_by?: readonly string[];
  readonly group_wait?: string;
  readonly group_interval?: string;
  readonly repeat_interval?: string;
  readonly routes?: readonly Route[];
};
type Inhibition = {
  readonly source_matchers: readonly string[];
  readonly target_matchers: readonly string[];
  readonly equal?: readonly string[];
};
type AlertmanagerConfiguration = {
  readonly route: Route;
  readonly receivers: readonly { readonly name: string }[];
  readonly inhibit_rules: readonly Inhibition[];
};

const EXAMPLE = join(import.meta.dirname, '../../examples/prometheus/alertmanager.yaml');

/** The name, the kind and the value of a matcher such as `severity=~"warning|info"`. */
function matcherOf(text: string) {
  const [, name, matchType, value] = /^(\w+)(=~|!~|!=|=)"(.*)"$/.exec(text) ?? [];
  if (name === undefined) throw new Error(`${EXAMPLE}: ${text} is no matcher; want NAME="VALUE" or NAME=~"VALUE"`);
  return { name, matchType, value };
}

/** The operator writes the same fields in camel case. */
const camel = (name: string): string => name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());

function routeOf({ matchers, routes, ...rest }: Route): object {
  return {
    ...Object.fromEntries(Object.entries(rest).map(([name, value]) => [camel(name), value])),
    ...(matchers && { matchers: matchers.map(matcherOf) }),
    ...(routes && { routes: routes.map(routeOf) }),
  };
}

/** Without the route at the top: the operator puts that of an AlertmanagerConfig below its own. */
export function alertmanagerConfig() {
  const { route, receivers, inhibit_rules }: AlertmanagerConfiguration = parse(readFileSync(EXAMPLE, 'utf8'));
  const [ours, ...others] = route.routes ?? [];
  if (ours === undefined || others.length > 0) throw new Error(`${EXAMPLE}: want one route below the top`);
  return {
    apiVersion: 'monitoring.coreos.com/v1alpha1',
    kind: 'AlertmanagerConfig',
    metadata: { name: 'cotenant' },
    spec: {
      route: routeOf(ours),
      receivers,
      inhibitRules: inhibit_rules.map(({ source_matchers, target_matchers, equal }) => ({
        sourceMatch: source_matchers.map(matcherOf),
        targetMatch: target_matchers.map(matcherOf),
        ...(equal && { equal }),
      })),
    },
  };
}

// What of other GPU-sharing systems is alive in the cluster, and the dialects that are therefore not read: their pods are
// left to them. Pure; watch-systems.ts reads the cluster.

import type { V1Deployment, V1MutatingWebhookConfiguration, V1Node } from '@kubernetes/client-node';
import type { DialectName } from '../src/api/request.ts';
import { field, type JsonObject, objectAt } from '../src/common/json.ts';
import { sameQuantity } from '../src/common/quantity.ts';
import type { PodContainer } from '../src/request/containers.ts';
import { type Dialect, ownsKey, ownsResource } from '../src/request/dialects/dialect.ts';
import { FOREIGN_DIALECTS } from '../src/request/dialects/index.ts';
import type { Rules } from '../src/request/rules/namespace-rules.ts';

/** Dialect of a living system -> what was found of it, such as "node n1 has nvidia.com/gpu". */
export type ForeignSystems = ReadonlyMap<DialectName, string>;
/** What one object of the cluster shows. */
export type Sign = { readonly dialect: DialectName; readonly found: string };

const signsOf = (owns: (dialect: Dialect) => boolean, found: string): readonly Sign[] =>
  FOREIGN_DIALECTS.filter(owns).map(({ name: dialect }) => ({ dialect, found }));

/** A device plugin: the kubelet keeps the resource of one that is gone, with an amount of 0. */
export function signsOfNode({ metadata, status }: V1Node): readonly Sign[] {
  return Object.entries(status?.allocatable ?? {})
    .filter(([, amount]) => !sameQuantity(amount, '0'))
    .flatMap(([name]) => signsOf((dialect) => ownsResource(dialect, name), `node ${metadata?.name} has ${name}`));
}

export function signsOfWebhooks({ webhooks = [] }: V1MutatingWebhookConfiguration): readonly Sign[] {
  return webhooks.flatMap(({ name }) =>
    signsOf(({ signs }) => signs?.webhooks?.includes(name) ?? false, `webhook ${name}`),
  );
}

/** A scheduler with a pod that runs. */
export function signsOfDeployment({ metadata, status }: V1Deployment): readonly Sign[] {
  const place = `${metadata?.namespace}/${metadata?.name}`;
  if (!status?.availableReplicas) return [];
  return signsOf(({ signs }) => signs?.deployments?.includes(place) ?? false, `Deployment ${place}`);
}

/** Of each dialect the first sign that was found. */
export function systemsOf(signs: Iterable<Sign>): ForeignSystems {
  const systems = new Map<DialectName, string>();
  for (const { dialect, found } of signs) if (!systems.has(dialect)) systems.set(dialect, found);
  return systems;
}

const isLeft = ({ foreignSystems }: Rules, systems: ForeignSystems, name: DialectName): boolean =>
  foreignSystems === 'respect' && systems.has(name);

/** The rules without the dialects of living systems that are respected. */
export function withoutLiving(rules: Rules, systems: ForeignSystems = new Map()): Rules {
  if (systems.size === 0) return rules;
  return { ...rules, dialects: rules.dialects.filter((name) => !isLeft(rules, systems, name)) };
}

/** Why a pod without a share is left to another system; undefined where it is not. */
export function leftToOthers(
  pod: JsonObject,
  containers: readonly PodContainer[],
  rules: Rules,
  systems: ForeignSystems = new Map(),
): string | undefined {
  const metadata = field(pod, 'metadata');
  const keys = Object.keys({ ...objectAt(metadata, 'annotations'), ...objectAt(metadata, 'labels') });
  const resources = containers.flatMap(({ spec }) => Object.keys(objectAt(objectAt(spec, 'resources'), 'limits')));
  const dialect = FOREIGN_DIALECTS.find(
    (one) =>
      rules.dialects.some((name) => name === one.name && isLeft(rules, systems, name)) &&
      (resources.some((name) => ownsResource(one, name)) || keys.some((key) => ownsKey(one, key))),
  );
  return dialect && `rule foreignSystems: left to ${dialect.name}, which is alive here: ${systems.get(dialect.name)}`;
}

// The annotation by which a container runtime refuses a container that our NRI plugin has not seen: without it a
// container with a share would start without its GPUs while the agent is down. Merges it with the plugins that a tenant
// requires.

import { NRI_PLUGIN, REQUIRED_PLUGINS_ANNOTATION } from '../src/api/names.ts';
import { field, type JsonObject } from '../src/common/json.ts';
import { invalid, keyPath, type Problem } from '../src/common/problem.ts';
import type { WebhookConfiguration } from './config.ts';

type Required = { readonly annotations: JsonObject; readonly problems: readonly Problem[] };

/**
 * The annotations that make our plugin required for each container of `shares`: the pod's own key, and a tenant's keys
 * that would override it. A list that has our plugin keeps its text.
 */
export function requirePlugin(
  annotations: JsonObject,
  shares: readonly string[],
  { deviceRoute }: Pick<WebhookConfiguration, 'deviceRoute'>,
): Required {
  if (deviceRoute !== 'nri') return { annotations: {}, problems: [] };
  const overriding = ['/pod', ...shares.map((name) => `/container.${name}`)].map(
    (end) => REQUIRED_PLUGINS_ANNOTATION + end,
  );
  const problems: Problem[] = [];
  const entries = [REQUIRED_PLUGINS_ANNOTATION, ...overriding].flatMap((key): [string, unknown][] => {
    const given = field(annotations, key);
    if (given === undefined) return key === REQUIRED_PLUGINS_ANNOTATION ? [[key, JSON.stringify([NRI_PLUGIN])]] : [];
    const names = parseNames(given);
    if (names === undefined) {
      const right = `write them as JSON, such as ${JSON.stringify([NRI_PLUGIN])}`;
      problems.push(invalid(keyPath('metadata.annotations', key), given, 'is not a list of names', right));
      return [];
    }
    return [[key, names.includes(NRI_PLUGIN) ? given : JSON.stringify([...names, NRI_PLUGIN])]];
  });
  return { annotations: Object.fromEntries(entries), problems };
}

/** True for the key of the pod and of any container. */
export function isRequiredPluginsKey(key: string): boolean {
  return key === REQUIRED_PLUGINS_ANNOTATION || key.startsWith(`${REQUIRED_PLUGINS_ANNOTATION}/`);
}

function parseNames(text: unknown): readonly string[] | undefined {
  try {
    const value: unknown = JSON.parse(String(text));
    return Array.isArray(value) && value.every((name) => typeof name === 'string') ? value : undefined;
  } catch {
    return undefined;
  }
}

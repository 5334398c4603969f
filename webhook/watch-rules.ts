// Follows the ConfigMap with the live rules: each right one is in force at once, a wrong one changes nothing.

import type { V1ConfigMap } from '@kubernetes/client-node';
import type { JsonObject } from '../src/common/json.ts';
import type { Logger } from '../src/common/logger.ts';
import { formatProblem, type Problem } from '../src/common/problem.ts';
import type { ApiConfig } from '../src/kube/config.ts';
import { listAndWatch } from '../src/kube/list-watch.ts';
import type { WebhookConfiguration } from './config.ts';
import { readLiveRules } from './live-rules.ts';

export type RulesWatch = {
  /** In force now. */
  readonly configuration: () => WebhookConfiguration;
  /** Whether that is what the ConfigMap says, or there is none. */
  readonly valid: () => boolean;
  /** What is wrong with a ConfigMap that is being written. */
  readonly check: (configMap: JsonObject) => readonly Problem[];
  close(): Promise<void>;
};

export type RulesSource = {
  readonly namespace: string;
  readonly name: string;
  /** What the webhook was started with, and what follows from them: in force where there is no ConfigMap, or a wrong one
   * from the start. */
  readonly settings: JsonObject;
  readonly configuration: WebhookConfiguration;
};

/** Resolves once the ConfigMap was read: a webhook that does not know its rules yet would admit pods by others. */
export async function watchRules(
  config: ApiConfig,
  { namespace, name, settings, configuration }: RulesSource,
  logger: Pick<Logger, 'info' | 'warn' | 'error'>,
): Promise<RulesWatch> {
  const place = `ConfigMap ${namespace}/${name}`;
  let current = configuration;
  let valid = true;
  let seen: string | undefined;
  const take = (object: V1ConfigMap | undefined) => {
    const version = object?.metadata?.resourceVersion ?? '';
    if (version === seen) return;
    seen = version;
    if (object === undefined) {
      logger.info(`${place}: is not there; the settings of --config are in force`);
      [current, valid] = [configuration, true];
      return;
    }
    const read = readLiveRules(object, settings);
    valid = read.ok;
    if (read.ok) {
      logger.info(`${place}: its rules are in force (resourceVersion ${version})`);
      current = read.value;
    } else {
      const held = current === configuration ? 'the settings of --config stay' : 'the rules before it stay';
      logger.error(`${place}: not read, ${held} in force: ${read.error.map(formatProblem).join(' | ')}`);
    }
  };
  const watch = listAndWatch(config, {
    path: `/api/v1/namespaces/${namespace}/configmaps`,
    query: { fieldSelector: `metadata.name=${name}` },
    keep: (object: V1ConfigMap) => object,
    onList: ([object]) => take(object),
    onChange: take,
    onGone: () => take(undefined),
    onProblem: (text) => logger.warn(`cannot read ${place}, and retries: ${text}`),
  });
  await watch.ready;
  return {
    configuration: () => current,
    valid: () => valid,
    check: (configMap) => {
      const read = readLiveRules(configMap, settings);
      return read.ok ? [] : read.error;
    },
    close: () => watch.close(),
  };
}

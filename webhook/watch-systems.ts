// Watches what shows that another GPU-sharing system is alive: amounts of Nodes, mutating webhooks, Deployments of
// schedulers. All of them are objects that only administrators write.

import { isDeepEqual } from '../src/common/deep-equal.ts';
import { textAt } from '../src/common/json.ts';
import type { Logger } from '../src/common/logger.ts';
import type { ApiConfig } from '../src/kube/config.ts';
import { listAndWatch } from '../src/kube/list-watch.ts';
import { FOREIGN_DIALECTS } from '../src/request/dialects/index.ts';
import {
  type ForeignSystems,
  type Sign,
  signsOfDeployment,
  signsOfNode,
  signsOfWebhooks,
  systemsOf,
} from './foreign-systems.ts';

type Source = {
  readonly path: string;
  readonly query?: Readonly<Record<string, string>>;
  // biome-ignore lint/suspicious/noExplicitAny: each source reads objects of its own kind.
  readonly signs: (object: any) => readonly Sign[];
};

const SOURCES: readonly Source[] = [
  { path: '/api/v1/nodes', signs: signsOfNode },
  { path: '/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations', signs: signsOfWebhooks },
  ...FOREIGN_DIALECTS.flatMap(({ signs }) => signs?.deployments ?? []).map((place) => {
    const [namespace, name] = place.split('/');
    const query = { fieldSelector: `metadata.name=${name}` };
    return { path: `/apis/apps/v1/namespaces/${namespace}/deployments`, query, signs: signsOfDeployment };
  }),
];

export type SystemsWatch = {
  readonly systems: () => ForeignSystems;
  close(): Promise<void>;
};

/** Resolves once everything was read: a webhook that does not know yet would convert pods of a living system. */
export async function watchSystems(config: ApiConfig, logger: Pick<Logger, 'info' | 'warn'>): Promise<SystemsWatch> {
  const bySource = SOURCES.map(() => new Map<string, readonly Sign[]>());
  let systems: ForeignSystems = new Map();
  const update = () => {
    const next = systemsOf(bySource.flatMap((objects) => [...objects.values()].flat()));
    for (const [dialect, found] of next) if (!systems.has(dialect)) logger.info(`${dialect} is alive: ${found}`);
    for (const dialect of systems.keys()) if (!next.has(dialect)) logger.info(`${dialect} is gone`);
    systems = next;
  };
  const watches = SOURCES.map(({ path, query, signs }, index) => {
    const objects = bySource[index] ?? new Map<string, readonly Sign[]>();
    return listAndWatch(config, {
      path,
      ...(query && { query }),
      keep: (object: { metadata?: object }) => ({ name: textAt(object.metadata, 'name') ?? '', signs: signs(object) }),
      onList: (items) => {
        objects.clear();
        for (const { name, signs } of items) objects.set(name, signs);
        update();
      },
      onChange: ({ name, signs }) => {
        if (isDeepEqual(objects.get(name), signs)) return;
        objects.set(name, signs);
        update();
      },
      onGone: ({ name }) => {
        if (objects.delete(name)) update();
      },
      onProblem: (text) => logger.warn(`cannot look for other systems at ${path}, and retries: ${text}`),
    });
  });
  await Promise.all(watches.map(({ ready }) => ready));
  return {
    systems: () => systems,
    close: async () => {
      await Promise.all(watches.map((watch) => watch.close()));
    },
  };
}

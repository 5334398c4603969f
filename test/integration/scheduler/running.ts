// The extender for one test, called as kube-scheduler calls it.
import type { ExecutionContext } from 'ava';
import { REQUEST_ANNOTATION } from '../../../src/api/names.ts';
import { createLogger } from '../../../src/common/logger.ts';
import { type SchedulerOptions, startScheduler } from '../../../src/scheduler/start.ts';
import { eventually } from '../../support/native/node.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { recordOf } from '../../unit/scheduler/cluster.ts';
import type { Api } from './api.ts';

type Answer = { readonly status: number; readonly body: Record<string, unknown> };

export async function start(t: ExecutionContext, api: Api, more: Partial<SchedulerOptions> = {}) {
  const lines: string[] = [];
  const running = await startScheduler({
    config: api.config,
    host: '127.0.0.1',
    port: 0,
    healthPort: 0,
    lease: { namespace: 'ns', name: 'l' },
    leaseHolder: 'sidecar',
    hostname: 'pod-a',
    placement: 'binpack',
    mostNodes: 100,
    evictOvercommittedAfterMs: 15_000,
    logger: createLogger({ component: 'scheduler', write: (line) => lines.push(line) }),
    ...more,
  });
  t.teardown(() => running.close());
  const health = `http://127.0.0.1:${running.healthPort}`;
  await eventually(async () => ((await fetch(`${health}/readyz`)).status === 200 ? true : undefined), 'it is ready');
  const call = async (verb: string, body: unknown): Promise<Answer> => {
    const text = typeof body === 'string' ? body : JSON.stringify(body);
    const answer = await fetch(`http://127.0.0.1:${running.port}/${verb}`, { method: 'POST', body: text });
    return { status: answer.status, body: (await answer.json()) as Record<string, unknown> };
  };
  return {
    lines,
    call,
    filter: (name: string, mib: number, nodes: readonly string[], labels: Readonly<Record<string, string>> = {}) =>
      call('filter', {
        Pod: {
          metadata: {
            ...{ namespace: 'team', uid: `uid-${name}`, labels },
            annotations: { [REQUEST_ANNOTATION]: recordOf(mib) },
          },
        },
        NodeNames: nodes,
      }),
    /** undefined: it was bound. */
    bind: async (name: string, node: string, uid = `uid-${name}`): Promise<unknown> =>
      (await call('bind', { PodName: name, PodNamespace: 'team', PodUID: uid, Node: node })).body.Error,
    series: async (name: string, labels: Record<string, string> = {}) =>
      seriesOf(await (await fetch(`${health}/metrics`)).text(), name, labels),
  };
}

export type Running = Awaited<ReturnType<typeof start>>;
export const leads = (running: Running) =>
  eventually(async () => ((await running.series('cotenant_scheduler_leader')) === 1 ? true : undefined), 'it leads');
/** Which of the nodes would take another pod of so many MiB. */
export const feasible = async (running: Running, mib: number) =>
  (await running.filter('other', mib, ['a'])).body.NodeNames;
/** Waits for what a series shows. */
export const shows = (running: Running, name: string, value: number) =>
  eventually(async () => ((await running.series(name)) === value ? true : undefined), `${name} ${value}`);

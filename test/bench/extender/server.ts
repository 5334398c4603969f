// The extender as kube-scheduler meets it: over loopback HTTP, in this process, with a stub that takes its bindings.
import { once } from 'node:events';
import { Agent, createServer, type RequestListener, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { KubeConfig } from '@kubernetes/client-node';
import type { Placement } from '../../../src/api/request.ts';
import { createLogger } from '../../../src/common/logger.ts';
import type { Allocations } from '../../../src/placement/allocations.ts';
import { createInFlightBindings } from '../../../src/scheduler/allocations/in-flight.ts';
import { createBinder } from '../../../src/scheduler/bind.ts';
import { createDecider } from '../../../src/scheduler/decisions/filter-and-score.ts';
import { createDecideInLag } from '../../../src/scheduler/decisions/watch-lag.ts';
import { budgetsOf } from '../../../src/scheduler/evictions/disruption-budgets.ts';
import { createRoomMaker } from '../../../src/scheduler/evictions/make-room.ts';
import { createNominations } from '../../../src/scheduler/evictions/nominations.ts';
import { createPreemptionPlanner } from '../../../src/scheduler/evictions/preemption.ts';
import { createGangs } from '../../../src/scheduler/groups/gangs.ts';
import { createPodGroups } from '../../../src/scheduler/groups/pod-groups.ts';
import { createMetrics } from '../../../src/scheduler/metrics.ts';
import { createExtender } from '../../../src/scheduler/server.ts';
import type { Teardown } from '../../support/native/node.ts';

export async function serve(scope: Teardown, handler: RequestListener): Promise<number> {
  const server = createServer({ keepAliveTimeout: 120_000 }, handler).listen(0, '127.0.0.1');
  await once(server, 'listening');
  scope.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return (server.address() as AddressInfo).port;
}

/** A whole extender, which leads; its bindings are taken by an API server that costs nothing. */
export async function extenderOn(
  scope: Teardown,
  allocations: Allocations,
  placement: Placement = 'binpack',
): Promise<RequestListener> {
  const port = await serve(scope, (incoming, response) => {
    incoming.resume();
    incoming.on('end', () => response.writeHead(201, { 'content-type': 'application/json' }).end('{"kind":"Status"}'));
  });
  const config = new KubeConfig();
  config.loadFromClusterAndUser(
    { name: 'stub', server: `http://127.0.0.1:${port}`, skipTLSVerify: true },
    { name: 'bench' },
  );
  const decider = createDecider(allocations, placement);
  const leadership = {
    state: () => ({ leads: true, epoch: 1, term: 'a' }) as const,
    ready: Promise.resolve(),
    close: async () => {},
  };
  const logger = createLogger({ component: 'scheduler', level: 'error' });
  const inFlight = createInFlightBindings();
  const boundPods = new Map();
  const budgets = budgetsOf([]);
  const planner = createPreemptionPlanner({ allocations, boundPods, budgets, defaultPlacement: placement });
  const roomMaker = createRoomMaker({
    ...{ allocations, inFlight, planner, boundPods, hostname: 'bench', logger },
    evict: async () => {},
    writeEvent: async () => {},
  });
  const gangs = createGangs({ allocations, inFlight, decider, unboundPods: async () => undefined });
  const podGroups = createPodGroups(config);
  const nominations = createNominations({ allocations, decider, planner, roomMaker });
  const binder = createBinder({
    ...{ config, allocations, inFlight, decider, leadership, roomMaker, podGroups, gangs, nominations, logger },
    relist: async () => {},
    catchUp: async () => {},
  });
  const metrics = createMetrics();
  const countFits = () => undefined;
  const notReadyReason = () => undefined;
  return createExtender({
    ...{
      decider,
      countFits,
      binder,
      planner,
      roomMaker,
      podGroups,
      gangs,
      nominations,
      decideInLag: createDecideInLag(allocations),
      mostNodes: 1,
      metrics,
      notReadyReason,
      logger,
    },
  });
}

/** Calls as kube-scheduler does: one after the other on one connection. */
export function callerOf(port: number) {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const call = async (verb: string, body: object): Promise<unknown> => {
    const said = JSON.stringify(body);
    const headers = { 'content-length': Buffer.byteLength(said) };
    const outgoing = request({ port, host: '127.0.0.1', path: `/${verb}`, method: 'POST', agent, headers });
    outgoing.end(said);
    const [incoming] = await once(outgoing, 'response');
    return JSON.parse(await text(incoming));
  };
  return { call, close: () => agent.destroy() };
}

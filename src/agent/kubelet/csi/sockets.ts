// The sockets of the CSI driver and of its registration: created in order, taken over from an agent that was killed,
// and created again when they vanish.

import { chmodSync, type FSWatcher, mkdirSync, rmSync, watch } from 'node:fs';
import { dirname } from 'node:path';
import { Server, ServerCredentials, type ServiceDefinition, type UntypedServiceImplementation } from '@grpc/grpc-js';
import { fileIdentity } from '../../../common/file-identity.ts';
import type { Logger } from '../../../common/logger.ts';
import { createSingleFlight } from '../../../common/single-flight.ts';

export type Endpoint = {
  readonly path: string;
  readonly services: readonly (readonly [ServiceDefinition, UntypedServiceImplementation])[];
};

/** A watch of a folder can be lost, with the folder or silently. */
const LOOK_MS = 5000;
/** For calls in flight when it ends. */
const GRACE_MS = 5000;

type Listener = { isThere(): boolean; close(): Promise<void> };

async function listen({ path, services }: Endpoint): Promise<Listener> {
  mkdirSync(dirname(path), { recursive: true, mode: 0o750 });
  rmSync(path, { force: true });
  const server = new Server();
  for (const [definition, implementation] of services) server.addService(definition, implementation);
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  server.bindAsync(`unix:${path}`, ServerCredentials.createInsecure(), (error) => (error ? reject(error) : resolve()));
  await promise;
  chmodSync(path, 0o600);
  const own = fileIdentity(path);
  return {
    isThere: () => fileIdentity(path) === own,
    close() {
      // Removes the socket's name at once, so that another one can be created there while calls end.
      const { promise: ended, resolve: end } = Promise.withResolvers<void>();
      const timer = setTimeout(() => {
        server.forceShutdown();
        end();
      }, GRACE_MS);
      server.tryShutdown(() => {
        clearTimeout(timer);
        end();
      });
      return ended;
    },
  };
}

/** Throws when a socket cannot be created at first; later failures are logged, and retried. */
export async function keepListening(endpoints: readonly Endpoint[], log: Logger): Promise<{ close(): Promise<void> }> {
  const listeners: (Listener | undefined)[] = endpoints.map(() => undefined);
  let watchers: FSWatcher[] = [];

  const follow = () => {
    for (const watcher of watchers) watcher.close();
    watchers = endpoints.map(({ path }) => {
      const watcher = watch(dirname(path), { persistent: false }, looking.ask);
      watcher.on('error', () => watcher.close());
      return watcher;
    });
  };

  const makeMissing = async () => {
    let made = false;
    for (const [index, endpoint] of endpoints.entries()) {
      if (listeners[index]?.isThere()) continue;
      void listeners[index]?.close();
      listeners[index] = undefined;
      listeners[index] = await listen(endpoint);
      made = true;
    }
    if (made) follow();
  };

  const lookOnce = async () => {
    try {
      await makeMissing();
    } catch (error) {
      log.warn(`the kubelet cannot reach the CSI driver, retrying: ${(error as Error).message}`);
    }
  };

  const looking = createSingleFlight(lookOnce);
  await makeMissing();
  const timer = setInterval(looking.ask, LOOK_MS).unref();
  return {
    async close() {
      clearInterval(timer);
      await looking.close();
      for (const watcher of watchers) watcher.close();
      // The registration socket first: the kubelet looks for it.
      await Promise.all(listeners.toReversed().map((listener) => listener?.close()));
    },
  };
}

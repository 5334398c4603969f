// The sockets of the CSI driver and of its registration: created in order, taken over from an agent that was killed,
// and created again when they vanish.

import { dirname } from 'node:path';
import type { Logger } from '../../../common/logger.ts';
import { createSingleFlight } from '../../../common/single-flight.ts';
import { createFolderWatch } from '../../os/folder-watch.ts';
import { type Listener, listenOn, type Services } from '../../os/grpc.ts';

export type Endpoint = { readonly path: string; readonly services: Services };

type Listening = {
  /** All sockets are there. */
  isThere(): boolean;
  close(): Promise<void>;
};

const LOOK_MS = 5000;
/** For calls in flight when it ends. */
const GRACE_MS = 5000;

/** Removes the socket's name at once, so that another one can be created there while calls end. */
function closeListener({ server }: Listener): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(() => {
    server.forceShutdown();
    resolve();
  }, GRACE_MS);
  server.tryShutdown(() => {
    clearTimeout(timer);
    resolve();
  });
  return promise;
}

/** Throws when a socket cannot be created at first; later failures are logged, and retried. */
export async function keepListening(endpoints: readonly Endpoint[], log: Logger): Promise<Listening> {
  const listeners: (Listener | undefined)[] = endpoints.map(() => undefined);

  const makeMissing = async () => {
    for (const [index, { path, services }] of endpoints.entries()) {
      const before = listeners[index];
      if (before?.isThere()) continue;
      if (before) void closeListener(before);
      listeners[index] = undefined;
      listeners[index] = await listenOn(path, services);
    }
    for (const watcher of watchers) watcher.follow();
  };

  const lookOnce = async () => {
    try {
      await makeMissing();
    } catch (error) {
      log.warn(`the kubelet cannot reach the CSI driver, retrying: ${(error as Error).message}`);
    }
  };

  const looking = createSingleFlight(lookOnce);
  const watchers = endpoints.map(({ path }) => createFolderWatch(dirname(path), looking.ask));
  await makeMissing();
  const timer = setInterval(looking.ask, LOOK_MS).unref();
  return {
    isThere: () => listeners.every((listener) => listener?.isThere() === true),
    async close() {
      clearInterval(timer);
      await looking.close();
      for (const watcher of watchers) watcher.close();
      // The registration socket first: the kubelet looks for it.
      await Promise.all(listeners.toReversed().map((listener) => listener && closeListener(listener)));
    },
  };
}

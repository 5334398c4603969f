// Connections to the API server that calls share: the client library opens a new one for each call and closes none.
import { isDeepStrictEqual } from 'node:util';
import { Agent, type Dispatcher } from 'undici';
import type { ApiConfig } from './config.ts';

/** Below the 90 s after which the API server closes an idle connection, and the 60 s of common load balancers. */
const IDLE_MS = 30_000;
/**
 * A connection on which nothing came for this long is probed by TCP; ten probes in as many seconds without an answer
 * end it (libuv's numbers). A watch may be silent for a minute.
 */
const PROBED_AFTER_MS = 15_000;

type Options = ReturnType<ApiConfig['createDispatcherOptions']>;
type DispatcherArguments = Parameters<ApiConfig['createDispatcherOptions']>;
type Kept = { readonly options: Options; readonly dispatcher: Dispatcher | undefined };
type Dispatching = { createDispatcher?(...args: DispatcherArguments): Dispatcher | undefined };

const wrapped = new WeakMap<ApiConfig, ApiConfig>();

/**
 * The same configuration, but all calls with it share connections. The credentials are still read at each call; when a
 * certificate, a key or the authority has changed, calls from then on use new connections.
 */
export function withKeptConnections(config: ApiConfig): ApiConfig {
  const before = wrapped.get(config);
  if (before) return before;
  let kept: Kept | undefined;
  const createDispatcher = (...args: DispatcherArguments): Dispatcher | undefined => {
    const options = config.createDispatcherOptions(...args);
    if (kept && isDeepStrictEqual(kept.options, options)) return kept.dispatcher;
    // Closes after the calls in flight.
    kept?.dispatcher?.close().catch(() => undefined);
    kept = { options, dispatcher: dispatcherOf(config, options, args) };
    return kept.dispatcher;
  };
  const keeping = Object.create(config, { createDispatcher: { value: createDispatcher } }) as ApiConfig;
  wrapped.set(config, keeping);
  return keeping;
}

function dispatcherOf(config: ApiConfig, options: Options, args: DispatcherArguments): Dispatcher | undefined {
  // Through a proxy: the client library's own dispatcher. Without TLS: the one that all calls of undici share.
  if (options.type !== 'agent') return (config as unknown as Dispatching).createDispatcher?.(...args);
  // In HTTP/1.1 a call that times out takes its connection with it. In HTTP/2 all calls would go on over one dead
  // connection.
  const connect = options.connect as Agent.Options['connect'] & object;
  const probed = { ...connect, keepAlive: true, keepAliveInitialDelay: PROBED_AFTER_MS };
  return new Agent({ connect: probed, allowH2: false, keepAliveTimeout: IDLE_MS });
}

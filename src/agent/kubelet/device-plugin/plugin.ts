// The device plugin: listens, registers with the kubelet, sends changed devices, and does it again after a restart of
// the kubelet. A starting kubelet removes every socket in the folder and forgets every plugin, so the plugin checks
// whether the kubelet's socket is the one that it registered with, and its own the one that it created.

import { join } from 'node:path';
import type { ServiceError } from '@grpc/grpc-js';
import { GPU } from '../../../api/names.ts';
import { fileIdentity } from '../../../common/file-identity.ts';
import type { Logger } from '../../../common/logger.ts';
import { createSingleFlight } from '../../../common/single-flight.ts';
import { createFolderWatch } from '../../os/folder-watch.ts';
import { callOnce, connectTo, type Listener, listenOn } from '../../os/grpc.ts';
import { createService, DEVICE_PLUGIN, devicesOf, REGISTRATION, type Slots, type Watcher } from './service.ts';

type DevicePluginOptions = {
  /** Where the kubelet has its socket for plugins. */
  readonly folder?: string;
  /** Asked at each start and after `changed`. */
  readonly slots: () => Slots;
  readonly log: Logger;
};

type DevicePlugin = {
  /** To be called when `slots` may answer something else. */
  changed(): void;
  close(): Promise<void>;
};

const DEVICE_PLUGIN_FOLDER = '/var/lib/kubelet/device-plugins';
const SOCKET = 'cotenant.sock';
const KUBELET_SOCKET = 'kubelet.sock';
const LOOK_MS = 5000;
/** From a registration to the kubelet's question for devices. */
const UNASKED_MS = 10_000;
const REGISTER_MS = 5000;
const SHORTEST_RETRY_MS = 200;

/** The kubelet's ListAndWatch streams, each with the devices that were last sent on it. */
function createStreams(slots: () => Slots, onGone: () => void) {
  const sent = new Map<Watcher, string>();
  const send = (stream: Watcher) => {
    const devices = devicesOf(slots());
    const text = JSON.stringify(devices);
    if (sent.get(stream) === text) return;
    sent.set(stream, text);
    stream.write({ devices });
  };
  return {
    count: () => sent.size,
    clear: () => sent.clear(),
    changed() {
      for (const stream of sent.keys()) send(stream);
    },
    add(stream: Watcher) {
      sent.set(stream, '');
      const gone = () => {
        if (sent.delete(stream)) onGone();
      };
      for (const event of ['cancelled', 'close', 'error']) stream.on(event, gone);
      send(stream);
    },
  };
}

async function register(kubelet: string, signal: AbortSignal): Promise<void> {
  const { Register: method } = REGISTRATION;
  if (!method) throw new Error('deviceplugin.proto has no Register');
  const client = connectTo(kubelet);
  const request = { version: 'v1beta1', endpoint: SOCKET, resource_name: GPU, options: {} };
  try {
    await callOnce(client, method, request, { withinMs: REGISTER_MS, signal });
  } catch (error) {
    const { details } = error as ServiceError;
    throw new Error(`${kubelet}: ${details.replace(/\. Resolution note: *$/, '')}`);
  } finally {
    client.close();
  }
}

export function startDevicePlugin({ folder = DEVICE_PLUGIN_FOLDER, slots, log }: DevicePluginOptions): DevicePlugin {
  const [socket, kubelet] = [join(folder, SOCKET), join(folder, KUBELET_SOCKET)];
  const closing = new AbortController();
  let listener: Listener | undefined;
  let registered: { readonly kubelet: string; readonly atMs: number } | undefined;
  let lookAgain: NodeJS.Timeout | undefined;
  let retryMs = SHORTEST_RETRY_MS;

  const stopServing = () => {
    streams.clear();
    // At once: a server that closes later would remove the socket of the one after it.
    listener?.server.forceShutdown();
    listener = undefined;
  };

  const serve = async () => {
    watcher.follow();
    const there = fileIdentity(kubelet);
    if (there === undefined) throw new Error(`there is no ${kubelet}: no kubelet runs with this folder`);
    const unasked = streams.count() === 0 && registered !== undefined && Date.now() - registered.atMs > UNASKED_MS;
    const listening = listener?.isThere() === true;
    if (listening && registered?.kubelet === there && !unasked) return;
    registered = undefined;
    if (!listening) {
      stopServing();
      listener = await listenOn(socket, [[DEVICE_PLUGIN, createService(streams.add)]]);
    }
    await register(kubelet, closing.signal);
    registered = { kubelet: there, atMs: Date.now() };
  };

  const lookOnce = async () => {
    clearTimeout(lookAgain);
    let nextMs = LOOK_MS;
    try {
      await serve();
      retryMs = SHORTEST_RETRY_MS;
    } catch (error) {
      log.warn(`the kubelet does not get the slots, retrying: ${(error as Error).message}`);
      nextMs = retryMs;
      retryMs = Math.min(2 * retryMs, LOOK_MS);
    }
    if (!closing.signal.aborted) lookAgain = setTimeout(looking.ask, nextMs);
  };

  const looking = createSingleFlight(lookOnce);
  const streams = createStreams(slots, looking.ask);
  const watcher = createFolderWatch(folder, (name) => {
    if (name === KUBELET_SOCKET || name === SOCKET) looking.ask();
  });
  looking.ask();
  return {
    changed: streams.changed,
    async close() {
      closing.abort();
      clearTimeout(lookAgain);
      await looking.close();
      watcher.close();
      stopServing();
    },
  };
}

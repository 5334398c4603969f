// The device plugin: listens, registers with the kubelet, sends changed devices, and does it again after a restart of
// the kubelet. A starting kubelet removes every socket in the folder and forgets every plugin, so the plugin checks
// whether the kubelet's socket is the one that it registered with, and its own the one that it created.

import { type FSWatcher, rmSync, statSync, watch } from 'node:fs';
import { join } from 'node:path';
import { Client, credentials, Server, ServerCredentials, type ServiceError } from '@grpc/grpc-js';
import { GPU } from '../../../api/names.ts';
import { fileIdentity } from '../../../common/file-identity.ts';
import type { Logger } from '../../../common/logger.ts';
import { createSingleFlight } from '../../../common/single-flight.ts';
import { createService, DEVICE_PLUGIN, devicesOf, REGISTRATION, type Slots, type Watcher } from './service.ts';

export type DevicePluginOptions = {
  /** Where the kubelet has its socket for plugins. */
  readonly folder?: string;
  /** Asked at each start and after `changed`. */
  readonly slots: () => Slots;
  readonly log: Logger;
};

export type DevicePlugin = {
  /** To be called when `slots` may answer something else. */
  changed(): void;
  close(): Promise<void>;
};

export const DEVICE_PLUGIN_FOLDER = '/var/lib/kubelet/device-plugins';
const SOCKET = 'cotenant.sock';
const KUBELET_SOCKET = 'kubelet.sock';
/** A watch of a folder can be lost, with the folder or silently. */
const LOOK_MS = 5000;
/** From a registration to the kubelet's question for devices. */
const UNASKED_MS = 10_000;
const REGISTER_MS = 5000;
const SHORTEST_RETRY_MS = 200;
// Enough for any number of ids; the default of 4 MB ends at some 10,000 of them.
const MESSAGE_LIMITS = { 'grpc.max_receive_message_length': 64 << 20, 'grpc.max_send_message_length': 64 << 20 };

export function startDevicePlugin(options: DevicePluginOptions): DevicePlugin {
  const { folder = DEVICE_PLUGIN_FOLDER } = options;
  const [socket, kubelet] = [join(folder, SOCKET), join(folder, KUBELET_SOCKET)];
  const watchers = new Map<Watcher, string>();
  let server: Server | undefined;
  let own: string | undefined;
  let registered: { readonly kubelet: string; readonly atMs: number } | undefined;
  let following: { readonly watcher: FSWatcher; readonly ino: number } | undefined;
  let lookAgain: NodeJS.Timeout | undefined;
  let closing = false;
  let cancelRegistration = () => {};
  let retryMs = SHORTEST_RETRY_MS;

  const send = (watcher: Watcher) => {
    const devices = devicesOf(options.slots());
    const text = JSON.stringify(devices);
    if (watchers.get(watcher) === text) return;
    watchers.set(watcher, text);
    watcher.write({ devices });
  };

  const onWatcher = (watcher: Watcher) => {
    watchers.set(watcher, '');
    const gone = () => {
      if (watchers.delete(watcher)) looking.ask();
    };
    watcher.on('cancelled', gone);
    watcher.on('close', gone);
    watcher.on('error', gone);
    send(watcher);
  };

  const stopServing = () => {
    watchers.clear();
    // At once: a server that closes later would remove the socket of the one after it.
    server?.forceShutdown();
    server = undefined;
    own = undefined;
  };

  const listen = async () => {
    stopServing();
    rmSync(socket, { force: true });
    const fresh = new Server(MESSAGE_LIMITS);
    fresh.addService(DEVICE_PLUGIN, createService(onWatcher));
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    fresh.bindAsync(`unix:${socket}`, ServerCredentials.createInsecure(), (error) =>
      error ? reject(error) : resolve(),
    );
    await promise;
    server = fresh;
    own = fileIdentity(socket);
  };

  const register = async () => {
    // Servers in Go accept any authority; a socket path is not a valid one.
    const client = new Client(`unix:${kubelet}`, credentials.createInsecure(), {
      'grpc.default_authority': 'localhost',
      ...MESSAGE_LIMITS,
    });
    const { Register: method } = REGISTRATION;
    if (!method) throw new Error('deviceplugin.proto has no Register');
    const request = { version: 'v1beta1', endpoint: SOCKET, resource_name: GPU, options: {} };
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const call = client.makeUnaryRequest(
      method.path,
      method.requestSerialize,
      method.responseDeserialize,
      request,
      { deadline: Date.now() + REGISTER_MS },
      (error: ServiceError | null) =>
        error ? reject(new Error(`${kubelet}: ${error.details.replace(/\. Resolution note: *$/, '')}`)) : resolve(),
    );
    cancelRegistration = () => call.cancel();
    await promise.finally(() => client.close());
  };

  /** Follows the folder for as long as it is the same one. */
  const follow = () => {
    const current = statSync(folder, { throwIfNoEntry: false })?.ino;
    if (following?.ino === current) return;
    following?.watcher.close();
    following = undefined;
    if (current === undefined || closing) return;
    const watcher = watch(folder, (_event, name) => {
      if (name === KUBELET_SOCKET || name === SOCKET) looking.ask();
    });
    watcher.on('error', () => watcher.close());
    following = { watcher, ino: current };
  };

  const serve = async () => {
    follow();
    const there = fileIdentity(kubelet);
    if (there === undefined) throw new Error(`there is no ${kubelet}: no kubelet runs with this folder`);
    const unasked = watchers.size === 0 && registered !== undefined && Date.now() - registered.atMs > UNASKED_MS;
    const listening = own !== undefined && own === fileIdentity(socket);
    if (listening && registered?.kubelet === there && !unasked) return;
    registered = undefined;
    if (!listening) await listen();
    await register();
    registered = { kubelet: there, atMs: Date.now() };
  };

  const lookOnce = async () => {
    clearTimeout(lookAgain);
    let nextMs = LOOK_MS;
    try {
      await serve();
      retryMs = SHORTEST_RETRY_MS;
    } catch (error) {
      options.log.warn(`the kubelet does not get the slots, retrying: ${(error as Error).message}`);
      nextMs = retryMs;
      retryMs = Math.min(2 * retryMs, LOOK_MS);
    }
    if (!closing) lookAgain = setTimeout(looking.ask, nextMs);
  };

  const looking = createSingleFlight(lookOnce);
  looking.ask();
  return {
    changed() {
      for (const watcher of watchers.keys()) send(watcher);
    },
    async close() {
      closing = true;
      clearTimeout(lookAgain);
      cancelRegistration();
      following?.watcher.close();
      await looking.close();
      stopServing();
    },
  };
}

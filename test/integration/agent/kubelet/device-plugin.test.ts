// The device plugin beside a kubelet that comes, goes and forgets. The kubelet here is a gRPC server made for this
// test; a real one is in test/cluster/node/node-faces.test.ts.

import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import {
  Client,
  type ClientReadableStream,
  credentials,
  type handleUnaryCall,
  Server,
  ServerCredentials,
  type ServiceError,
} from '@grpc/grpc-js';
import test, { type ExecutionContext } from 'ava';
import { startDevicePlugin } from '../../../../src/agent/kubelet/device-plugin/plugin.ts';
import {
  DEVICE_PLUGIN,
  type Device,
  REGISTRATION,
  type Slots,
} from '../../../../src/agent/kubelet/device-plugin/service.ts';
import { eventually, temporaryFolder } from '../../../support/native/node.ts';
import { loggerTo } from '../../../support/product/logger.ts';

type Registration = { version: string; endpoint: string; resource_name: string };

/** As a kubelet starts: removes every socket, or only its own old one, then makes its own. */
async function startKubelet(t: ExecutionContext, folder: string, removed = /./) {
  mkdirSync(folder, { recursive: true });
  for (const name of readdirSync(folder).filter((one) => removed.test(one))) rmSync(join(folder, name));
  const registrations: Registration[] = [];
  const server = new Server();
  const register: handleUnaryCall<Registration, object> = ({ request }, answer) => {
    registrations.push(request);
    answer(null, {});
  };
  server.addService(REGISTRATION, { Register: register });
  const { promise, resolve } = Promise.withResolvers<Error | null>();
  server.bindAsync(`unix:${join(folder, 'kubelet.sock')}`, ServerCredentials.createInsecure(), resolve);
  t.is(await promise, null);
  const close = () => server.forceShutdown();
  t.teardown(close);
  return {
    registrations,
    close,
    registered: () => eventually(() => registrations.at(-1), 'a registration'),
  };
}

/** The kubelet's calls to a plugin. */
function dial(t: ExecutionContext, folder: string, { endpoint }: Registration) {
  const options = { 'grpc.default_authority': 'localhost' };
  const client = new Client(`unix:${join(folder, endpoint)}`, credentials.createInsecure(), options);
  t.teardown(() => client.close());
  const lists: Device[][] = [];
  const { ListAndWatch, Allocate } = DEVICE_PLUGIN;
  if (!ListAndWatch || !Allocate) throw new Error('the service lacks a method');
  const stream: ClientReadableStream<{ devices: Device[] }> = client.makeServerStreamRequest(
    ListAndWatch.path,
    ListAndWatch.requestSerialize,
    ListAndWatch.responseDeserialize as (bytes: Buffer) => { devices: Device[] },
    {},
  );
  stream.on('data', ({ devices }: { devices: Device[] }) => lists.push(devices));
  const ended = once(stream, 'error');
  return {
    lists,
    ended,
    allocate: (...ids: readonly (readonly string[])[]) =>
      new Promise<unknown>((resolve, reject) => {
        client.makeUnaryRequest(
          Allocate.path,
          Allocate.requestSerialize,
          Allocate.responseDeserialize,
          { container_requests: ids.map((devices_ids) => ({ devices_ids })) },
          (error: ServiceError | null, value?: unknown) => (error ? reject(error) : resolve(value)),
        );
      }),
  };
}

test('the plugin waits for the kubelet, reports changes, and finds a restarted kubelet', async (t) => {
  const folder = join(temporaryFolder(t), 'device-plugins');
  const problems: string[] = [];
  let slots: Slots = { healthy: 3, unhealthy: 0 };
  const plugin = startDevicePlugin({ folder, slots: () => slots, log: loggerTo(problems) });
  t.teardown(() => plugin.close());
  await eventually(() => problems[0], 'it is said that there is no kubelet');
  t.regex(problems[0] ?? '', /kubelet\.sock: no kubelet/);

  const first = await startKubelet(t, folder);
  const registration = await first.registered();
  t.deepEqual(
    { ...registration, options: undefined },
    { version: 'v1beta1', endpoint: 'cotenant.sock', resource_name: 'cotenant.io/gpu', options: undefined },
  );
  const watched = dial(t, folder, registration);
  await eventually(() => watched.lists[0], 'the slots');
  t.deepEqual(
    watched.lists[0]?.map(({ ID }) => ID),
    ['s-000', 's-001', 's-002'],
  );
  t.deepEqual(await watched.allocate(['s-000'], ['s-002', 's-001']), { container_responses: [{}, {}] });
  plugin.changed();
  slots = { healthy: 1, unhealthy: 2 };
  plugin.changed();
  const changed = await eventually(() => watched.lists[1], 'the change');
  t.deepEqual(
    changed.map(({ health }) => health),
    ['Healthy', 'Unhealthy', 'Unhealthy'],
    'and nothing was reported when nothing had changed',
  );

  // A second one in the same folder, and a third after the folder itself was made anew.
  first.close();
  const second = await startKubelet(t, folder);
  const again = dial(t, folder, await second.registered());
  t.is((await eventually(() => again.lists[0], 'the slots again')).length, 3);
  second.close();
  rmSync(folder, { recursive: true });
  const third = await startKubelet(t, folder);
  const last = dial(t, folder, await third.registered());
  await eventually(() => last.lists[0], 'the slots once more');
  third.close();
  const fourth = await startKubelet(t, folder, /^kubelet/);
  await fourth.registered();
  const all = [first, second, third, fourth];
  t.deepEqual(
    all.map(({ registrations }) => registrations.length),
    [1, 1, 1, 1],
  );

  await plugin.close();
  await last.ended;
  t.false(existsSync(join(folder, 'cotenant.sock')));
});

test('a plugin can end while nothing answers', async (t) => {
  const folder = temporaryFolder(t);
  const plugin = startDevicePlugin({ folder, slots: () => ({ healthy: 1, unhealthy: 0 }), log: loggerTo([]) });
  await plugin.close();
  t.deepEqual(readdirSync(folder), []);
});

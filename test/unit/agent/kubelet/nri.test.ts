// The wire of the runtime's plugins, and the plugin against a runtime that means no good.

import { rmSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import protobuf from 'protobufjs';
import { decode } from '../../../../src/agent/kubelet/nri/messages.ts';
import { containerOf, type NriContainer, type NriOptions, startNri } from '../../../../src/agent/kubelet/nri/plugin.ts';
import {
  createFrameReader,
  framesOf,
  LARGEST_FRAME,
  LARGEST_MESSAGE,
  type Message,
  PLUGIN_CONNECTION,
  REQUEST,
  RESPONSE,
  RUNTIME_CONNECTION,
} from '../../../../src/agent/kubelet/nri/ttrpc.ts';
import { eventually, temporaryFolder } from '../../../support/native/node.ts';
import { loggerTo } from '../../../support/product/logger.ts';

const messages = fc.array(
  fc.record({
    connection: fc.constantFrom(PLUGIN_CONNECTION, RUNTIME_CONNECTION),
    stream: fc.nat(),
    type: fc.integer({ min: 0, max: 255 }),
    payload: fc.oneof(
      fc.uint8Array({ maxLength: 40 }).map((bytes) => Buffer.from(bytes)),
      fc.integer({ min: 4000, max: 9000 }).map((length) => Buffer.alloc(length, 7)),
    ),
  }),
  { maxLength: 6 },
);

const split = (bytes: Buffer, at: readonly number[]): Buffer[] => {
  const cuts = [0, ...at.map((cut) => cut % (bytes.length + 1)).sort((a, b) => a - b), bytes.length];
  return cuts.slice(1).map((end, index) => bytes.subarray(cuts[index], end));
};

/** One message inside several frames that begin and end anywhere. */
const reframed = ({ connection, stream, type, payload }: Message, at: readonly number[]): Buffer => {
  const header = Buffer.alloc(10);
  header.writeUInt32BE(payload.length, 0);
  header.writeUInt32BE(stream, 4);
  header[8] = type;
  const frames = split(Buffer.concat([header, payload]), at).map((part) => {
    const frame = Buffer.alloc(8);
    frame.writeUInt32BE(connection, 0);
    frame.writeUInt32BE(part.length, 4);
    return Buffer.concat([frame, part]);
  });
  return Buffer.concat(frames);
};

test('messages are the same however bytes are cut into pieces and messages into frames', (t) => {
  fc.assert(
    fc.property(messages, fc.array(fc.nat()), fc.array(fc.nat(), { maxLength: 4 }), (sent, cuts, frameCuts) => {
      const ways = [Buffer.concat(sent.map(framesOf)), Buffer.concat(sent.map((one) => reframed(one, frameCuts)))];
      for (const bytes of ways) {
        const reader = createFrameReader();
        const got = split(bytes, cuts).flatMap((piece) => {
          const { messages: found, wrong } = reader.push(piece);
          if (wrong !== undefined) throw new Error(wrong);
          return found;
        });
        t.deepEqual(got, sent);
      }
    }),
    { numRuns: 60 },
  );
});

test('frames of ours are small enough for the buffer that the runtime reads through', (t) => {
  const bytes = framesOf({ connection: 1, stream: 1, type: RESPONSE, payload: Buffer.alloc(10_000) });
  for (let at = 0; at < bytes.length; at += 8 + bytes.readUInt32BE(at + 4)) t.true(bytes.readUInt32BE(at + 4) <= 4096);
});

test('invalid bytes never throw, and no buffer is kept for an invalid size', (t) => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ maxLength: 200 })), (pieces) => {
      const reader = createFrameReader();
      for (const piece of pieces) reader.push(Buffer.from(piece));
      for (const piece of pieces) {
        for (const kind of ['TtrpcRequest', 'SynchronizeRequest', 'ContainerRequest', 'StateChangeEvent'] as const)
          decode(kind, Buffer.from(piece));
      }
    }),
  );
  const header = (connection: number, length: number, more = Buffer.alloc(0)) => {
    const bytes = Buffer.alloc(8);
    bytes.writeUInt32BE(connection, 0);
    bytes.writeUInt32BE(length, 4);
    return Buffer.concat([bytes, more]);
  };
  const message = (length: number) => {
    const bytes = Buffer.alloc(10);
    bytes.writeUInt32BE(length, 0);
    return bytes;
  };
  const wrong = (bytes: Buffer) => createFrameReader().push(bytes).wrong;
  t.is(wrong(header(1, LARGEST_FRAME)), undefined);
  t.is(wrong(header(1, LARGEST_FRAME + 1)), `a frame of ${LARGEST_FRAME + 1} bytes`);
  t.is(wrong(header(3, 1)), 'a frame of connection 3');
  t.is(wrong(header(1, 10, message(LARGEST_MESSAGE))), undefined);
  t.is(wrong(header(1, 10, message(LARGEST_MESSAGE + 1))), `a message of ${LARGEST_MESSAGE + 1} bytes`);
  const reader = createFrameReader();
  t.truthy(reader.push(header(3, 1)).wrong);
  t.truthy(
    reader.push(framesOf({ connection: 1, stream: 1, type: 1, payload: Buffer.alloc(0) })).wrong,
    'and stays so',
  );
});

const POD = { id: 'sandbox', name: 'train', uid: 'uid-1', namespace: 'team' };
const KUBELET = '/var/lib/kubelet/pods/uid-1/containers';
const containerNamed = (name: string) => ({
  id: `id-${name}`,
  pod_sandbox_id: 'sandbox',
  name,
  state: 0,
  annotations: {},
  env: ['PATH=/bin', `NAME=${name}`],
  mounts: [{ destination: '/dev/termination-log', source: `${KUBELET}/${name}/0a1b2c3d` }],
  linux: null,
});

test("the termination log is the kubelet's own file, never what a tenant mounts there", (t) => {
  const plain = containerNamed('main');
  const of = (...mounts: [destination: string, source: string][]) =>
    containerOf(POD, { ...plain, mounts: mounts.map(([destination, source]) => ({ destination, source })) })
      .terminationLog;
  t.is(containerOf(POD, plain).terminationLog, '0a1b2c3d');
  t.is(of(['/tmp/last-words', `${KUBELET}/main/ffffffff`]), 'ffffffff');
  t.is(of(['/dev/termination-log', '/mnt/nfs'], ['/dev/termination-log', `${KUBELET}/main/ffffffff`]), 'ffffffff');
  const others = [
    '/mnt/nfs/file',
    '/var/lib/kubelet/pods/uid-1/volumes/kubernetes.io~nfs/deadbeef',
    `${KUBELET}/other/deadbeef`,
    '/var/lib/kubelet/pods/uid-2/containers/main/deadbeef',
    `${KUBELET}/main/deadbeef/file`,
    `${KUBELET}/main/`,
    `${KUBELET}/main/..`,
    `${KUBELET}/main/etc-hosts`,
    '',
  ];
  t.is(of(), undefined);
  for (const source of others) t.is(of(['/dev/termination-log', source]), undefined, source);
});

const proto = new protobuf.Root().loadSync(join(import.meta.dirname, '../../../../src/agent/kubelet/nri/nri.proto'), {
  keepCase: true,
});
const kind = (name: string) => proto.lookupType(`nri.pkg.api.v1alpha1.${name}`);
const encode = (name: string, value: object) => Buffer.from(kind(name).encode(kind(name).fromObject(value)).finish());

/** A runtime by its socket: each connection waits for what it is to send. */
async function startRuntime(t: ExecutionContext) {
  const path = join(temporaryFolder(t), 'nri.sock');
  const connections: { socket: Socket; heard: Message[] }[] = [];
  const server = createServer((socket) => {
    const connection = { socket, heard: [] as Message[] };
    const reader = createFrameReader();
    socket.on('data', (bytes) => connection.heard.push(...reader.push(bytes as Buffer).messages));
    socket.on('error', () => {});
    connections.push(connection);
  });
  await new Promise<void>((resolve) => server.listen(path, resolve));
  t.teardown(() => {
    server.close();
    for (const { socket } of connections) socket.destroy();
  });
  const registered = (index: number) =>
    eventually(() => (connections[index]?.heard.length ? connections[index] : undefined), `connection ${index}`);
  return {
    path,
    registered,
    /** Calls the plugin and waits for its answer. */
    async call(index: number, method: string, payload: Buffer) {
      const { socket, heard } = await registered(index);
      const stream = 1 + 2 * heard.length;
      const request = encode('TtrpcRequest', { service: 'nri.pkg.api.v1alpha1.Plugin', method, payload });
      socket.write(framesOf({ connection: PLUGIN_CONNECTION, stream, type: REQUEST, payload: request }));
      const answered = await eventually(() => heard.find((message) => message.stream === stream), method);
      const response = kind('TtrpcResponse').toObject(kind('TtrpcResponse').decode(answered.payload)) as {
        status?: { code: number; message: string };
        payload?: Buffer;
      };
      return response;
    },
  };
}

async function startPlugin(t: ExecutionContext, more: Partial<NriOptions> = {}) {
  const runtime = await startRuntime(t);
  const containers: NriContainer[] = [];
  const removed: string[] = [];
  const problems: string[] = [];
  const nri = startNri({
    socket: runtime.path,
    gpusOf: () => undefined,
    onContainer: (container) => containers.push(container),
    onRemoved: (id) => removed.push(id),
    log: loggerTo(problems),
    ...more,
  });
  t.teardown(() => nri.close());
  return { runtime, containers, removed, problems, nri };
}

const CREATED = 1;
const RUNNING = 3;
const STOPPED = 4;

const synchronize = (containers: readonly object[], more = false) =>
  encode('SynchronizeRequest', { pods: [POD], containers, more });

/** What a container that is being made is given; nothing of it: it is left as it is. */
async function answerFor(runtime: Awaited<ReturnType<typeof startRuntime>>, container: object) {
  const request = encode('ContainerRequest', { pod: POD, container });
  const { payload = Buffer.alloc(0) } = await runtime.call(0, 'CreateContainer', request);
  const { adjust } = kind('CreateContainerResponse').toObject(kind('CreateContainerResponse').decode(payload)) as {
    adjust?: { CDI_devices: { name: string }[]; annotations: object };
  };
  return { devices: adjust?.CDI_devices.map(({ name }) => name), annotations: adjust?.annotations };
}

test('granted containers get exactly their GPUs, others stay as they are', async (t) => {
  const sandboxes: string[] = [];
  const { runtime, containers, removed, problems, nri } = await startPlugin(t, {
    onSandbox: (...parts) => sandboxes.push(parts.join(' of ')),
    cdiKind: 'example.com/gpu',
    gpusOf: (podUid, container) => (podUid === 'uid-1' && container === 'main' ? ['GPU-1', 'GPU-2'] : undefined),
  });
  await runtime.call(0, 'Configure', Buffer.alloc(0));
  await runtime.call(0, 'Synchronize', synchronize([containerNamed('old')], true));
  t.false(nri.connected(), 'more is to come');
  await runtime.call(0, 'Synchronize', synchronize([containerNamed('older')]));
  t.true(nri.connected());
  const noted: (object | undefined)[] = [];
  const create = async (name: string) => {
    const { devices, annotations } = await answerFor(runtime, containerNamed(name));
    noted.push(annotations);
    return devices;
  };
  t.deepEqual(await create('main'), ['example.com/gpu=GPU-1', 'example.com/gpu=GPU-2']);
  t.deepEqual(noted, [{ 'cotenant.io/gpus-given': 'GPU-1,GPU-2' }]);
  t.is(await create('other'), undefined);
  const event = (number: number, name: string) =>
    runtime.call(
      0,
      'StateChange',
      encode('StateChangeEvent', { event: number, pod: POD, container: containerNamed(name) }),
    );
  await event(5, 'main');
  await event(6, 'late');
  t.deepEqual(
    containers.map(({ containerId }) => containerId),
    ['id-old', 'id-older', 'id-main', 'id-other', 'id-late'],
  );
  await event(11, 'main');
  await event(11, 'main');
  t.deepEqual(removed, ['id-main']);
  t.deepEqual(sandboxes, [`${POD.id} of ${POD.uid}`]);
  const sandbox = (number: number, id: string) =>
    runtime.call(0, 'StateChange', encode('StateChangeEvent', { event: number, pod: { ...POD, id, uid: 'uid-2' } }));
  await sandbox(1, 'sandbox-2');
  await sandbox(3, 'sandbox-2');
  t.is(sandboxes[1], 'sandbox-2 of uid-2');
  t.is(removed[1], 'sandbox-2');
  t.is((await runtime.call(0, 'NoSuchMethod', Buffer.alloc(0))).status?.code, 12);
  t.deepEqual(problems, []);
});

test('a container made without our answer is reported on each connection until its end', async (t) => {
  const missed: string[] = [];
  const { runtime } = await startPlugin(t, { onMissed: ({ container }) => missed.push(container) });
  const given = { 'cotenant.io/gpus-given': 'GPU-1' };
  const of = (name: string, state: number, annotations: object = {}) => ({
    ...containerNamed(name),
    state,
    annotations,
  });
  const nodes = (...paths: readonly string[]) => ({ devices: paths.map((path) => ({ path })) });
  const there = [
    of('given', RUNNING, given),
    of('made', CREATED),
    of('runs', RUNNING, { 'io.kubernetes.container.hash': 'f00' }),
    of('ended', STOPPED),
    { ...of('given by an agent that noted nothing', RUNNING), linux: nodes('/dev/nvidiactl', '/dev/nvidia10') },
    {
      ...of('no GPU', RUNNING),
      linux: nodes('/dev/nvidiactl', '/dev/nvidia-uvm', '/dev/nvidia1.x', '/x/dev/nvidia0'),
    },
    { ...of('of no pod', RUNNING), pod_sandbox_id: 'other' },
  ];
  await runtime.call(0, 'Synchronize', synchronize(there.slice(0, 2), true));
  await runtime.call(0, 'Synchronize', synchronize(there.slice(2)));
  t.deepEqual(missed, ['made', 'runs', 'no GPU']);
  // Asked too late: the runtime has gone on, and says so when it connects again.
  const late = encode('ContainerRequest', { pod: POD, container: containerNamed('late') });
  await runtime.call(0, 'CreateContainer', late);
  (await runtime.registered(0)).socket.end();
  await runtime.call(1, 'Synchronize', synchronize([of('given', RUNNING, given), of('late', RUNNING)]));
  t.deepEqual(missed, ['made', 'runs', 'no GPU', 'late']);
});

test("a component that knows the driver's parts names devices by container environment", async (t) => {
  const { runtime } = await startPlugin(t, {
    gpusOf: (_, container) => ({ main: ['GPU-1'], none: [] })[container],
    devicesFor: (gpus, env) => [...gpus, ...env].map((one) => `example.com/x=${one}`),
  });
  t.deepEqual(
    (await answerFor(runtime, containerNamed('main'))).devices,
    ['GPU-1', 'PATH=/bin', 'NAME=main'].map((one) => `example.com/x=${one}`),
  );
  t.deepEqual((await answerFor(runtime, { ...containerNamed('main'), env: [] })).devices, ['example.com/x=GPU-1']);
  for (const name of ['none', 'other']) t.is((await answerFor(runtime, containerNamed(name))).devices, undefined, name);
});

test('a container that sets driver limits in its environment gets no device that obeys', async (t) => {
  const { runtime, problems } = await startPlugin(t, {
    gpusOf: (_, container) => (container === 'none' ? undefined : ['GPU-1']),
    devicesFor: (gpus, env) =>
      gpus.map((gpu) => `${env.includes('NAME=divided') ? 'cotenant.io' : 'nvidia.com'}/gpu=${gpu}`),
  });
  const made = async (name: string, ...env: readonly string[]) => {
    const plain = containerNamed(name);
    const container = { ...plain, env: [...plain.env, ...env] };
    const request = encode('ContainerRequest', { pod: POD, container });
    return (await runtime.call(0, 'CreateContainer', request)).status;
  };
  const refused = await made('main', 'NVIDIA_GPU_MEMORY_REQUEST=70000', 'NVIDIA_GPU_MEMORY_LIMIT=70000');
  t.is(refused?.code, 9);
  t.regex(
    refused?.message ?? '',
    /^cotenant: team\/train\/main is not made: NVIDIA_GPU_MEMORY_REQUEST and NVIDIA_GPU_/,
  );
  t.is((await made('main', 'NVIDIA_GPU_MEMORY_LIMIT='))?.code, 9);
  t.deepEqual(
    problems.map((text) => text.slice(0, 39)),
    Array(2).fill('team/train/main is not made: NVIDIA_GPU'),
  );
  const both = ['NVIDIA_GPU_MEMORY_REQUEST=1', 'NVIDIA_GPU_MEMORY_LIMIT=1'];
  for (const name of ['divided', 'none']) t.is(await made(name, ...both), undefined, name);
  t.is(await made('main', 'NVIDIA_GPU_MEMORY_LIMITS=1', 'X=NVIDIA_GPU_MEMORY_LIMIT=1'), undefined);
  t.is(problems.length, 2);
});

test('after a runtime ends or sends invalid data the agent reconnects and catches up', async (t) => {
  const { runtime, containers, removed, problems, nri } = await startPlugin(t);
  await runtime.call(0, 'Synchronize', synchronize([containerNamed('stays'), containerNamed('goes')]));
  const nonsense = encode('TtrpcRequest', { method: 'CreateContainer', payload: Buffer.from([0x0a, 0xff]) });
  const attacks = [
    (socket: Socket) => socket.end(),
    (socket: Socket) => socket.write(Buffer.alloc(64, 0xff)),
    (socket: Socket) => socket.write(framesOf({ connection: 1, stream: 1, type: REQUEST, payload: nonsense })),
    (socket: Socket) => socket.write(framesOf({ connection: 1, stream: 1, type: 9, payload: Buffer.alloc(0) })),
  ];
  for (const [index, attack] of attacks.entries()) {
    attack((await runtime.registered(index)).socket);
    await runtime.registered(index + 1);
    t.false(nri.connected());
    // The runtime answers again, and what is wrong next time is news.
    await runtime.call(index + 1, 'Synchronize', synchronize([containerNamed('stays')]));
  }
  t.is(problems.length, attacks.length, problems.join('\n'));
  for (const text of problems) t.true(text.startsWith(runtime.path), text);
  t.deepEqual(
    containers.map(({ container }) => container),
    ['stays', 'goes'],
  );
  t.deepEqual(removed, ['id-goes']);
});

test('a runtime that still stops containers is waited for, a silent one is not', async (t) => {
  const { runtime, problems, nri } = await startPlugin(t, { answerMs: 50 });
  await runtime.registered(1);
  t.regex(problems[0] ?? '', /did not answer for 50 ms; containers that start meanwhile get no GPUs$/);
  // As containerd does (nri/pkg/adaptation/adaptation.go, acceptPluginConnections: p.start, then requestPluginSync, which
  // waits for BlockPluginSync of each StopContainer, and serves no other connection meanwhile).
  const { runtime: busy, problems: said, nri: patient } = await startPlugin(t, { answerMs: 2000 });
  await busy.call(0, 'Configure', Buffer.alloc(0));
  await eventually(() => said.length > 0, 'what it waits for');
  t.regex(said.join(), /^\S+: the runtime first finishes what it does to containers; [^,]* get no GPUs$/);
  t.false(patient.connected());
  await busy.call(0, 'Synchronize', synchronize([]));
  t.true(patient.connected());
  t.false(nri.connected());
});

test('a node without the NRI socket is reported once', async (t) => {
  const problems: string[] = [];
  const path = join(temporaryFolder(t), 'nri.sock');
  const none = { gpusOf: () => undefined, onContainer: () => {}, onRemoved: () => {} };
  const nri = startNri({ socket: path, ...none, log: loggerTo(problems) });
  t.teardown(() => nri.close());
  await eventually(() => (problems.length > 0 ? true : undefined), 'it is said');
  rmSync(path, { force: true });
  t.regex(problems[0] ?? '', /nri\.sock.*ENOENT.*get no GPUs/);
});

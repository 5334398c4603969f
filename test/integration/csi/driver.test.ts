// The CSI driver asked over its sockets: what it refuses and how, in which order it answers, and that it stays there.

import { spawnSync } from 'node:child_process';
import { existsSync, lstatSync, mkdirSync, rmSync, statSync, symlinkSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { status } from '@grpc/grpc-js';
import test, { type ExecutionContext } from 'ava';
import { type Publisher, startCsi, VolumeRefused } from '../../../src/agent/kubelet/csi/driver.ts';
import { eventually, temporaryFolder } from '../../support/native/node.ts';
import { call, csiSocket, placeOf, publish, registrationSocket, unpublish } from '../../support/product/kubelet.ts';
import { loggerTo } from '../../support/product/logger.ts';

const UID = '0f3a9c1e-7d52-4b8e-9a61-3c5d7e9f1b20';
const OTHER = UID.replace('0f', '1f');

/** One that gives no volumes, unless a test says what to do. */
async function start(t: ExecutionContext, publisher: Partial<Publisher> = {}, root = temporaryFolder(t)) {
  const problems: string[] = [];
  const calls: string[] = [];
  const results: string[] = [];
  const csi = await startCsi({
    kubeletRoot: `${root}/`,
    nodeName: 'node-1',
    publisher: {
      async publish(ask) {
        calls.push(`publish ${ask.pod} ${ask.mounted}`);
        await publisher.publish?.(ask);
      },
      unpublish(ask) {
        calls.push(`unpublish ${ask.podUid}`);
        publisher.unpublish?.(ask);
      },
    },
    onResult: (result) => results.push(result),
    log: loggerTo(problems),
  });
  t.teardown(() => csi.close());
  return { root, problems, calls, results, csi };
}

test('a kubelet finds it, learns its name and version, and which node this is', async (t) => {
  const { root, problems } = await start(t);
  const info = await call(registrationSocket(root), 'pluginregistration.Registration/GetInfo');
  t.deepEqual(info.value, {
    type: 'CSIPlugin',
    name: 'cotenant.io',
    endpoint: csiSocket(root),
    supported_versions: ['1.0.0'],
  });
  t.deepEqual((await call(csiSocket(root), 'csi.v1.Node/NodeGetInfo')).value, { node_id: 'node-1' });
  t.deepEqual((await call(csiSocket(root), 'csi.v1.Node/NodeGetCapabilities')).value, {});
  t.deepEqual((await call(csiSocket(root), 'csi.v1.Identity/Probe')).value, {});
  t.like((await call(csiSocket(root), 'csi.v1.Identity/GetPluginInfo')).value, { name: 'cotenant.io' });
  for (const socket of [csiSocket(root), registrationSocket(root)]) t.is(lstatSync(socket).mode & 0o7777, 0o600);
  for (const [registered, count] of [
    [true, 0],
    [false, 1],
  ] as const) {
    const registration = { plugin_registered: registered, error: registered ? '' : 'two of a name' };
    await call(registrationSocket(root), 'pluginregistration.Registration/NotifyRegistrationStatus', registration);
    t.is(problems.length, count);
  }
  t.regex(problems[0] ?? '', /does not register the CSI driver: two of a name$/);
});

test('a request that makes no sense is refused before anybody is asked', async (t) => {
  const { root, calls, results } = await start(t);
  const notInline = await publish(root, UID, 'one', { 'csi.storage.k8s.io/ephemeral': 'false' });
  t.is(notInline.code, status.INVALID_ARGUMENT);
  t.regex(notInline.details, /^cotenant: pod team\/one asks for a volume that is not inline/);
  const elsewhere = await unpublish(root, `${root}/pods/../../etc/volumes/kubernetes.io~csi/cotenant/mount`);
  t.is(elsewhere.code, status.INVALID_ARGUMENT);
  t.regex(elsewhere.details, /^cotenant: .* is not where an inline volume lies below /);
  t.deepEqual([calls, results], [[], ['refused']]);
});

test('a refusal reaches the kubelet unchanged; one that may succeed later is marked', async (t) => {
  const { root, calls, results, problems } = await start(t, {
    async publish({ pod }) {
      throw new VolumeRefused(`no share for ${pod}`, { later: pod === 'early' });
    },
  });
  t.deepEqual(await publish(root, UID, 'one'), {
    code: status.FAILED_PRECONDITION,
    details: 'cotenant: no share for one',
  });
  t.deepEqual(await publish(root, UID, 'early'), { code: status.UNAVAILABLE, details: 'cotenant: no share for early' });
  t.deepEqual(calls, ['publish one false', `unpublish ${UID}`, 'publish early false', `unpublish ${UID}`]);
  t.deepEqual(problems, [], 'a refusal is no problem of the agent');
  t.deepEqual(results, ['refused', 'pending']);
});

test('a fault is reported to the kubelet and the log and does not end the driver', async (t) => {
  const { root, results, problems } = await start(t, {
    async publish() {
      throw new TypeError('of its own');
    },
    unpublish() {
      throw new Error('this one too');
    },
  });
  const answered = await publish(root, UID, 'one');
  const text = 'the volume of pod team/one cannot be made: of its own';
  t.deepEqual(answered, { code: status.UNAVAILABLE, details: `cotenant: ${text}` });
  t.deepEqual(problems, [`the volume of pod ${UID} is taken down all the same: this one too`, text]);
  t.deepEqual(results, ['failed']);
  t.is((await call(csiSocket(root), 'csi.v1.Node/NodeGetInfo')).code, status.OK);
});

test('a volume that was not mounted is not reported as mounted', async (t) => {
  const { root } = await start(t);
  const { code, details } = await publish(root, UID, 'one');
  t.is(code, status.UNAVAILABLE);
  t.regex(details, /^cotenant: the volume of pod team\/one cannot be made: cannot make writable .*: ENOENT/);
});

test('an unknown volume is taken down', async (t) => {
  const { root, calls } = await start(t);
  const places = [placeOf(root, UID), placeOf(root, UID, 'data'), placeOf(root, UID.replaceAll('-', ''))];
  mkdirSync(placeOf(root, UID, 'data'), { recursive: true });
  for (const place of places) t.is((await unpublish(root, place)).code, status.OK);
  t.is(calls.length, 3);
  t.false(existsSync(placeOf(root, UID, 'data')), 'its folder, too');
  t.true(existsSync(dirname(placeOf(root, UID, 'data'))), 'but not that of the kubelet');
});

test('calls for one pod take turns, those for another one do not wait', async (t) => {
  const order: string[] = [];
  const { promise: open, resolve: openGate } = Promise.withResolvers<void>();
  const { root } = await start(t, {
    async publish({ pod }) {
      order.push(`${pod} begins`);
      if (pod === 'slow') await open;
      order.push(`${pod} ends`);
    },
    unpublish: ({ podUid }) => order.push(`${podUid} down`),
  });
  const slow = publish(root, UID, 'slow');
  await eventually(() => order[0], 'the slow one has begun');
  const behind = [publish(root, UID, 'behind'), unpublish(root, placeOf(root, UID))];
  await publish(root, OTHER, 'beside');
  t.deepEqual(order, ['slow begins', 'beside begins', 'beside ends', `${OTHER} down`]);
  openGate();
  await Promise.all([slow, ...behind]);
  // Which of the two came first is the kubelet's; that neither came before the end of the slow one is ours.
  t.is(order[4], 'slow ends');
  t.is(order[5], `${UID} down`);
  const rest = order.slice(6);
  t.deepEqual(rest.toSorted(), [`${UID} down`, `${UID} down`, 'behind begins', 'behind ends'].toSorted());
  t.is(rest.indexOf('behind ends'), rest.indexOf('behind begins') + 1);
});

test('sockets of one that was killed are taken over', async (t) => {
  const root = temporaryFolder(t);
  for (const path of [csiSocket(root), registrationSocket(root)]) {
    mkdirSync(dirname(path), { recursive: true });
    const script = `require('node:net').createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, 'SIGKILL'))`;
    spawnSync(process.execPath, ['-e', script]);
    t.true(lstatSync(path).isSocket(), 'it was left');
  }
  await start(t, {}, root);
  t.is((await call(csiSocket(root), 'csi.v1.Node/NodeGetInfo')).code, status.OK);
  t.is((await call(registrationSocket(root), 'pluginregistration.Registration/GetInfo')).code, status.OK);
});

test('sockets that vanish are made again, one alone or with all folders', async (t) => {
  const { root, problems } = await start(t);
  const answers = async () => {
    const codes = await Promise.all([
      call(csiSocket(root), 'csi.v1.Node/NodeGetInfo'),
      call(registrationSocket(root), 'pluginregistration.Registration/GetInfo'),
    ]);
    return codes.every(({ code }) => code === status.OK) || undefined;
  };
  for (const gone of [
    csiSocket(root),
    registrationSocket(root),
    join(root, 'plugins'),
    join(root, 'plugins_registry'),
  ]) {
    rmSync(gone, { recursive: true });
    await eventually(answers, `it answers without ${gone}`);
  }
  rmSync(root, { recursive: true });
  await eventually(answers, 'it answers after all was wiped');
  t.deepEqual(problems, []);
  t.is(statSync(csiSocket(root)).mode & 0o7777, 0o600);
});

test('sockets that cannot be made are reported once, and made when possible', async (t) => {
  const { root, problems } = await start(t);
  rmSync(join(root, 'plugins'), { recursive: true });
  symlinkSync('/dev/null', join(root, 'plugins'));
  await eventually(() => problems[0], 'it is reported');
  t.regex(problems[0] ?? '', /^the kubelet cannot reach the CSI driver, retrying: /);
  rmSync(join(root, 'plugins'));
  const answered = async () => (await call(csiSocket(root), 'csi.v1.Node/NodeGetInfo')).code === status.OK || undefined;
  await eventually(answered, 'it answers');
  t.is(problems.length, 1);
});

test('its end leaves no socket, and waits for calls under way', async (t) => {
  const { promise: open, resolve: openGate } = Promise.withResolvers<void>();
  const { root, calls, csi } = await start(t, { publish: () => open });
  const slow = publish(root, UID, 'slow');
  await eventually(() => calls[0], 'it has begun');
  const closed = csi.close();
  await eventually(() => !existsSync(csiSocket(root)) || undefined, 'the socket is gone');
  t.false(existsSync(registrationSocket(root)));
  openGate();
  t.is((await slow).code, status.UNAVAILABLE);
  t.regex((await slow).details, /cannot be made/, 'an answer, and no broken connection');
  await closed;
});

// Volumes given and taken by the CSI driver over its sockets, in a mount namespace of their own: what stays given, and
// what an agent that ends leaves to the next one.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { status } from '@grpc/grpc-js';
import type { ExecutionContext } from 'ava';
import { pagePath } from '../../../src/agent/kubelet/csi/volume.ts';
import { namespacesReason, testUnless } from '../../support/gate.ts';
import { eventually, temporaryFolder } from '../../support/native/node.ts';
import { placeOf, publish, unpublish } from '../../support/product/kubelet.ts';
import type { PublisherReport } from '../../support/product/publisher.ts';

const test = testUnless(namespacesReason());
const UID = '0f3a9c1e-7d52-4b8e-9a61-3c5d7e9f1b20';
const PUBLISHER = join(import.meta.dirname, '../../support/product/publisher.ts');

async function setUp(t: ExecutionContext) {
  const root = temporaryFolder(t);
  const files = temporaryFolder(t);
  mkdirSync(join(files, 'pods'));
  const reports: PublisherReport[] = [];
  const holder = spawn('unshare', ['-m', '--propagation', 'private', 'sh', '-c', 'echo in; exec cat'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  t.teardown(async () => {
    holder.stdin.end();
    if (holder.exitCode === null) await once(holder, 'exit');
  });
  await once(createInterface({ input: holder.stdout }), 'line');
  let running: ChildProcess | undefined;
  const start = async () => {
    const words = ['-t', String(holder.pid), '-m', process.execPath, PUBLISHER, files, root];
    const child = spawn('nsenter', words, { stdio: ['ignore', 'pipe', 'inherit'] });
    running = child;
    const from = reports.length;
    createInterface({ input: child.stdout }).on('line', (line) => reports.push(JSON.parse(line) as PublisherReport));
    await eventually(() => reports.slice(from).find(({ what }) => what === 'ready'), 'it serves');
  };
  const end = async (signal?: NodeJS.Signals) => {
    const child = running;
    running = undefined;
    if (!child) return;
    if (signal) child.kill(signal);
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  };
  t.teardown(() => end('SIGKILL'));
  await start();
  const target = placeOf(root, UID);
  /** As seen in the namespace. */
  const inside = (path: string) => `/proc/${holder.pid}/root${path}`;
  return {
    root,
    target,
    reports,
    start,
    end,
    inside,
    set: (name: string, text = '') => writeFileSync(join(files, name), text),
    unset: (name: string) => rmSync(join(files, name)),
    publishes: () => reports.flatMap((one) => (one.what === 'publish' ? [one.mounted] : [])),
    problems: () => reports.flatMap((one) => (one.what === 'problem' ? [one.text] : [])),
    mounts: () => {
      const lines = readFileSync(`/proc/${holder.pid}/mountinfo`, 'utf8').split('\n');
      return lines.filter((line) => line.includes(root)).length;
    },
    generation: () => readFileSync(inside(pagePath(target, 'main'))).readBigUInt64LE(32),
  };
}

test('a published volume stays published, whatever happens when the kubelet asks again', async (t) => {
  const { root, set, unset, publishes, problems, mounts, generation } = await setUp(t);
  set('pods/one', 'main');
  t.is((await publish(root, UID, 'one')).code, status.OK);
  t.is(mounts(), 2);
  const first = generation();
  t.is((await publish(root, UID, 'one')).code, status.OK);
  t.true(generation() > first, 'the page was brought up to date');
  set('broken');
  t.is((await publish(root, UID, 'one')).code, status.OK, 'the API server is away');
  unset('broken');
  unset('pods/one');
  t.is((await publish(root, UID, 'one')).code, status.OK, 'the pod has no grant any more');
  await eventually(() => publishes().length >= 4 || undefined, 'four publishes are reported');
  t.deepEqual(publishes(), [false, true, true, true]);
  const context = { 'csi.storage.k8s.io/pod.name': '' };
  t.is((await publish(root, UID, 'one', context)).code, status.OK, 'the CSIDriver object says nothing of pods');
  t.is(publishes().length, 4, 'no server can be asked about it');
  // Reported by another process, so a moment later.
  await eventually(() => problems().length >= 3 || undefined, 'the problems are reported');
  t.deepEqual(
    problems().map((text) => text.replace(/(the kubelet names no pod).*/, '$1')),
    [
      'the API server does not answer',
      'pod team/one has no grant; was it bound by another scheduler?',
      'the kubelet names no pod',
    ].map((why) => `a volume that is in use stays as it is: ${why}`),
  );
  t.is(mounts(), 2);
});

test('an agent takes down a volume that another agent made, without asking anything', async (t) => {
  const { root, target, set, start, end, mounts, inside } = await setUp(t);
  set('pods/one', 'main side');
  t.is((await publish(root, UID, 'one')).code, status.OK);
  t.true(existsSync(inside(pagePath(target, 'side'))));
  await end('SIGKILL');
  t.is(mounts(), 2, 'it outlives the agent');
  set('broken');
  await start();
  t.is((await unpublish(root, target)).code, status.OK);
  t.is(mounts(), 0);
  t.false(existsSync(target));
  t.is((await unpublish(root, target)).code, status.OK);
});

test('a volume whose agent was killed is unpublished until the next agent finishes it', async (t) => {
  const { root, target, set, unset, start, end, publishes, mounts, generation } = await setUp(t);
  set('pods/one', 'main');
  set('die');
  t.is((await publish(root, UID, 'one')).code, status.UNAVAILABLE);
  await end();
  t.is(mounts(), 2, 'it was mounted');
  unset('die');
  set('broken');
  await start();
  t.is((await publish(root, UID, 'one')).code, status.UNAVAILABLE, 'a first publish still');
  t.is(mounts(), 0, 'and what is refused is gone');
  t.false(existsSync(target));
  unset('broken');
  set('die');
  t.is((await publish(root, UID, 'one')).code, status.UNAVAILABLE);
  await end();
  unset('die');
  await start();
  t.is((await publish(root, UID, 'one')).code, status.OK);
  await eventually(() => publishes().length >= 2 || undefined, 'two publishes are reported');
  t.deepEqual(publishes(), [false, false], 'those who were killed could not tell');
  t.true(generation() > 1n, 'the page that lay there was written again');
});

test('giving and taking over the socket hold up no pod', async (t) => {
  const { root, set, reports } = await setUp(t);
  set('pods/one', 'main');
  const times: number[][] = [[], []];
  for (let round = 0; round < 20; round++) {
    const started = performance.now();
    t.is((await publish(root, UID, 'one')).code, status.OK);
    const published = performance.now();
    t.is((await unpublish(root, placeOf(root, UID))).code, status.OK);
    times[0]?.push(published - started);
    times[1]?.push(performance.now() - published);
  }
  const [publishMs, unpublishMs] = times.map((list) => list.toSorted((a, b) => a - b)[10] ?? Number.NaN);
  const own = reports.flatMap((one) => (one.what === 'publish' ? [one.ms] : [])).toSorted((a, b) => a - b)[10];
  t.log(
    `median: publish ${publishMs?.toFixed(1)} ms (${own?.toFixed(1)} of it files and mounts), unpublish ${unpublishMs?.toFixed(1)} ms`,
  );
  t.true((publishMs ?? Number.NaN) < 300, 'an order of magnitude above what a busy machine shows');
});

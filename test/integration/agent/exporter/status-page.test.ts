// The status page in a real browser, on a node with a tenant that behaves, one that was stopped, and names that are no
// HTML.
import { execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { ExecutionContext } from 'ava';
import { createRecorder } from '../../../../src/agent/snapshot/history.ts';
import type { Snapshot } from '../../../../src/agent/snapshot/snapshot.ts';
import { createLocalSource } from '../../../../src/agent/snapshot/source.ts';
import { createExporter, type Guards } from '../../../../src/exporter/routes.ts';
import { requireAuth } from '../../../../src/serving/auth.ts';
import { startHttpServer } from '../../../../src/serving/http-server.ts';
import { testUnless } from '../../../support/gate.ts';
import { BUILD, eventually, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { exampleContainer, exampleSnapshot, withInstance } from '../../../support/product/snapshots.ts';
import { browser, FLAGS, openPage } from '../../../support/services/browser.ts';

const execute = promisify(execFile);

const CLIENT = join(BUILD, 'tests/client');
const MIB = 2 ** 20;
const testInBrowser = testUnless(browser === undefined ? 'there is no Chromium or Chrome on the PATH' : undefined);

const show = async (t: ExecutionContext, url: string): Promise<string> => {
  const flags = [...FLAGS, '--virtual-time-budget=3000'];
  const data = `--user-data-dir=${temporaryFolder(t)}`;
  const { stdout, stderr } = await execute(browser ?? '', [...flags, data, '--dump-dom', url], {
    encoding: 'utf8',
    timeout: 60_000,
    maxBuffer: 1 << 24,
  });
  t.truthy(stdout, stderr);
  return stdout;
};
/** A snapshot with a part of its use. */
function partOf(snapshot: Snapshot, share: number, atMs: number): Snapshot {
  const less = <T extends { readonly usedBytes?: number | undefined; readonly smPercent?: number | undefined }>(
    one: T,
  ) => ({
    ...one,
    ...(one.usedBytes !== undefined && { usedBytes: one.usedBytes * share }),
    ...(one.smPercent !== undefined && { smPercent: one.smPercent * share }),
  });
  return {
    ...snapshot,
    atMs,
    devices: snapshot.devices.map((device) => ({ ...device, gpu: less(device.gpu) })),
    containers: snapshot.containers.map(less),
    assigned: snapshot.assigned.map(less),
    foreign: snapshot.foreign.map(less),
  } as Snapshot;
}
/** The address of a page of this snapshot. */
async function served(t: ExecutionContext, snapshot: Snapshot, guards: Guards = {}): Promise<string> {
  const recorder = createRecorder();
  // A minute in which use grows to that of the snapshot.
  for (let step = 1; step <= 12; step++) recorder.push(partOf(snapshot, step / 12, snapshot.atMs + step * 5000));
  const { history } = recorder;
  const source = createLocalSource({ snapshot: () => snapshot, history, own: async () => '' });
  const { close, port } = await startHttpServer(createExporter({ ...source, scrape: async () => 'nothing' }, guards), {
    listen: { host: '127.0.0.1', port: 0 },
  });
  t.teardown(close);
  return `http://127.0.0.1:${port}/`;
}

/** Text of the cells of each row. */
const rowsOf = (page: string, id: string): string[][] => {
  const table = new RegExp(`<table id="${id}">.*?<tbody>(.*?)</tbody>`, 's').exec(page)?.[1] ?? '';
  return [...table.matchAll(/<tr>(.*?)<\/tr>/gs)].map(([, row = '']) =>
    [...row.matchAll(/<td[^>]*>(.*?)<\/td>/gs)].map(([, cell = '']) => cell.replace(/<[^>]*>/g, '')),
  );
};

testInBrowser('the status page asks for a token where its data needs one', async (t) => {
  const status = requireAuth({ bearer: { matches: async () => false } }, () => {});
  const page = await show(t, await served(t, exampleSnapshot, { status }));
  t.regex(page, /<form id="open"><label>Token /);
  t.regex(page, /want a valid bearer token/);
  t.regex(await show(t, await served(t, exampleSnapshot)), /<form id="open" hidden(="")?>/);
});

testInBrowser('the status page shows GPUs, tenants, limits, use and actions', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'a10');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100, urgentIntervalMs: 100 } });
  const good = runTenant(t, node, agent, ['--gpu-memory', '2Gi', '--gpu-cores', '30', '--name', 'good'], [CLIENT]);
  for (const command of ['init', 'context 0', `alloc ${1000 * MIB}`]) await tell(good, command);
  const bypassing = ['env', '-u', 'LD_PRELOAD', CLIENT];
  const rogue = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', '<b onload=1>'], bypassing);
  for (const command of ['init', 'context 0', `alloc ${2048 * MIB}`]) await tell(rogue, command);
  await rogue.ended;
  await eventually(async () => {
    const snapshot = await agent.snapshot();
    return snapshot?.containers.length === 1 && (snapshot.containers[0]?.usedBytes ?? 0) > 1000 * MIB
      ? true
      : undefined;
  }, 'one tenant is left');

  const page = await show(t, agent.url);
  t.regex(page, /driver [\d.]+, mode enforce/);
  const gpus = rowsOf(page, 'gpus');
  t.deepEqual(
    gpus.map(([name]) => name),
    ['0 NVIDIA L4', '1 NVIDIA A10'],
  );
  t.regex(gpus[0]?.[1] ?? '', /^1,\d{3} MiB of 2\d,\d{3} MiB$/);
  t.is(gpus[0]?.[2], '2,048 MiB');
  t.regex(
    gpus[0]?.[4] ?? '',
    /^memory over the last 10 minutes: at most [34],\d{3} MiB$/,
    'the stopped container is in the past',
  );
  const tenants = rowsOf(page, 'tenants');
  t.is(tenants.length, 1);
  const [name, gpu, memory, compute, memoryPast, computePast, fence, mode, state] = tenants[0] ?? [];
  t.deepEqual([name, gpu, fence, mode, state], ['local/good', '0', 'interposer', 'enforce', 'within limits']);
  t.regex(memory ?? '', /^1,\d{3} MiB of 2,048 MiB$/);
  t.regex(memoryPast ?? '', /^memory over the last 10 minutes: at most 1,\d{3} MiB$/);
  t.regex(computePast ?? '', /^compute over the last 10 minutes: at most \d+ %$/);
  t.is([...page.matchAll(/<path d="M [\d.]+ [\d.]+[^"]*" class="line">/g)].length, 6, 'two lines for each row');
  t.regex(page, /<section id="foreign-section" hidden(="")?>/, 'no use without a grant');
  t.regex(compute ?? '', /^\d+ % of 30 % fixed$/);
  const actions = /<ol id="actions">(.*?)<\/ol>/s.exec(page)?.[1] ?? '';
  t.regex(
    actions,
    /kill<\/strong>: local\/\S*b\S*onload\S*1\S*\/env exceeds its GPU memory grant: .* the agent stops it/,
  );
  t.notRegex(actions, /<b/);

  node.control('lose', '1');
  await eventually(async () => {
    const lost = (await agent.snapshot())?.devices[1];
    return (lost?.gpu.healthy === false && lost.fault) || undefined;
  }, 'the loss and its Xid');
  t.is(rowsOf(await show(t, agent.url), 'gpus')[1]?.[0], '1 NVIDIA A10 (Xid 79)');
});

testInBrowser('GPUs of other device plugins, and use without a grant, have tables of their own', async (t) => {
  t.timeout(120_000);
  const shown = async (snapshot: Snapshot): Promise<string> => show(t, await served(t, snapshot));
  const page = await shown({
    ...withInstance,
    assigned: withInstance.assigned.map((entry) => ({ ...entry, pod: '<img src=x>' })),
    foreign: withInstance.foreign.map((entry) => ({ ...entry, smPercent: 30 })),
  });
  const bare = await shown({
    ...exampleSnapshot,
    devices: exampleSnapshot.devices.map((device) => {
      const { totalBytes: _, usedBytes: __, utilizationPercent: ___, ...gpu } = device.gpu;
      return { ...device, gpu };
    }),
    containers: exampleSnapshot.containers.map((entry) => ({ ...entry, smPercent: undefined })),
  });
  t.deepEqual(
    rowsOf(bare, 'gpus').map(([, memory, , busy, past]) => [memory, busy, past]),
    exampleSnapshot.devices.map(() => ['unknown', '-', 'memory over the last 10 minutes: unknown']),
  );
  t.regex(rowsOf(bare, 'tenants')[0]?.[3] ?? '', /^-( |$)/);
  t.notRegex(bare.replace(/<script>.*?<\/script>/gs, ''), /NaN|undefined/);
  t.regex(page, /<section id="assigned-section">/);
  t.regex(page, /<section id="foreign-section">/);
  const past = (memory: string, compute: string) => [
    `memory over the last 10 minutes: ${memory}`,
    `compute over the last 10 minutes: ${compute}`,
  ];
  t.deepEqual(rowsOf(page, 'assigned'), [
    [
      'team/&lt;img src=x&gt;/main',
      '1',
      'exclusive',
      '1,024 MiB',
      '50 %',
      ...past('at most 1,024 MiB', 'at most 50 %'),
      '1',
    ],
    ['team/&lt;img src=x&gt;/main', '2', 'mig', '0 MiB', '-', ...past('at most 0 MiB', 'unknown'), '0'],
  ]);
  t.deepEqual(rowsOf(page, 'foreign'), [
    ['0123456789ab', '1', '5,120 MiB', '30 %', ...past('at most 5,120 MiB', 'at most 30 %'), '1'],
  ]);
  const quiet = await shown({ ...exampleSnapshot, assigned: [], foreign: [] });
  t.regex(quiet, /<section id="assigned-section" hidden(="")?>/);
  t.regex(quiet, /<section id="foreign-section" hidden(="")?>/);
});

testInBrowser('the page fits wide and narrow windows', async (t) => {
  t.timeout(120_000);
  const long = { namespace: 'research-vision-nightly', pod: 'trainer-resnet-7c9f8d5b6-x2x9k', container: 'worker' };
  const full = {
    ...exampleContainer,
    ...long,
    grantId: 'g2',
    over: true,
    usedBytes: 5 * 2 ** 30,
    bypassBytes: 2 ** 30,
  };
  const snapshot: Snapshot = { ...withInstance, containers: [exampleContainer, full] };
  const url = await served(t, snapshot);
  const page = await openPage(t, url);
  for (const width of [1280, 800, 400]) {
    await page.resize(width, 600);
    await eventually(
      async () =>
        (await page.evaluate("document.querySelectorAll('#tenants tbody tr').length === 2")) === true || undefined,
      'it is filled',
    );
    t.is(await page.evaluate('document.documentElement.scrollWidth'), width, `${width}: no need to scroll sideways`);
    // The state is in the last column of a table that is wider than some windows.
    const state = (await page.evaluate(
      "(({ left, right, width, height }) => ({ left, right, width, height }))(document.querySelector('#tenants td.bad').getBoundingClientRect())",
    )) as { left: number; right: number; width: number; height: number };
    t.true(
      state.left >= 0 && state.right <= width && state.width > 0 && state.height > 0,
      `${width}: the state is in sight`,
    );
    const bars = (await page.evaluate(
      "[...document.querySelectorAll('#tenants .bar')].map((bar) => bar.firstChild.offsetWidth / bar.offsetWidth)",
    )) as number[];
    t.deepEqual(
      bars.map((part) => Math.round(100 * part)),
      [100, 75],
      `${width}: bars are as long as what they show`,
    );
    const height = (await page.evaluate('document.documentElement.scrollHeight')) as number;
    await page.resize(width, height);
    const png = await page.picture();
    t.deepEqual([png.readUInt32BE(16), png.readUInt32BE(20)], [width, height]);
    // One color all over makes some hundreds of bytes.
    t.true(png.length > 10_000, `${width}: ${png.length} bytes`);
    if (process.env.PICTURES) writeFileSync(`${process.env.PICTURES}/status-${width}.png`, png);
  }
});

testInBrowser('a full node says first what is wrong, keeps up, and needs no mouse and no colors', async (t) => {
  t.timeout(120_000);
  const [like] = exampleSnapshot.devices;
  if (like === undefined) return t.fail('no GPU');
  const [gpus, tenants] = [8, 50];
  const devices = Array.from({ length: gpus }, (_, index) => {
    const { fault: _fault, ...well } = like;
    return {
      ...well,
      gpu: { ...like.gpu, index, uuid: `GPU-${index}` },
      ...(index === 6 && { fault: { xid: 119, atMs: 1 } }),
    };
  });
  const containers = Array.from({ length: gpus * tenants }, (_, number) => ({
    ...{ ...exampleContainer, tampered: false, podUid: `u${number}`, pod: `pod-${number}`, grantId: `g${number}` },
    ...{ gpuIndex: number % gpus, gpuUuid: `GPU-${number % gpus}`, over: number === 398 },
  }));
  const recent = Array.from({ length: 20 }, (_, number) => ({
    ...{ atMs: number, action: 'warn' as const, result: 'done' as const },
    message: `team/pod-${379 + number}/main exceeds its GPU memory grant`,
  }));
  const page = await openPage(t, await served(t, { ...exampleSnapshot, devices, containers, recent }));
  const textOf = (selector: string) => page.evaluate(`document.querySelector('${selector}')?.textContent`);
  await page.resize(1280, 900);
  await eventually(
    async () => (await page.evaluate("document.querySelectorAll('#tenants tbody tr').length")) === 400 || undefined,
    'it is filled',
  );
  t.is(
    await textOf('#well'),
    '1 of 8 GPUs with a fault: GPU 6; 1 of 400 containers: team/pod-398/main over its memory grant',
  );
  t.is(await textOf('#tenants tbody tr td'), 'team/pod-398/main', 'it is the first of the table');
  const seen = "document.querySelector('#tenants td.bad').getBoundingClientRect().bottom < innerHeight";
  t.true(await page.evaluate(seen), 'and on the first screen');
  const why = "document.querySelector('#actions li')";
  t.regex(String(await page.evaluate(`${why}.textContent`)), /warn: team\/pod-398\/main exceeds its GPU memory grant/);
  t.true(await page.evaluate(`${why}.getBoundingClientRect().bottom < innerHeight`), 'why is, too');
  // It is filled again each second. A busy machine may interrupt most tries, and not all of them.
  const filling = await page.evaluate(`(async () => {
    const snapshot = await (await fetch('status.json')).json();
    let least = Infinity;
    for (let count = 0; count < 5 || (count < 30 && least >= 1000); count += 1) {
      const before = performance.now();
      show(snapshot);
      document.body.offsetHeight;
      least = Math.min(least, performance.now() - before);
    }
    return least;
  })()`);
  t.true((filling as number) < 1000, `${filling} ms`);
  // What scrolls can be reached by the Tab key, and has a name; what colors say stands there in words.
  const scrolled = await page.evaluate(`[...document.querySelectorAll('.scroll')].map((region) =>
    [region.tabIndex, document.getElementById(region.getAttribute('aria-labelledby')).textContent])`);
  t.deepEqual(scrolled, [
    [0, 'GPUs'],
    [0, 'Actions'],
    [0, 'Containers'],
    [0, 'GPUs of other device plugins'],
    [0, 'Use without a grant'],
  ]);
  const silent =
    "[...document.querySelectorAll('.bad, .fence, .bar, .spark')].filter((one) => !one.textContent.trim() && !one.getAttribute('aria-label')).length";
  t.is(await page.evaluate(silent), 0);
});

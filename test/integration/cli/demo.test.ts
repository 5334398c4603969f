// The demonstration as a newcomer sees it: started, watched through what it prints and serves, and ended by Ctrl-C.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import test, { type ExecutionContext } from 'ava';
import { unifiedMount } from '../../../src/agent/os/cgroup.ts';
import type { Snapshot } from '../../../src/agent/snapshot/snapshot.ts';
import { processesNaming } from '../../support/machine/processes.ts';
import { eventually, temporaryFolder } from '../../support/native/node.ts';
import { seriesOf } from '../../support/product/agent.ts';

const MAIN = join(import.meta.dirname, '../../../src/cli/main.ts');

/** Starts it as a terminal would, in a group of its own that Ctrl-C reaches as a whole, with a folder for its files. */
function startDemo(t: ExecutionContext, ...flags: string[]) {
  const folder = temporaryFolder(t);
  const child = spawn(process.execPath, [MAIN, 'demo', '--plain', '--port', '0', '--webhook-port', '0', ...flags], {
    env: { ...process.env, TMPDIR: folder },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
  });
  const lines: string[] = [];
  for (const stream of [child.stdout, child.stderr])
    createInterface({ input: stream }).on('line', (line) => lines.push(line));
  const ended = once(child, 'exit') as Promise<[number | null, NodeJS.Signals | null]>;
  const interrupt = () => process.kill(-(child.pid ?? 0), 'SIGINT');
  t.teardown(async () => {
    if (child.exitCode === null && child.signalCode === null) process.kill(-(child.pid ?? 0), 'SIGKILL');
    await ended;
  });
  return { folder, child, lines, ended, interrupt };
}

/** A command of ours, to its end: exit code, and what it printed. */
async function ended(...args: readonly string[]): Promise<[code: number, out: string]> {
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  const out: Buffer[] = [];
  child.stdout.on('data', (part: Buffer) => out.push(part));
  const [code] = (await once(child, 'close')) as [number];
  return [code, String(Buffer.concat(out))];
}

/** Tenants' groups of this demonstration that are still there, anywhere in the unified hierarchy. */
function groupsOf(ids: readonly string[]): string[] {
  const mount = unifiedMount();
  if (mount === undefined) return [];
  const { stdout } = spawnSync('find', [mount, '-type', 'd', '-name', 'cotenant-*'], { encoding: 'utf8' });
  return stdout.split('\n').filter((path) => ids.some((id) => path.endsWith(`cotenant-${id}`)));
}

test('the demo shows limits held, a rogue stopped and a patched pod, and cleans up', async (t) => {
  t.timeout(120_000);
  const demo = startDemo(t);
  const said = (pattern: RegExp) => () =>
    demo.lines.map((line) => pattern.exec(line)).find((match) => match !== null) ?? undefined;
  const [, page = ''] = await eventually(said(/status page (http:\S+)/), 'the address of the page', 90_000);
  const metric = async (name: string, labels: Record<string, string>) =>
    seriesOf(await (await fetch(`${page}metrics`)).text(), name, labels);

  await eventually(said(/greedy .*refused/), 'the greedy one says that it was refused');
  await eventually(said(/rogue .*: stopped by the agent/), 'the rogue is stopped');
  await eventually(said(/ kill: local\/rogue\/\S+ .*past the interposer.*the agent stops it/), 'why it was stopped');
  await eventually(
    said(/add \/spec\/containers\/0\/resources\/limits\/cotenant\.io~1gpu-memory/),
    'the patch of the example pod',
  );
  await eventually(
    async () =>
      ((await metric('cotenant_container_kills_total', { pod: 'rogue', result: 'released' })) ?? 0) > 0 || undefined,
    'the stop in the metrics',
  );
  t.true(((await metric('cotenant_container_allocations_denied_total', { pod: 'greedy' })) ?? 0) > 0);
  for (const [pod, gib] of Object.entries({ trainer: 8, server: 4, greedy: 2 })) {
    const used = await eventually(
      async () => (await metric('cotenant_container_memory_used_bytes', { pod })) || undefined,
      `${pod} holds memory`,
    );
    t.is(await metric('cotenant_container_memory_limit_bytes', { pod }), gib * 2 ** 30);
    t.true(used <= gib * 2 ** 30, `${pod}: ${used}`);
  }
  for (const good of ['trainer', 'server', 'greedy']) {
    t.is((await metric('cotenant_container_kills_total', { pod: good })) ?? 0, 0);
    t.deepEqual(
      demo.lines.filter((line) => new RegExp(`^ *${good} .*([1-9]\\d* wrong|failed with|ended \\()`).test(line)),
      [],
    );
  }
  t.is((await fetch(page)).status, 200);

  const [, folder = '', others = ''] = said(/npx cotenant top --state (\S+) +\(or (.*)\)$/)() ?? [];
  for (const words of others.split(', ')) {
    const [code, out] = await ended(...words.split(' '), '--state', folder);
    t.is(code, 0, out);
    t.regex(out, /rogue/, words);
  }
  const top = spawn(process.execPath, [MAIN, 'top', '--state', folder], { stdio: ['ignore', 'pipe', 'inherit'] });
  const [round] = (await once(top.stdout, 'data')) as [Buffer];
  top.kill('SIGINT');
  t.regex(String(round), /^driver .*mode enforce/);
  t.deepEqual(await once(top, 'exit'), [0, null]);

  const snapshot = (await (await fetch(`${page}status.json`)).json()) as Snapshot;
  const ids = [...snapshot.containerTotals, ...snapshot.containers].map(({ grantId }) => grantId);
  t.true(ids.length >= 4);

  demo.interrupt();
  const [code] = await demo.ended;
  t.is(code, 0, demo.lines.slice(-20).join('\n'));
  t.true(demo.lines.includes('demo stopped'));
  t.deepEqual(processesNaming(demo.folder), []);
  t.deepEqual(readdirSync(demo.folder), []);
  t.deepEqual(groupsOf(ids), []);
});

test('a port that is in use ends it with one sentence, and nothing is left running', async (t) => {
  const server = createServer().listen(0, '127.0.0.1');
  t.teardown(() => server.close());
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const demo = startDemo(t, '--port', String(port));
  const [code] = await demo.ended;
  t.is(code, 2);
  const words = demo.lines.filter((line) => !line.startsWith('building'));
  t.deepEqual(words, [`cotenant: listen EADDRINUSE: address already in use 127.0.0.1:${port}`]);
  t.deepEqual(processesNaming(demo.folder), []);
  t.deepEqual(readdirSync(demo.folder), []);
});

test('it ends by itself after the time that --for gives', async (t) => {
  const demo = startDemo(t, '--for', '1');
  const [code] = await demo.ended;
  t.is(code, 0, demo.lines.join('\n'));
  t.deepEqual(readdirSync(demo.folder), []);
});

test('it ends in order when nothing reads its output any more', async (t) => {
  const demo = startDemo(t);
  await eventually(() => demo.lines.some((line) => line.includes('status page')) || undefined, 'a first round', 90_000);
  demo.child.stdout.destroy();
  t.deepEqual(await demo.ended, [141, null], demo.lines.slice(-20).join('\n'));
  t.deepEqual(processesNaming(demo.folder), []);
  t.deepEqual(readdirSync(demo.folder), []);
});

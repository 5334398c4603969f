// The agent as two processes: the node half without a port, and the exporter half that serves what that one tells. Each
// is ended, stopped and started again while the other one goes on.
import { spawnSync } from 'node:child_process';
import { chmodSync, lstatSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { testUnless } from '../../../support/gate.ts';
import { datagramPortsOf, listenersOf } from '../../../support/machine/sockets.ts';
import { OUT_OF_MEMORY } from '../../../support/native/client.ts';
import { BUILD, eventually, startNode, type Teardown, temporaryFolder } from '../../../support/native/node.ts';
import { CHART_ENV, type RunningAgent, runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';
import { type RunningExporter, startExporterHalf } from '../../../support/product/node-and-exporter.ts';

const CLIENT = join(BUILD, 'tests/client');
const OPEN = 'application/openmetrics-text;version=1.0.0';
const QUIET = { calibrate: false, intervalMs: 250, urgentIntervalMs: 250 } as const;

const namesOf = (page: string) => [...page.matchAll(/^# TYPE (\S+) \S+$/gm)].map(([, name]) => name ?? '').sort();
const isUp = (exporter: RunningExporter, value: 0 | 1) =>
  eventually(async () => (await exporter.metric('cotenant_up')) === value || undefined, `cotenant_up is ${value}`);
const pidOf = ({ child }: { child: RunningAgent['child'] }) => child.pid ?? 0;

async function startHalves(t: Teardown, settings: Readonly<Record<string, string | number | boolean>> = {}) {
  const node = await startNode(t, '--gpu', 'l4');
  const socket = join(temporaryFolder(t), 'snapshots.sock');
  const state = join(temporaryFolder(t), 'state');
  const half = (more = settings) =>
    startAgent(t, node, { state, settings: { ...QUIET, ...more, 'page.socket': socket }, env: CHART_ENV });
  return { node, socket, half };
}

test('two halves serve the same as one process, and the node half has no port', async (t) => {
  t.timeout(180_000);
  const { node, socket, half } = await startHalves(t);
  const agent = await half();
  const exporter = await startExporterHalf(t, socket, {}, CHART_ENV);
  await isUp(exporter, 1);
  t.deepEqual(listenersOf([pidOf(agent)]), []);
  t.deepEqual(datagramPortsOf([pidOf(agent)]), []);
  t.deepEqual(listenersOf([pidOf(exporter)]), [{ port: Number(new URL(exporter.url).port), isLoopback: true }]);

  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'good'], [CLIENT]);
  for (const command of ['init', 'context 0', `alloc ${500 * MIB}`]) await tell(tenant, command);
  t.is((await tell(tenant, `alloc ${900 * MIB}`))[0], OUT_OF_MEMORY);
  const own = { pod: 'good' };
  await eventually(
    async () => ((await exporter.metric('cotenant_container_memory_used_bytes', own)) ?? 0) > 500 * MIB || undefined,
    'its memory',
  );
  const page = await exporter.metrics();
  const series = page.split('\n').flatMap((line) => /^([^#].*) \S+$/.exec(line)?.[1] ?? []);
  t.is(new Set(series).size, series.length, 'no series is there twice');

  const whole = await startAgent(t, node, { settings: QUIET });
  const [one, two] = await Promise.all([whole.metrics(), exporter.metrics()]);
  t.deepEqual(
    namesOf(two).filter((name) => !namesOf(one).includes(name)),
    [],
  );
  t.deepEqual(
    namesOf(one).filter((name) => !namesOf(two).includes(name)),
    [],
  );

  const open = await exporter.get('/metrics', { accept: OPEN, 'accept-encoding': 'gzip' });
  t.is(open.headers.get('content-encoding'), 'gzip');
  t.regex(open.headers.get('content-type') ?? '', /^application\/openmetrics-text; version=1\.0\.0/);
  t.regex(await open.text(), /# EOF\n$/);
  const status = await exporter.get('/status.json');
  t.regex(status.headers.get('content-type') ?? '', /^application\/json/);
  t.like(await status.json(), {
    containers: [{ pod: 'good', processes: [{ command: 'client' }] }],
    self: { up: true },
  });
  const history = (await (await exporter.get('/history.json')).json()) as { gpus: object; containers: object };
  t.deepEqual([Object.keys(history.gpus).length, Object.keys(history.containers).length], [1, 1]);
  t.regex(await (await exporter.get('/')).text(), /<title>Cotenant<\/title>/);
  t.is(await (await exporter.get('/readyz')).text(), 'ok\n');
  for (const path of ['/v1/status', '/v1/grants']) t.is((await exporter.get(path)).status, 404, path);
});

test('the halves reconnect, and an exporter half alone reports cotenant_up 0', async (t) => {
  t.timeout(120_000);
  const { socket, half } = await startHalves(t);
  const exporter = await startExporterHalf(t, socket);
  const isAway = async (words: RegExp) => {
    await isUp(exporter, 0);
    const page = await exporter.get('/metrics');
    t.is(page.status, 200);
    t.deepEqual(namesOf(await page.text()), ['cotenant_up'], 'no metric without a value');
    t.is((await exporter.get('/livez')).status, 200, 'a restart would cure nothing');
    const ready = await exporter.get('/readyz');
    t.is(ready.status, 503);
    t.regex(await ready.text(), words);
    for (const path of ['/status.json', '/history.json']) {
      const answer = await exporter.get(path);
      t.is(answer.status, 503);
      t.regex(await answer.text(), words);
    }
  };
  await isAway(/^the node half does not answer: connect ENOENT /);
  const first = await half();
  await isUp(exporter, 1);
  t.true(exporter.log.some((line) => line.includes('the node half does not answer: connect ENOENT')));
  t.true(exporter.log.some((line) => line.endsWith('the node half answers again')));

  // Killed, it leaves its socket behind, which has no server.
  await first.stop('SIGKILL');
  await isAway(/^the node half does not answer: /);
  const second = await half();
  await isUp(exporter, 1);
  t.is(exporter.log.filter((line) => /connect E/.test(line)).length <= 3, true, 'logged once each');

  const started = await exporter.metric('process_start_time_seconds');
  t.true(started !== undefined && started > 0);
  await exporter.stop('SIGKILL');
  const seen = (await second.snapshot())?.atMs ?? 0;
  await eventually(async () => ((await second.snapshot())?.atMs ?? 0) > seen || undefined, 'samples go on without it');
  const next = await startExporterHalf(t, socket);
  await isUp(next, 1);
  t.is(await next.metric('process_start_time_seconds'), started, 'of the two it tells of the node half alone');

  // It hangs: a scrape has its answer within Prometheus' own 10 s.
  process.kill(pidOf(second), 'SIGSTOP');
  await isUp(next, 0);
  t.true(next.log.some((line) => line.includes('the node half does not answer: not within 7 s')));
  process.kill(pidOf(second), 'SIGCONT');
  await isUp(next, 1);
  await second.stop();
  t.is(lstatSync(socket, { throwIfNoEntry: false }), undefined, 'an agent that ends takes its socket with it');
  await isUp(next, 0);
});

testUnless(process.getuid?.() === 0 ? undefined : 'needs root, to be several users')(
  'only the configured user may connect to the snapshot socket',
  async (t) => {
    const { socket, half } = await startHalves(t);
    const agent = await half({ 'page.socketUser': 65532 });
    // Folders of tests are their owner's alone.
    for (const path of [join(socket, '..'), join(agent.state, '..'), agent.state]) chmodSync(path, 0o711);
    const { uid, gid, mode } = lstatSync(socket);
    t.deepEqual([uid, gid, mode & 0o777], [65532, 65532, 0o600]);
    const reach = (user: number, path: string) =>
      spawnSync(process.execPath, [
        '-e',
        `process.setgroups([]); process.setgid(${user}); process.setuid(${user});
         require('net').connect(${JSON.stringify(path)}).on('connect', () => process.exit(0)).on('error', ({ code }) => { console.log(code); process.exit(1); })`,
      ]).stdout.toString();
    t.is(reach(65532, socket), '');
    t.is(reach(65533, socket), 'EACCES\n');
    t.is(reach(65532, join(agent.state, 'agent.sock')), 'EACCES\n');
    t.is(reach(0, join(agent.state, 'agent.sock')), '');
  },
);

test('the exporter half authorizes requests, not the node half', async (t) => {
  const { socket, half } = await startHalves(t);
  const agent = await half();
  const file = join(temporaryFolder(t), 'token');
  writeFileSync(file, 'a-token-that-opens-the-page');
  const exporter = await startExporterHalf(t, socket, { 'page.bearerTokenFile': file });
  const statusOf = async (path: string, token: string) =>
    (await exporter.get(path, { authorization: `Bearer ${token}` })).status;
  for (const path of ['/metrics', '/', '/status.json', '/history.json']) {
    t.is(await statusOf(path, 'another-token'), 401, path);
    await eventually(async () => (await statusOf(path, 'a-token-that-opens-the-page')) === 200 || undefined, path);
  }
  t.is((await exporter.get('/livez')).status, 200);
  t.false(agent.log.some((line) => line.includes('token')));
});

test('each half ends with a reason if a setting cannot be applied', async (t) => {
  const { node, socket, half } = await startHalves(t);
  await half();
  const second = startAgent(t, node, { settings: { 'page.socket': socket } });
  await t.throwsAsync(second, { message: new RegExp(`${socket}: another agent serves this socket`) });
  await t.throwsAsync(startExporterHalf(t, ''), { message: /page\.socket is missing: the socket of the node half/ });
});

// The HTTP server of the extender: which requests it refuses, mutual TLS, and the command's options.
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { request } from 'node:https';
import { join } from 'node:path';
import test from 'ava';
import { createLogger } from '../../../src/common/logger.ts';
import { startScheduler } from '../../../src/scheduler/start.ts';
import { eventually, temporaryFolder } from '../../support/native/node.ts';
import { startApi } from './api.ts';
import { start } from './running.ts';

test('requests that are not of the protocol are refused', async (t) => {
  const api = await startApi(t, { a: 1000 });
  const running = await start(t, api);
  for (const verb of ['filter', 'prioritize', 'preempt', 'bind']) {
    t.is((await running.call(verb, '{')).status, 400, verb);
    t.is((await running.call(verb, {})).status, 400, verb);
  }
  t.is((await running.call('score', {})).status, 404);
  t.is((await running.call('filter', 'x'.repeat(8 * 2 ** 20 + 1))).status, 413);
  t.is(await running.series('cotenant_scheduler_decisions_total', { verb: 'filter', outcome: 'malformed' }), 3);
  t.regex(String(await running.bind('one', 'a')), /the Lease ns\/l does not exist yet/);
});

test('with mutual TLS only clients of the CA are served, also after its replacement', async (t) => {
  const folder = temporaryFolder(t);
  const at = (name: string) => join(folder, name);
  const openssl = (...args: string[]) => execFileSync('openssl', args, { cwd: folder, stdio: 'pipe' });
  const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes'];
  for (const name of ['ca', 'other'])
    openssl('req', '-x509', ...curve, '-keyout', `${name}.key`, '-out', `${name}.crt`, '-subj', `/CN=${name}`);
  const issue = (name: string, ca: string) => {
    openssl('req', ...curve, '-keyout', `${name}.key`, '-out', `${name}.csr`, '-subj', `/CN=${name}`);
    writeFileSync(at('san'), 'subjectAltName=DNS:localhost');
    openssl(
      'x509',
      '-req',
      '-in',
      `${name}.csr`,
      '-CA',
      `${ca}.crt`,
      '-CAkey',
      `${ca}.key`,
      '-CAcreateserial',
      '-out',
      `${name}.crt`,
      '-extfile',
      'san',
    );
  };
  issue('server', 'ca');
  issue('caller', 'ca');
  issue('stranger', 'other');
  writeFileSync(at('client-ca.crt'), readFileSync(at('ca.crt')));
  const api = await startApi(t, { a: 1000 });
  const running = await startScheduler({
    config: api.config,
    host: 'localhost',
    port: 0,
    tls: { certFile: at('server.crt'), keyFile: at('server.key'), clientCaFile: at('client-ca.crt') },
    lease: { namespace: 'ns', name: 'l' },
    leaseHolder: 'sidecar',
    hostname: 'pod-a',
    placement: 'binpack',
    mostNodes: 100,
    evictOvercommittedAfterMs: 15_000,
    logger: createLogger({ component: 'scheduler', level: 'error' }),
  });
  t.teardown(() => running.close());
  const ask = (client: string | undefined) =>
    new Promise<number | string>((resolve) => {
      const own =
        client === undefined ? {} : { cert: readFileSync(at(`${client}.crt`)), key: readFileSync(at(`${client}.key`)) };
      const asked = request({
        host: 'localhost',
        port: running.port,
        path: '/filter',
        method: 'POST',
        ca: readFileSync(at('ca.crt')),
        agent: false,
        ...own,
      });
      asked.on('response', (response) => {
        response.resume();
        resolve(response.statusCode ?? 0);
      });
      asked.on('error', () => resolve('refused'));
      asked.end('{}');
    });
  t.deepEqual(await Promise.all([ask('caller'), ask('stranger'), ask(undefined)]), [400, 'refused', 'refused']);

  writeFileSync(at('client-ca.crt'), readFileSync(at('other.crt')));
  await eventually(async () => ((await ask('stranger')) === 400 ? true : undefined), 'the new authority is in use');
  t.deepEqual(await Promise.all([ask('caller'), ask(undefined)]), ['refused', 'refused']);
});

test('the command refuses invalid options and names missing ones', (t) => {
  const main = join(import.meta.dirname, '../../../src/cli/main.ts');
  const run = (...args: string[]) => spawnSync(process.execPath, [main, 'scheduler', ...args], { encoding: 'utf8' });
  const cases: [args: string[], said: RegExp][] = [
    [['--lease', 'a/b', '--host', '0.0.0.0'], /--host 0\.0\.0\.0: .* needs --cert, --key and --client-ca/],
    [['--lease', 'a/b', '--host', '0.0.0.0', '--cert', 'x'], /go together/],
    [[], /--lease: want NAMESPACE\/NAME/],
    [['--lease', 'a/b', '--lease-holder', 'me'], /want sidecar or self/],
    [['--lease', 'a/b', '--placement', 'tetris'], /want binpack, spread, fragmentation or topology/],
    [['--lease', 'a/b', '--overcommitted-after', '0'], /--overcommitted-after 0: want 1 to 9999/],
    [['--lease', 'a/b', '--kubeconfig', '/none'], /\/none/],
  ];
  for (const [args, said] of cases) {
    const { status, stderr } = run(...args);
    t.is(status, 2, stderr);
    t.regex(stderr, said);
  }
});

// Commands in a pipeline whose reader goes away: they end at once and print nothing, as other tools do.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import test, { type ExecutionContext } from 'ava';
import { SOCKET_NAME } from '../../../src/agent/config.ts';
import { freePort } from '../../support/machine/ports.ts';
import { eventually, temporaryFolder } from '../../support/native/node.ts';
import { MAIN } from '../../support/product/cli.ts';
import { exampleSnapshot } from '../../support/product/snapshots.ts';

/** A shell's pipeline; what its commands wrote to standard error is all it has to say. */
async function pipeline(t: ExecutionContext, command: string): Promise<string> {
  const child = spawn('/bin/sh', ['-c', command], { stdio: ['ignore', 'ignore', 'pipe'] });
  t.teardown(() => child.kill('SIGKILL'));
  const [said] = await Promise.all([text(child.stderr), once(child, 'exit')]);
  return said;
}

test('top ends quietly when the reader of its output has gone', async (t) => {
  const folder = temporaryFolder(t);
  const agent = createServer((_, response) => response.end(JSON.stringify(exampleSnapshot)));
  agent.listen(join(folder, SOCKET_NAME));
  await once(agent, 'listening');
  t.teardown(() => agent.close());
  const top = `${process.execPath} ${MAIN} top --state ${folder}`;
  t.is(await pipeline(t, `{ ${top}; echo "ended with $?" >&2; } | head -n 1`), 'ended with 141\n');
});

test('a command says in a sentence that its output cannot be written', async (t) => {
  const command = `${process.execPath} ${MAIN} --help > /dev/full; echo "ended with $?" >&2`;
  t.regex(await pipeline(t, command), /^cotenant: standard output: ENOSPC: .*\nended with 1\n$/);
});

test('a command ends quietly when its output never had a reader', async (t) => {
  for (const args of [['--help'], ['--version'], ['top', '--help']]) {
    const child = spawn(process.execPath, [MAIN, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    child.stdout.destroy();
    const [said, [code]] = await Promise.all([text(child.stderr), once(child, 'exit')]);
    t.deepEqual([said, code], ['', 141], args.join(' '));
  }
});

test('a daemon goes on when nothing reads its output', async (t) => {
  const port = await freePort();
  const argv = ['webhook', '--port', '0', '--health-port', String(port)];
  const child = spawn(process.execPath, [MAIN, ...argv], { stdio: ['ignore', 'pipe', 'ignore'] });
  t.teardown(() => child.kill('SIGKILL'));
  child.stdout.destroy();
  const ended = once(child, 'exit');
  await eventually(async () => {
    const reply = await fetch(`http://127.0.0.1:${port}/readyz`).catch(() => undefined);
    return reply?.status === 200 || undefined;
  }, 'it is ready');
  child.kill('SIGTERM');
  t.deepEqual(await ended, [0, null]);
});

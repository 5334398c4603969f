// What a daemon does when it gets SIGTERM before it has begun, as happens to pods that are replaced while they start.
// A process that is the first of its container hears nothing of a signal for which it has no handler, so it must have
// one from the start.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import test, { type ExecutionContext } from 'ava';
import { freePort } from '../../support/machine/ports.ts';
import { eventually } from '../../support/native/node.ts';

const CLI = join(import.meta.dirname, '../../../src/cli');
/** Of a server at a port without a listener. */
const KUBECONFIG = 'test/fixtures/cluster/kubeconfig.json';

function node(t: ExecutionContext, ...args: readonly string[]): { child: ChildProcess; ended: Promise<unknown[]> } {
  const child = spawn(process.execPath, args, {
    env: { ...process.env, KUBECONFIG },
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  t.teardown(() => child.kill('SIGKILL'));
  return { child, ended: once(child, 'exit') };
}

test('a webhook that waits for its certificate ends on SIGTERM', async (t) => {
  const port = await freePort();
  const place = ['--secret', 'ns/keys', '--service', 'webhook', '--registration', 'webhook'];
  const argv = ['webhook', ...place, '--port', '0', '--health-port', String(port)];
  const { child, ended } = node(t, join(CLI, 'main.ts'), ...argv);
  const ready = await eventually(async () => {
    const reply = await fetch(`http://127.0.0.1:${port}/readyz`).catch(() => undefined);
    return reply?.text();
  }, 'its probes answer');
  t.is(ready, 'no certificate that API servers trust yet\n');
  child.kill('SIGTERM');
  t.deepEqual(await ended, [0, null]);
});

/** A program whose start takes until `begun` resolves. */
const program = (begun: string) => `
  import { runUntilSignal } from ${JSON.stringify(join(CLI, 'lib/run-until-signal.ts'))};
  const alive = setInterval(() => {}, 1000);
  const start = async () => {
    console.log('starting');
    await ${begun};
    return {
      close: async () => {
        clearInterval(alive);
        console.log('closed');
      },
    };
  };
  process.exitCode = await runUntilSignal(start, () => console.log('started'));
`;

const CASES: readonly (readonly [what: string, begun: string, at: string, says: readonly string[]])[] = [
  [
    'what has begun in the meantime is closed',
    "new Promise((resolve) => process.on('SIGTERM', () => setTimeout(resolve, 200)))",
    'starting',
    ['closed'],
  ],
  ['what does not begin is left', 'new Promise((resolve) => setTimeout(resolve, 60_000))', 'starting', []],
  ['what has begun before is closed, too', 'undefined', 'started', ['closed']],
];

for (const [what, begun, at, says] of CASES) {
  test(`SIGTERM during the start: ${what}`, async (t) => {
    const { child, ended } = node(t, '--input-type=module', '--eval', program(begun));
    const lines: string[] = [];
    if (!child.stdout) throw new Error('no output');
    const reader = createInterface({ input: child.stdout }).on('line', (line) => lines.push(line));
    const read = once(reader, 'close');
    await eventually(() => lines.includes(at) || undefined, at);
    child.kill('SIGTERM');
    t.deepEqual(await ended, [0, null]);
    await read;
    t.deepEqual(lines.slice(lines.indexOf(at) + 1), says);
  });
}

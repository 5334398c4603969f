// A webhook that is stopped for a while by its machine: what comes meanwhile waits in the kernel's queue.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { testUnless } from '../../support/gate.ts';
import { eventually } from '../../support/native/node.ts';

const SOMAXCONN = '/proc/sys/net/core/somaxconn';
const queue = Number(readFileSync(SOMAXCONN, 'utf8'));

testUnless(queue < 1024 ? `${SOMAXCONN} is ${queue}` : undefined)(
  'connections of a burst wait for a webhook that is held up',
  async (t) => {
    const main = join(import.meta.dirname, '../../../src/cli/main.ts');
    const child = spawn(process.execPath, [main, 'webhook', '--port=0'], { stdio: ['ignore', 'ignore', 'pipe'] });
    t.teardown(() => child.kill('SIGKILL'));
    let said = '';
    child.stderr.on('data', (chunk) => {
      said += chunk;
    });
    const port = await eventually(
      () => Number(/admission on https:\S+:(\d+)/.exec(said)?.[1] ?? 0) || undefined,
      'a port',
    );
    child.kill('SIGSTOP');
    // Of more than the queue has room for the kernel answers none while the process is stopped.
    const sockets = Array.from({ length: 900 }, () => connect(port, '127.0.0.1'));
    t.teardown(() => {
      for (const socket of sockets) socket.destroy();
    });
    await Promise.all(sockets.map((socket) => once(socket, 'connect')));
    t.is(sockets.filter(({ readyState }) => readyState === 'open').length, sockets.length);
  },
);

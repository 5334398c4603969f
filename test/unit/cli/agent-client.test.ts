// Requests of the CLI to an agent's socket, beside what an agent does with connections that rest.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import test from 'ava';
import { SOCKET_NAME } from '../../../src/agent/config.ts';
import { ask } from '../../../src/cli/lib/agent-client.ts';
import { temporaryFolder } from '../../support/native/node.ts';

/** Answers each request, and closes its connection a moment later, of which it says nothing before. */
const SERVER = `
  const server = require('node:http').createServer((request, response) => {
    request.resume();
    response.end('{}', () => setTimeout(() => request.socket.destroy(), 20));
  });
  server.listen(process.argv[1], () => console.log('listening'));
`;

test('a request after a pause does not use a connection that was closed meanwhile', async (t) => {
  const folder = temporaryFolder(t);
  const server = spawn(process.execPath, ['-e', SERVER, join(folder, SOCKET_NAME)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  t.teardown(() => void server.kill('SIGKILL'));
  await once(server.stdout, 'data');
  for (let turn = 0; turn < 3; turn += 1) {
    t.deepEqual(await ask(folder, 'GET', '/v1/status'), { status: 200, body: {} });
    // Stopped, as a command in a terminal is by Ctrl-Z: it does not hear of the end meanwhile.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 500);
  }
});

// The way from inside a test cluster's namespaces to a server of the test's: takes TCP connections inside and passes each on
// to a unix socket, which network namespaces do not divide. As a program: PORT SOCKET.
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer, type NetConnectOpts, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Teardown } from '../../support/native/node.ts';
import type { Namespaces } from '../bed/namespaces.ts';

const passTo = (to: NetConnectOpts): Server =>
  createServer({ noDelay: true }, (from: Socket) => {
    const other = connect(to);
    for (const [one, end] of [
      [from, other],
      [other, from],
    ] as const)
      one.on('error', () => one.destroy()).on('close', () => end.destroy());
    from.pipe(other).pipe(from);
  });

/** Of the port inside to the loopback port outside; until the test ends. */
export async function startRelay(
  t: Teardown,
  namespaces: Namespaces,
  { inside, outside }: { readonly inside: number; readonly outside: number },
): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-relay-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const socket = join(folder, 'socket');
  const server = passTo({ port: outside, host: '127.0.0.1' }).listen(socket);
  t.teardown(() => void server.close());
  await once(server, 'listening');
  namespaces.start('relay', [process.execPath, import.meta.filename, String(inside), socket]);
}

const [port, path] = process.argv.slice(2);
if (process.argv[1] === import.meta.filename) passTo({ path: path ?? '' }).listen(Number(port));

// Ports on which processes can be reached, from the kernel's tables.
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';

export type Listener = { readonly port: number; readonly isLoopback: boolean };

const LISTENING = '0A';
const LOOPBACK = /^(?:0100007F|00000000000000000000000001000000|0000000000000000FFFF00000100007F)$/;

/** TCP ports on which these processes themselves listen; others may share their network namespace. */
export function listenersOf(pids: readonly number[]): readonly Listener[] {
  const held = new Set(pids.flatMap(socketsOf));
  const [first] = pids;
  if (first === undefined) return [];
  return ['tcp', 'tcp6'].flatMap((table) =>
    readFileSync(`/proc/${first}/net/${table}`, 'utf8')
      .split('\n')
      .slice(1)
      .flatMap((line) => {
        // slot, local, remote, state, queues, timer, retransmits, user, timeout, inode
        const [, local = '', , state, , , , , , inode = ''] = line.trim().split(/\s+/);
        const [address = '', port = ''] = local.split(':');
        if (state !== LISTENING || !held.has(inode)) return [];
        return [{ port: Number.parseInt(port, 16), isLoopback: LOOPBACK.test(address) }];
      }),
  );
}

/** Not connected; a UDP socket without a peer receives from any sender. */
const UNCONNECTED = '07';
const NO_PEER = /:0000$/;

/** UDP ports, likewise. */
export function datagramPortsOf(pids: readonly number[]): readonly number[] {
  const held = new Set(pids.flatMap(socketsOf));
  const [first] = pids;
  if (first === undefined) return [];
  return ['udp', 'udp6'].flatMap((table) =>
    readFileSync(`/proc/${first}/net/${table}`, 'utf8')
      .split('\n')
      .slice(1)
      .flatMap((line) => {
        const [, local = '', remote = '', state, , , , , , inode = ''] = line.trim().split(/\s+/);
        if (state !== UNCONNECTED || !NO_PEER.test(remote) || !held.has(inode)) return [];
        return [Number.parseInt(local.split(':')[1] ?? '', 16)];
      }),
  );
}

/** Inodes of the sockets that a process has open. */
function socketsOf(pid: number): string[] {
  const folder = `/proc/${pid}/fd`;
  return readdirSync(folder).flatMap((name) => {
    try {
      return /^socket:\[(\d+)\]$/.exec(readlinkSync(join(folder, name)))?.[1] ?? [];
    } catch {
      return []; // closed meanwhile
    }
  });
}

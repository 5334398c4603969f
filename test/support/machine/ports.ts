// Ports for programs that cannot choose one by themselves.
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:net';

const LOWEST = 20_000;
/** Services of a cluster have the ports from here on. */
const HIGHEST = 30_000;
const firstEphemeral = Number(readFileSync('/proc/sys/net/ipv4/ip_local_port_range', 'utf8').split(/\s+/)[0]);
const END = firstEphemeral > LOWEST ? Math.min(HIGHEST, firstEphemeral) : HIGHEST;

const isFree = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen(port, '127.0.0.1', () => void once(server.close(), 'close').then(() => resolve(true)));
  });

/**
 * A port of loopback that is free at this moment, and none of those that the kernel gives to sockets which ask for any:
 * of these others may get it before the program has started.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(LOWEST, END);
    if (await isFree(port)) return port;
  }
}

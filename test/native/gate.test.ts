// Compute shares with real processes: the arbiter's process, the interposer's gate, and the simulated driver in real time.
// Shares are told by the node's books: time for which kernels ran.
import { closeSync, openSync, truncateSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { type Arbiter, startArbiter, type Tenant } from '../support/arbiter.ts';
import { type Client, readyClient } from '../support/client.ts';
import { type GrantFiles, MIB, makeGrant } from '../support/grant.ts';
import { eventually, type SimulatedNode, startNode } from '../support/node.ts';

const shareGrant = (t: ExecutionContext, node: SimulatedNode, percent: number): GrantFiles =>
  makeGrant(t, node, [{ card: 0, memoryBytes: 512 * MIB, coresPercent: percent }]);
const ranMs = (node: SimulatedNode, client: Client): number =>
  (node.books().clients.find(({ pid }) => pid === client.pid)?.cards[0]?.smNs ?? 0) / 1e6;
const tenant = (id: string, grant: GrantFiles, percent: number): Tenant => ({ id, grant, cards: [{ card: 0, percent }] });

/** Percent of the card that each had from a moment when all were at work. */
async function sharesOf(node: SimulatedNode, clients: readonly Client[], ms: number): Promise<number[]> {
  await new Promise((resolve) => setTimeout(resolve, 500)); // lengths are being learned
  const from = performance.now();
  const before = clients.map((client) => ranMs(node, client));
  await new Promise((resolve) => setTimeout(resolve, ms));
  const elapsed = performance.now() - from;
  return clients.map((client, index) => (100 * (ranMs(node, client) - (before[index] ?? 0))) / elapsed);
}

test('one tenant alone is held to its share', async (t) => {
  const node = await startNode(t, '--card', 't4');
  const arbiter = startArbiter(t);
  const grant = shareGrant(t, node, 25);
  await arbiter.plan('fixed', [tenant('one', grant, 25)]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const work = client.ask('load async 3000 500');
  const [share = 0] = await sharesOf(node, [client], 2000);
  t.log(share, JSON.stringify(arbiter.told()));
  t.true(Math.abs(share - 25) < 3);
  t.is((await work)[0], 0);
});

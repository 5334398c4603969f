import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { OUT_OF_MEMORY, readyClient } from '../support/client.ts';
import { type GrantFiles, MIB, makeGrant } from '../support/grant.ts';
import { BUILD, environment, type SimulatedNode, startNode } from '../support/node.ts';

type Race = {
  attempts: number;
  granted: number;
  refused: number;
  failed: number;
  wrongBytes: number;
  kills: number;
  started: number;
  longestMs: number;
  lastError: number;
};

/** Size of a storm: less than 1 must be reached where instructions are instrumented; with more it goes on for longer. */
const SHARE = Number(process.env.COTENANT_STORM_SHARE ?? 1);
const LONGER = Math.max(1, SHARE);
const KILLS = 1000 * SHARE;
const REQUESTS = 100_000 * SHARE;

/** Runs the racer inside a grant, as a group of its own in the node's books. */
async function race(
  t: ExecutionContext,
  node: SimulatedNode,
  grant: GrantFiles,
  words: readonly (string | number)[],
): Promise<Race & { peak: number }> {
  // A shell that waits for a word, so that its pid is watched before any process of the race exists.
  const child = spawn('/bin/sh', ['-c', 'read go; exec "$0" "$@"', join(BUILD, 'tests/racer'), ...words.map(String)], {
    env: environment({ LD_LIBRARY_PATH: node.lib }, grant.cuda),
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  t.teardown(() => child.kill('SIGKILL'));
  node.control('watch', String(child.pid));
  let output = '';
  child.stdout.on('data', (part: Buffer) => {
    output += part.toString();
  });
  child.stdin.end('go\n');
  const [code] = await once(child, 'close');
  t.is(code, 0);
  const group = node.books().groups.find((entry) => entry.root === child.pid);
  return { ...(JSON.parse(output) as Race), peak: group?.cards[0]?.peak ?? Number.NaN };
}

test(`32 processes race in ${REQUESTS} requests and never hold a byte over their grant, by the books of the card`, async (t) => {
  t.timeout(120_000 * LONGER);
  const node = await startNode(t, '--card', 'l4');
  const context = node.books().cards[0]?.contextBytes ?? 0;
  const limit = 32 * context + 700 * MIB;
  const grant = makeGrant(t, node, [{ card: 0, memoryBytes: limit }]);
  const result = await race(t, node, grant, [32, 1, 0, 64 * MIB, 1, REQUESTS]);
  t.log(result);
  t.true(result.peak <= limit, `${result.peak} of ${limit}`);
  t.is(result.failed, 0);
  t.is(result.wrongBytes, 0);
  t.true(result.attempts >= REQUESTS);
  t.true(result.granted > 10_000 * SHARE && result.refused > 10_000 * SHARE, 'the race was about something');
  t.is(result.peak, Math.floor(limit / (2 * MIB)) * 2 * MIB, 'and the grant was used to the last granule');
});

test(`after ${KILLS} SIGKILLs nothing is leaked, nothing was over, and nobody waited`, async (t) => {
  t.timeout(180_000 * LONGER);
  const node = await startNode(t, '--card', 'l4');
  const context = node.books().cards[0]?.contextBytes ?? 0;
  // Room for all contexts and then some: whoever starts must not have to wait for room that the living hold.
  const limit = 40 * context + 2048 * MIB;
  const grant = makeGrant(t, node, [{ card: 0, memoryBytes: limit }]);
  const result = await race(t, node, grant, [32, 14 * SHARE, 75, 32 * MIB, 2]);
  t.log(result);
  t.true(result.kills >= KILLS, `${result.kills} kills`);
  t.true(result.longestMs < 500, `the longest request took ${result.longestMs} ms, 32 processes on a few cores`);
  t.true(result.peak <= limit, `${result.peak} of ${limit}`);
  t.is(result.wrongBytes, 0);
  t.true([0, OUT_OF_MEMORY].includes(result.lastError), `the only refusal is for lack of room: ${result.lastError}`);
  t.is(node.books().cards[0]?.usedBytes, 0, 'the card is empty');
  // All of the grant is there for the next one, at its first request.
  const client = await readyClient(t, node, { preload: grant.cuda });
  t.is((await client.ask(`alloc ${limit - context}`))[0], 0);
});

test('every worker that a SIGKILL storm restarts gets its context', async (t) => {
  t.timeout(120_000 * LONGER);
  const node = await startNode(t, '--card', 'l4');
  const context = node.books().cards[0]?.contextBytes ?? 0;
  // Eight live at a time with at most 64 MiB each, so whatever is refused is refused for memory of the dead.
  const grant = makeGrant(t, node, [{ card: 0, memoryBytes: 9 * context + 9 * 66 * MIB }]);
  const result = await race(t, node, grant, [8, 6 * SHARE, 60, MIB, 3]);
  t.log(result);
  t.is(result.failed, 0, `last error ${result.lastError}`);
  t.is(result.refused, 0);
  t.true(result.kills > 300 * SHARE);
});

test('three grants that sum to the card are all filled to the last granule at once, contexts included', async (t) => {
  const node = await startNode(t, '--card', 't4');
  const granule = node.books().cards[0]?.granuleBytes ?? 0;
  const usable = node.usable(0);
  t.is(usable % granule, 0);
  const sizes = [4001, 6007].map((granules) => (granules * granule) / 1);
  const all = [...sizes.map((bytes) => Math.floor(bytes / 3 / granule) * granule)];
  const grants = [...all, usable - all.reduce((sum, bytes) => sum + bytes, 0)];
  t.is(
    grants.reduce((sum, bytes) => sum + bytes, 0),
    usable,
  );
  const held: number[] = [];
  for (const memoryBytes of grants) {
    const grant = makeGrant(t, node, [{ card: 0, memoryBytes }]);
    const client = await readyClient(t, node, { preload: grant.cuda });
    const [result] = await client.ask(`fill-all ${granule}`);
    t.is(result, OUT_OF_MEMORY);
    t.deepEqual((await client.ask('info'))[1], 0);
    held.push(node.books().clients.find((entry) => entry.pid === client.pid)?.cards[0]?.bytes ?? 0);
  }
  t.deepEqual(held, grants);
  t.is(node.books().cards[0]?.usedBytes, usable, 'not a byte of the card is left');
});

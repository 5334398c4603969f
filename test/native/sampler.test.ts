import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import test from 'ava';
import { readyClient } from '../support/client.ts';
import { MIB } from '../support/grant.ts';
import { BUILD, environment, startNode } from '../support/node.ts';

type Sample = {
  round: number;
  cards: { healthy: boolean }[];
  processes: { pid: number; gone?: boolean; cards: { listed: boolean; bytes?: number }[] }[];
};

test('a sampler follows processes that come and go and a card that is lost and found, whatever it is told besides', async (t) => {
  const node = await startNode(t, '--card', 't4', '--card', 't4');
  const words = ['--interval-ms', '50', '--library', join(node.lib, 'libnvidia-ml.so.1')];
  const child = spawn(join(BUILD, 'cotenant-sampler'), words, {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: environment({}),
  });
  t.teardown(() => child.kill('SIGKILL'));
  const ended = once(child, 'exit');
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  let rounds = 0;
  /** The first sample from now on that looks so; every sample on the way is one whole line of JSON. */
  const until = async (looks: (sample: Sample) => boolean, what: string): Promise<Sample> => {
    for (const deadline = Date.now() + 30_000; Date.now() < deadline; ) {
      const { value, done } = await lines.next();
      if (done) throw new Error(`the sampler ended before ${what}`);
      const sample = JSON.parse(String(value)) as Sample;
      t.is(sample.cards.length, 2);
      t.true(sample.round > rounds, 'rounds are counted');
      rounds = sample.round;
      if (looks(sample)) return sample;
    }
    throw new Error(`not within 30 s: ${what}`);
  };
  const listed = (sample: Sample, pid: number) =>
    sample.processes.find((process) => process.pid === pid)?.cards.find((card) => card.listed);
  const context = node.books().cards[0]?.contextBytes ?? 0;
  for (let turn = 0; turn < 5; turn++) {
    const client = await readyClient(t, node);
    await client.must(`alloc ${(turn + 1) * 2 * MIB}`);
    const bytes = context + (turn + 1) * 2 * MIB;
    await until((sample) => listed(sample, client.pid)?.bytes === bytes, `process ${turn} with what it holds`);
    await client.kill();
    await until((sample) => !listed(sample, client.pid), `process ${turn} is no longer listed`);
    await until((sample) => !sample.processes.some(({ pid }) => pid === client.pid), `process ${turn} is forgotten`);
  }
  const healthy = (sample: Sample) => sample.cards.map((card) => card.healthy);
  node.control('lose', '1');
  t.deepEqual(healthy(await until((sample) => !healthy(sample)[1], 'the card is lost')), [true, false]);
  node.control('find', '1');
  await until((sample) => healthy(sample).every(Boolean), 'the card is back');
  child.stdin.write(
    `interval\ninterval 0\ninterval 99999999999999999999\n\0\0\n${'x'.repeat(100_000)}\n\ninterval 60\n`,
  );
  const before = rounds;
  await until((sample) => sample.round > before + 3, 'it goes on');
  child.stdin.write('stop\n');
  t.deepEqual(await ended, [0, null]);
});

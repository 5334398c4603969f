// Streams, barriers and captures of the simulated driver, by the rules of NVIDIA's documents that
// docs/develop/simulator.md names. The program is test/native/programs/scripted/streams.c.
import test from 'ava';
import { startNode } from '../../support/native/node.ts';
import { streams } from '../../support/native/streams.ts';

/** The result of the call, and that of the capture's end. */
const RULES: Readonly<Record<string, readonly [call: number, end: number]>> = {
  nothing: [0, 0],
  'launch a graph': [900, 901], // not documented: the result is what driver 580.159.04 answered on an H100
  'query the stream': [900, 901],
  'wait for the stream': [900, 901],
  'wait for the context': [900, 901],
  'query a captured event': [907, 901],
  'wait for an event of before': [905, 901],
  'wait for it as external': [0, 0],
  'legacy beside non-blocking': [0, 0],
  'legacy beside blocking': [906, 901],
  'event on legacy beside blocking': [906, 901],
  'is legacy capturing beside blocking': [906, 0],
  'copy beside blocking': [906, 901],
  'own stream beside blocking': [0, 0],
  'own stream': [0, 0],
  'query another event, global': [900, 901],
  'query another event, relaxed': [0, 0],
  'allocate, global': [900, 901],
  'allocate, global, by a relaxed thread': [0, 0],
};

test('captures forbid what NVIDIA documents, with its error codes', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const { 'capture legacy': legacy, ...rules } = await streams<Record<string, unknown>>(t, node, ['rules']).result;
  t.deepEqual(rules, RULES);
  t.not(legacy, 0);
});

test('a kernel that waits for one of another stream ends when that one starts', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const { ms } = await streams<{ ms: number }>(t, node, ['many', '30']).result;
  t.true(ms < 1000, `${ms} ms`);
});

test('kernels of processes on two GPUs wait for one another', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--gpu', 't4');
  const ranks = [0, 1].map((gpu) => streams<{ collectives: number }>(t, node, ['ranks', '7', '2', '500'], { gpu }));
  for (const { result } of ranks) t.true((await result).collectives > 10);
});

test('blocking streams run side by side as long as the default stream has no work', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const { ms } = await streams<{ ms: number }>(t, node, ['overlap', '4']).result; // else it does not end
  t.true(ms >= 4 * 2, `${ms} ms`);
});

test('a capture of a stream that has work succeeds', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  for (const words of [
    ['capture', '5', '1'],
    ['capture-other', '5', '0'],
    ['join', '5'],
  ]) {
    t.deepEqual(await streams(t, node, words).result, { failed: 0, end: 0 }, words.join(' '));
  }
});

// CUDA Driver API, cuMemFree: it may synchronize. cuMemFreeHost: not documented, an assumption of docs/develop/simulator.md.
test('memory is freed after work that was to use it', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  t.deepEqual(await streams(t, node, ['frees']).result, { device: 0, host: 0 });
});

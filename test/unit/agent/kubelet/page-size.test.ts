import { execFileSync } from 'node:child_process';
import test from 'ava';
import { memoryPageBytes, pageBytesIn } from '../../../../src/agent/kubelet/csi/page-size.ts';

const vector = (...words: number[]) => Buffer.from(BigUint64Array.from(words.map(BigInt)).buffer);

test('the page size is the one that the kernel reports', (t) => {
  t.is(pageBytesIn(vector(33, 6, 6, 65536, 6, 1, 0, 0)), 65536);
  t.is(pageBytesIn(vector(33, 6, 3, 4096)), undefined);
  t.is(pageBytesIn(vector(33, 6, 6, 4096).subarray(0, 24)), undefined, 'cut short');
  t.is(memoryPageBytes(), Number(execFileSync('getconf', ['PAGESIZE'], { encoding: 'utf8' })));
});

// Xids counted from sample to sample: from zero where the driver tells of them, bounded in kinds, whatever comes.
import test from 'ava';
import { CONTAINED_XIDS, countXids, RESETTING_XIDS, type XidTotal } from '../../../../src/agent/counters/xid-counts.ts';
import type { Sample, SampledGpu, SampledXid } from '../../../../src/agent/sampling/sample.ts';
import { readPage } from '../../../support/docs.ts';

const gpu = (index: number, reportsXids: boolean): SampledGpu => ({
  index,
  uuid: `GPU-${index}`,
  name: '',
  pciBusId: '',
  processLists: [],
  utilizationGaps: 0,
  healthy: true,
  reportsXids,
});
const sample = (xids: readonly SampledXid[], gpus = [gpu(0, true), gpu(1, false)]): Sample => ({
  round: 1,
  atMs: 0,
  bootNs: 0,
  driverVersion: '',
  cudaVersion: 0,
  gpus,
  processes: [],
  xids,
  errors: [],
  tookUs: 0,
});
const raised = (xid: number, count: number, atMs: number, on = 0): SampledXid => ({ gpu: on, xid, count, atMs });
const of = (totals: readonly XidTotal[], gpuUuid: string, xid: string) => {
  const found = totals.find((total) => total.gpuUuid === gpuUuid && total.xid === xid);
  return found && [found.count, found.lastMs];
};

test('metrics with alerts are 0 on GPUs that the driver reports, absent on others', (t) => {
  const totals = countXids([], sample([]));
  t.deepEqual(
    totals.map(({ gpuUuid, xid, count, lastMs }) => [gpuUuid, xid, count, lastMs]),
    [...RESETTING_XIDS, ...CONTAINED_XIDS].map((code) => ['GPU-0', String(code), 0, undefined]),
  );
});

test('counts grow, the time is that of the newest, and both outlive the GPU', (t) => {
  let totals = countXids([], sample([raised(79, 1, 5000), raised(13, 3, 4000), raised(31, 1, 100, 1)]));
  t.deepEqual(of(totals, 'GPU-0', '79'), [1, 5000]);
  t.deepEqual(of(totals, 'GPU-0', '13'), [3, 4000]);
  t.deepEqual(of(totals, 'GPU-1', '31'), [1, 100]);
  totals = countXids(totals, sample([raised(13, 2, 3000)]));
  t.deepEqual(of(totals, 'GPU-0', '13'), [5, 4000], 'a clock that was set back');
  totals = countXids(totals, sample([raised(13, 1, 9000, 7)], []));
  t.deepEqual(of(totals, 'GPU-0', '13'), [5, 4000], 'of no GPU that is known');
});

test('Xid codes beyond the limit are counted together, for each GPU separately', (t) => {
  const many = Array.from({ length: 300 }, (_, code) => raised(1000 + code, 1, code));
  let totals = countXids([], sample([...many, raised(79, 1, 1)]));
  for (let turn = 0; turn < 3; turn++) totals = countXids(totals, sample([...many, raised(2000, 1, 1, 1)]));
  const kinds = totals.filter(({ gpuUuid }) => gpuUuid === 'GPU-0');
  t.is(kinds.length, 49);
  t.is(
    kinds.reduce((sum, { count }) => sum + count, 0),
    4 * 300 + 1,
  );
  t.deepEqual(of(totals, 'GPU-0', '79'), [1, 1], 'those that alerts are about keep their own');
  t.deepEqual(of(totals, 'GPU-1', '2000'), [3, 1]);
});

test('the page on faults names the Xids with alerts, each where it is counted', (t) => {
  const [, resets = '', stays = ''] =
    /## Faults that reset([\s\S]*)## Faults that stay([\s\S]*)## Where/.exec(readPage('docs/operate/faults.md')) ?? [];
  const rows = (text: string) =>
    [...text.matchAll(/^\| ([\d, ]+) \|/gm)].flatMap(([, cell = '']) => cell.split(', ').map(Number));
  const inOrder = (codes: readonly number[]) => codes.toSorted((a, b) => a - b);
  t.deepEqual(inOrder(rows(resets)), inOrder(RESETTING_XIDS));
  for (const code of CONTAINED_XIDS) t.true(rows(stays).includes(code), String(code));
  for (const code of RESETTING_XIDS) t.false(rows(stays).includes(code), String(code));
});

// Which Xids take a GPU from those who come next, and what proves that it was reset.
import test from 'ava';
import { RESETTING_XIDS } from '../../../src/agent/counters/xid-counts.ts';
import {
  type DriverReport,
  faultText,
  type GpuFault,
  healthState,
  parseXidList,
  UNHEALTHY_XIDS,
  updateFaults,
} from '../../../src/policy/gpu-health.ts';

const AT = Date.parse('2026-11-22T16:20:00Z');
const reportOf = (more: Partial<DriverReport> = {}, gpu: Partial<DriverReport['gpus'][number]> = {}): DriverReport => ({
  bootId: 'boot-1',
  driverVersion: '580.1',
  gpus: [{ uuid: 'GPU-0', healthy: true, energyMillijoules: 5000, eccUncorrectedVolatile: 2, ...gpu }],
  raised: [],
  ...more,
});
const raised = (...xids: readonly number[]) => xids.map((xid) => ({ gpuUuid: 'GPU-0', xid, atMs: AT }));
const of = (before: readonly GpuFault[], now: DriverReport, xids = UNHEALTHY_XIDS) => updateFaults(before, now, xids);
const after = (xid: number, gpu: Partial<DriverReport['gpus'][number]> = {}) =>
  of([], reportOf({ raised: raised(xid) }, gpu)).faults;

test('an Xid that requires a reset makes a GPU unhealthy; one by a program does not', (t) => {
  for (const xid of [48, 62, 64, 74, 79, 95, 119, 120, 140, 143])
    t.deepEqual(
      after(xid).map((fault) => [fault.gpuUuid, fault.xid, fault.atMs]),
      [['GPU-0', xid, AT]],
      String(xid),
    );
  for (const xid of [13, 31, 32, 43, 45, 46, 63, 68, 69, 92, 94, 109, 999]) t.deepEqual(after(xid), [], String(xid));
  // All of them are among those that alert.
  t.deepEqual(
    RESETTING_XIDS.filter((xid) => !UNHEALTHY_XIDS.includes(xid)),
    [46, 109],
  );
  t.true(UNHEALTHY_XIDS.every((xid) => RESETTING_XIDS.includes(xid)));
});

test('the first Xid stays the reason, and an unknown GPU gets none', (t) => {
  const [fault] = of(after(119), reportOf({ raised: raised(79) })).faults;
  t.is(fault?.xid, 119);
  t.is(fault && faultText(fault), 'Xid 119 at 2026-11-22T16:20:00.000Z, and no reset since');
  t.deepEqual(of([], reportOf({ raised: [{ gpuUuid: 'GPU-9', xid: 79, atMs: AT }] })).faults, []);
});

test('a fault stays over samples that prove no reset', (t) => {
  let faults = after(79);
  for (const now of [
    reportOf(),
    reportOf({}, { energyMillijoules: 9000 }),
    reportOf({ gpus: [] }),
    reportOf({ gpus: [], driverVersion: '590.1' }),
    reportOf({ gpus: [{ uuid: 'GPU-0', healthy: true }] }),
    reportOf({ bootId: '' }, { energyMillijoules: 9000 }),
  ]) {
    const next = of(faults, now);
    t.deepEqual(next.ended, []);
    t.is(next.faults.length, 1);
    faults = next.faults;
  }
});

test('each proof of a reset ends the fault and is named', (t) => {
  const lost = of(after(79), reportOf({}, { healthy: false })).faults;
  t.true(lost[0]?.lost);
  const cases: readonly (readonly [readonly GpuFault[], DriverReport, RegExp])[] = [
    [after(79), reportOf({ bootId: 'boot-2' }), /machine/],
    [after(79), reportOf({ bootId: 'boot-2', gpus: [] }), /machine/],
    [lost, reportOf(), /had lost it/],
    [after(79), reportOf({ driverVersion: '590.1' }), /another driver/],
    [after(79), reportOf({}, { energyMillijoules: 12 }), /energy/],
    [after(48), reportOf({}, { eccUncorrectedVolatile: 0 }), /uncorrected/],
  ];
  for (const [before, now, why] of cases) {
    const { faults, ended } = of(before, now);
    t.deepEqual(faults, [], String(why));
    t.regex(ended[0]?.why ?? '', why);
  }
  // What grew since is what it is compared with.
  const grown = of(after(79), reportOf({}, { energyMillijoules: 9000 })).faults;
  t.is(of(grown, reportOf({}, { energyMillijoules: 8000 })).ended.length, 1);
});

test('a GPU that is still lost was not reset; one that fails again gets a new fault', (t) => {
  t.is(of(after(79), reportOf({ driverVersion: '590.1' }, { healthy: false, energyMillijoules: 1 })).ended.length, 0);
  const again = of(after(79), reportOf({ raised: raised(64) }, { energyMillijoules: 1 }));
  t.is(again.ended.length, 1);
  t.deepEqual(
    again.faults.map(({ xid }) => xid),
    [64],
  );
});

test("the list of Xids can be changed, but not to include Xids of a tenant's program", (t) => {
  const list = (text: string) => {
    const parsed = parseXidList(text);
    return parsed.ok ? parsed.value.toSorted((a, b) => a - b) : parsed.error;
  };
  t.deepEqual(list('default'), [...UNHEALTHY_XIDS]);
  t.deepEqual(
    list(' default, 46 , -74'),
    [46, ...UNHEALTHY_XIDS].filter((xid) => xid !== 74),
  );
  t.deepEqual(list('-74,default'), list('default,-74'));
  t.deepEqual([list(''), list('79')], [[], [79]]);
  for (const text of ['31', 'default,94', '79;48', 'all', '1e3', Array(65).fill('79').join(',')])
    t.false(parseXidList(text).ok, text);
  // What no longer counts is forgotten.
  t.is(of(after(79), reportOf(), []).ended.length, 1);
});

test('the condition names each GPU with its reason, and is absent without GPUs', (t) => {
  t.is(healthState([]), undefined);
  t.like(healthState([{ gpuUuid: 'GPU-0', why: undefined }]), { status: 'True', reason: 'GpusHealthy' });
  const [a, b] = [
    { gpuUuid: 'GPU-0', why: 'one' },
    { gpuUuid: 'GPU-1', why: 'two' },
  ];
  t.like(healthState([a, { gpuUuid: 'GPU-2', why: undefined }, b]), {
    status: 'False',
    reason: 'GpuUnhealthy',
    message: 'GPU-0: one; GPU-1: two',
  });
});

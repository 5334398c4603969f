// Whose compute is judged: by policy, by what the arbiter says, and by what the driver tells of the GPU.
import test from 'ava';
import { hardLimitOf } from '../../../src/agent/compute/gpu-policy.ts';
import { accumulate } from '../../../src/agent/counters/accumulate.ts';
import { NO_TOTALS } from '../../../src/agent/counters/totals.ts';
import type { Grant } from '../../../src/agent/grants/grant.ts';
import { type ComputeWatches, judgeCompute, NO_WATCHES } from '../../../src/agent/judge-compute.ts';
import type { SampledGpu } from '../../../src/agent/sampling/sample.ts';
import type { ComputePolicy } from '../../../src/api/request.ts';
import { compared, gpu, grantOf, ofGrant, owners, reading, sampledProcess, sampleOf, use } from './node.ts';

type Asked = { readonly cores?: number; readonly limit?: number; readonly high?: boolean };
const HARD: readonly [ComputePolicy, Asked, highCap: number, expected: number | undefined][] = [
  ['fixed', { cores: 25 }, 100, 0.25],
  ['fixed', { cores: 25, limit: 50 }, 100, 0.5],
  ['fixed', { cores: 25, limit: 10 }, 100, 0.25],
  ['fixed', { limit: 50 }, 100, 0.5],
  ['fixed', {}, 100, undefined],
  ['fixed', { cores: 100 }, 100, undefined],
  ['soft', { cores: 25 }, 100, undefined],
  ['soft', { cores: 25, limit: 50 }, 100, 0.5],
  ['native', { cores: 25, limit: 50 }, 100, undefined],
  ['average', { cores: 25 }, 100, undefined],
  ['preemptive', { cores: 25 }, 100, undefined],
  ['weighted', { cores: 25, limit: 50 }, 100, undefined],
  ['fixed', { cores: 25, high: true }, 100, undefined],
  ['soft', { cores: 25, high: true }, 70, 0.7],
  ['native', { high: true }, 70, undefined],
];
for (const [policy, { cores = 0, limit, high = false }, highCap, expected] of HARD) {
  const asked = `${cores} % of at most ${limit ?? '-'} %${high ? `, with high priority up to ${highCap} %` : ''}`;
  test(`${policy}, ${asked}: ${expected === undefined ? 'no hard limit' : expected}`, (t) => {
    const share = { coresPercent: cores, ...(limit !== undefined && { coresLimitPercent: limit }) };
    t.is(hardLimitOf(policy, high ? { compute: { priority: 'high' } } : {}, share, highCap), expected);
  });
}

type Case = {
  readonly gpu?: Partial<SampledGpu>;
  readonly grant?: Partial<Grant>;
  readonly policy?: ComputePolicy;
  /** undefined: the arbiter does not hold it. */
  readonly heldTo?: number | undefined;
  readonly types?: number;
  /** What a process of the host's, or of another container with a grant, is in the driver's lists. */
  readonly beside?: number;
  readonly besideIsGranted?: boolean;
  /** Second in which the driver does not tell what is used. */
  readonly silentAt?: number;
  /** Second in which the time of day is set nine seconds ahead. */
  readonly setAheadAt?: number;
};

type Judged = { readonly severity: string; readonly isMixed: boolean };

/** Verdict on a container of 25 % that has all of the GPU for so many seconds. */
function judgedAfter(seconds: number, given: Case): Judged {
  const { gpu: about = {}, grant = {}, policy = 'fixed', types = 1, beside, besideIsGranted = false, ...more } = given;
  const heldTo = 'heldTo' in more ? more.heldTo : 0.25;
  const own = grantOf('a', 1000, [0], grant);
  const granted = { ...own, gpus: own.gpus.map((one) => ({ ...one, coresPercent: 25 })) };
  let [watched, totals]: [ComputeWatches, typeof NO_TOTALS] = [NO_WATCHES, NO_TOTALS];
  let [severity, isMixed] = ['', false];
  for (let second = 0; second <= seconds; second++) {
    const uses = [use(0, { smUs: second * 1e6, bytes: 1, types })];
    const other = beside === undefined ? [] : [sampledProcess(8, [use(0, { bytes: 1, types: beside })])];
    const on = gpu(0, { ...about, ...(second === more.silentAt && { hasProcessUtilization: false }) });
    const aheadMs = second >= (more.setAheadAt ?? Number.POSITIVE_INFINITY) ? 9000 : 0;
    const atMs = 1e12 + second * 1000;
    const sample = sampleOf([on], [sampledProcess(7, uses), ...other], atMs + aheadMs, atMs * 1e6);
    const byPid = { 7: ofGrant('a'), ...(besideIsGranted && { 8: ofGrant('b') }) };
    const readings = [granted, ...(besideIsGranted ? [grantOf('b', 1000)] : [])].map((one) => reading(one));
    const state = compared(sample, readings, byPid);
    totals = accumulate(totals, state, owners(byPid));
    const counts = { chargedSeconds: 0, contendedSeconds: 0, throttledSeconds: 0, relieved: 0, overruns: 0, faults: 0 };
    const held = heldTo === undefined ? undefined : { ...counts, guaranteeRatio: heldTo, limitRatio: heldTo };
    const judged = judgeCompute(watched, state, {
      totals,
      stateOf: () => ({ policy, use: held }),
      highCapPercent: 100,
      isGateClosed: () => false,
      windowSeconds: 60,
      isUsedOutside: () => beside !== undefined && !besideIsGranted,
    });
    watched = judged.watched;
    const [first] = judged.state.containers;
    severity = first?.verdict.severity ?? '';
    isMixed = first?.undecidableGpus?.includes('GPU-0') ?? false;
  }
  return { severity, isMixed };
}

const after = (seconds: number, given: Case): string => judgedAfter(seconds, given).severity;

test('a share that is a hard limit is judged, unless its evidence is not firm', (t) => {
  t.is(after(61, {}), 'soft');
  t.is(after(61, { grant: { isolateMemory: false } }), 'soft');
  t.is(after(50, {}), 'within');
  const not: Readonly<Record<string, Case>> = {
    'a policy that lends': { policy: 'soft', heldTo: 1 },
    'parts by who is there': { policy: 'preemptive' },
    'nothing holds it': { policy: 'native' },
    'the arbiter does not hold it': { heldTo: undefined },
    'the arbiter holds it to another share for now': { heldTo: 0.5 },
    'the GPU is lost': { gpu: { healthy: false } },
    'the driver does not say who is on it': { gpu: { processLists: ['graphics'] } },
    'a client of MPS among others': { types: 4, beside: 4 },
    'the driver does not say what they use': { gpu: { hasProcessUtilization: false } },
  };
  for (const [what, given] of Object.entries(not)) t.is(after(100, given), 'within', what);
  // What was used meanwhile is reported at once later: a window with that in it proves nothing.
  t.is(after(61, { silentAt: 30 }), 'within');
  t.is(after(92, { silentAt: 30 }), 'soft');
  // Nor is the time of day a measure of it, which people set.
  t.is(after(55, { setAheadAt: 20 }), 'within');
  t.is(after(61, { setAheadAt: 20 }), 'soft');
});

const [COMPUTE, MPS] = [1, 4];
const SERVERS: readonly [string, types: number, beside: number | undefined, Judged, besideIsGranted?: true][] = [
  ['no client of MPS', COMPUTE, undefined, { severity: 'soft', isMixed: false }],
  ['another process is a client', COMPUTE, MPS, { severity: 'soft', isMixed: false }],
  ['it alone is a client', MPS, undefined, { severity: 'soft', isMixed: false }],
  ['it alone is a client, beside another program', MPS, COMPUTE, { severity: 'soft', isMixed: false }],
  ['it and a process without a grant are clients', MPS, MPS, { severity: 'within', isMixed: true }],
  ['it and another container are clients, of servers in them', MPS, MPS, { severity: 'soft', isMixed: false }, true],
];
for (const [what, types, beside, expected, besideIsGranted = false] of SERVERS) {
  test(`MPS: ${what}: ${expected.isMixed ? 'undecidable' : 'judged'}`, (t) => {
    t.deepEqual(judgedAfter(61, { types, besideIsGranted, ...(beside !== undefined && { beside }) }), expected);
  });
}

test('a share that is no hard limit is not reported as undecidable', (t) => {
  t.deepEqual(judgedAfter(61, { types: MPS, beside: MPS, policy: 'soft', heldTo: 1 }), {
    severity: 'within',
    isMixed: false,
  });
});

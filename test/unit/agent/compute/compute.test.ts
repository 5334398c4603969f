// Which policy holds for which container, what operators change of it, what the arbiter gets, and what follows from its
// reports.
import test from 'ava';
import { changeOf } from '../../../../src/agent/allocation/process-grants.ts';
import { type Planned, planLines } from '../../../../src/agent/compute/arbiter-plan.ts';
import {
  type ComputeGrant,
  leasedGrants,
  type PolicyChoices,
  policiesOf,
  policyOfGpu,
} from '../../../../src/agent/compute/gpu-policy.ts';
import { readOverrides } from '../../../../src/agent/compute/pod-annotations.ts';
import { COMPUTE_FORMAT, type NodeCompute } from '../../../../src/agent/compute/policy-file.ts';
import {
  type ArbiterReport,
  advanceAccount,
  NO_ACCOUNT,
  parseReport,
  useKey,
  withNewArbiter,
} from '../../../../src/agent/compute/usage-account.ts';
import type { Grant } from '../../../../src/agent/grants/grant.ts';
import { addComputeChange, applyComputeChange, parseComputeChanges } from '../../../../src/api/compute-annotation.ts';
import { formatPodGrant } from '../../../../src/api/grant-annotation.ts';
import type { ComputePolicy } from '../../../../src/api/request.ts';
import { err, ok } from '../../../../src/common/result.ts';
import { formatState, parseState } from '../../../../src/common/state-file.ts';

const gpu = (gpuUuid: string, coresPercent: number) => ({
  gpuUuid,
  memoryBytes: 1,
  limitBytes: 1,
  coresPercent,
});
const grants: Readonly<Record<string, ComputeGrant>> = {
  quarter: { id: 'quarter', gpus: [gpu('A', 25)] },
  silent: { id: 'silent', gpus: [gpu('A', 0)] },
  both: { id: 'both', gpus: [gpu('A', 0), gpu('B', 0)] },
  apart: { id: 'apart', gpus: [gpu('C', 0)] },
  capped: { id: 'capped', gpus: [gpu('A', 10)], compute: { policy: 'fixed' } },
  free: { id: 'free', gpus: [gpu('A', 10)], compute: { policy: 'native' } },
  high: { id: 'high', gpus: [gpu('A', 0)], compute: { priority: 'high', weight: 7 } },
};
const named = (...names: readonly string[]) => names.flatMap((name) => grants[name] ?? []);

/** The node's policy, who is there, and what holds for each of its GPUs. */
const CASES: readonly [ComputePolicy, Readonly<Record<string, readonly ComputePolicy[]>>][] = [
  ['native', { quarter: ['native'], silent: ['native'] }],
  ['fixed', { silent: ['native'], apart: ['native'] }],
  ['fixed', { quarter: ['fixed'], silent: ['fixed'], both: ['fixed', 'native'], apart: ['native'] }],
  ['soft', { quarter: ['soft'], apart: ['native'] }],
  ['weighted', { silent: ['weighted'], apart: ['weighted'] }],
  ['average', { apart: ['average'] }],
  ['preemptive', {}],
  ['native', { quarter: ['native'], capped: ['fixed'] }],
  ['soft', { quarter: ['soft'], capped: ['fixed'], free: ['native'] }],
  ['native', { quarter: ['soft'], free: ['native'], high: ['soft'], apart: ['native'] }],
  ['fixed', { silent: ['fixed'], high: ['fixed'] }],
];
for (const [policy, held] of CASES) {
  test(`node policy ${policy}, grants with one of their own: ${Object.keys(held).join(', ') || 'none'}`, (t) => {
    const there = named(...Object.keys(held));
    t.deepEqual(Object.fromEntries(policiesOf(() => policy, there)), held);
    t.deepEqual(
      [...leasedGrants(() => policy, there)],
      Object.keys(held).filter((name) => held[name]?.some((one) => one !== 'native')),
    );
  });
}

test('the most specific policy of a GPU counts; without it the next one does', (t) => {
  const all: PolicyChoices = {
    configured: 'average',
    label: 'preemptive',
    set: 'weighted',
    configuredOfGpus: { A: 'fixed' },
    setOfGpus: { A: 'soft' },
  };
  t.deepEqual(policyOfGpu(all, 'A'), { policy: 'soft', source: 'set' });
  t.deepEqual(policyOfGpu({ ...all, setOfGpus: {} }, 'A'), { policy: 'fixed', source: 'configuration' });
  t.deepEqual(policyOfGpu(all, 'B'), { policy: 'weighted', source: 'set' });
  t.deepEqual(policyOfGpu({ ...all, set: undefined }, 'B'), { policy: 'preemptive', source: 'label' });
  t.deepEqual(policyOfGpu({ ...all, set: undefined, label: undefined }, 'B'), {
    policy: 'average',
    source: 'configuration',
  });
});

test('the arbiter gets policy, limit, weight and priority of each GPU of a grant', (t) => {
  const entry = (grant: ComputeGrant | undefined, leased: boolean, ledgerTurn = 0): Planned => ({
    grant: grant ?? { id: '', gpus: [] },
    leased,
    ledgerPath: `/grants/${grant?.id}/ledger`,
    ledgerTurn,
  });
  const lent = { id: 'lent', gpus: [{ ...gpu('A', 20), coresLimitPercent: 60 }] };
  const entries = [
    entry(grants.quarter, true),
    entry(grants.both, true, 2),
    entry(grants.apart, false),
    entry(grants.high, true),
    entry(lent, true),
  ];
  const terms = { policyOf: () => 'fixed' as const, instances: 50, highCapPercent: 90 };
  t.deepEqual(
    planLines(terms, 1024, entries, (gpuUuid) => gpuUuid.charCodeAt(0) - 65),
    [
      'gpu 0 50',
      'gpu 1 50',
      'page quarter.0 1024 1 /grants/quarter/ledger',
      'on 0 3 250000 0 25 0 900000',
      'page both.2 1024 2 /grants/both/ledger',
      'on 0 3 0 0 0 0 900000',
      'on 1 5 0 0 0 0 900000',
      'page high.0 1024 1 /grants/high/ledger',
      'on 0 3 0 0 7 1 900000',
      'page lent.0 1024 1 /grants/lent/ledger',
      'on 0 3 200000 600000 20 0 900000',
    ],
  );
});

test('a change keeps what it does not name, and null removes a choice', (t) => {
  const before = {
    gpus: [{ ...gpu('A', 20), coresLimitPercent: 60 }],
    compute: { policy: 'soft' as const, weight: 3 },
  };
  t.deepEqual(applyComputeChange(before, { priority: 'high', weight: 5 }), {
    ok: true,
    value: { gpus: before.gpus, compute: { policy: 'soft', priority: 'high', weight: 5 } },
  });
  t.deepEqual(applyComputeChange(before, { policy: null, weight: null, coresLimitPercent: null, coresPercent: 70 }), {
    ok: true,
    value: { gpus: [gpu('A', 70)], compute: {} },
  });
  t.deepEqual(applyComputeChange(before, { coresPercent: 70 }), {
    ok: false,
    error: 'coresLimitPercent: 60 is below the share; write 70 to 100, or null',
  });
  t.deepEqual(applyComputeChange({ gpus: [gpu('A', 0)] }, { coresLimitPercent: 50 }), {
    ok: false,
    error: 'coresLimitPercent: 50 without a share; set coresPercent too, or write null',
  });
});

const WRONG: readonly [string, string][] = [
  ['{', 'it is not JSON'],
  ['[]', 'a list of 0 is not an object'],
  ['{"main":3}', 'main: 3 is not an object of policy, priority, weight, coresPercent, coresLimitPercent'],
  ['{"main":{"policy":"6"}}', 'main.policy: "6" is not one of average, preemptive, weighted, fixed, soft, native'],
  ['{"main":{"weight":0}}', 'main.weight: 0 is not a whole number from 1 to 1000'],
  [
    '{"main":{"share":1}}',
    'main.share: is not a known key, expected one of policy, priority, weight, coresPercent, coresLimitPercent',
  ],
  ['{"Main":{}}', 'Main: "Main" is not a container name'],
];
for (const [text, error] of WRONG) {
  test(`the compute annotation ${text} is refused`, (t) => {
    t.deepEqual(parseComputeChanges(text), { ok: false, error });
  });
}

test("a pod's annotation collects successive changes and accepts policy numbers", (t) => {
  const first = addComputeChange(undefined, ['b', 'a'], { policy: 'soft', weight: 2 });
  t.is(first, '{"a":{"policy":"soft","weight":2},"b":{"policy":"soft","weight":2}}');
  t.is(
    addComputeChange(first, ['a'], { weight: null }),
    '{"a":{"policy":"soft","weight":null},"b":{"policy":"soft","weight":2}}',
  );
  t.deepEqual(parseComputeChanges('{"a":{"policy":"4"}}'), { ok: true, value: new Map([['a', { policy: 'soft' }]]) });
});

const podUid = '11111111-2222-3333-4444-555555555555';
const GPU = 'GPU-51a0c07e-4a27-4551-8d21-6e1004000000';
const podGpu = { gpuUuid: GPU, memoryBytes: 2 ** 30, limitBytes: 2 ** 30, coresPercent: 20 };
const podGrant = (more: Partial<Grant> = {}): Grant => ({
  id: 'abc123',
  namespace: 'team',
  pod: 'one',
  container: 'main',
  createdMs: 1,
  gpus: [podGpu],
  isolateMemory: true,
  compute: { policy: 'fixed' },
  owner: { podUid, target: '/a', kind: 'app' },
  ...more,
});
const annotated = (compute?: string) => ({
  'cotenant.io/request':
    '{"version":1,"priority":"normal","computePolicy":"fixed","containers":[{"name":"main","kind":"app","dialect":"cotenant","asked":{},"memoryIsolation":"on","gpus":[{"memory":{"kind":"bytes","bytes":1073741824},"coresPercent":20,"coresLimitPercent":50}]}]}',
  'cotenant.io/grant': formatPodGrant({
    epoch: 1,
    containers: [{ name: 'main', kind: 'app', memoryIsolation: 'on', gpus: [podGpu] }],
  }),
  ...(compute !== undefined && { 'cotenant.io/compute': compute }),
});

test("an operator's change takes precedence over the pod's choice until it is removed", (t) => {
  const text = '{"main":{"policy":"soft","coresPercent":40,"coresLimitPercent":null}}';
  const expected = {
    id: 'abc123',
    gpus: [{ ...podGpu, coresPercent: 40 }],
    compute: { policy: 'soft' },
    computeOverride: text,
  };
  t.deepEqual(readOverrides(podUid, annotated(text), [podGrant()]) as unknown, ok([expected]));
  const now = podGrant({
    gpus: [{ ...podGpu, coresPercent: 40 }],
    compute: { policy: 'soft' },
    computeOverride: text,
  });
  t.deepEqual(readOverrides(podUid, annotated(text), [now]), ok([]), 'once');
  t.deepEqual(
    readOverrides(podUid, annotated(), [now]) as unknown,
    ok([
      { id: 'abc123', gpus: [{ ...podGpu, coresLimitPercent: 50 }], compute: { policy: 'fixed' }, computeOverride: '' },
    ]),
  );
  t.deepEqual(readOverrides('another', annotated(text), [podGrant()]), ok([]));
});

test('an annotation is applied as a whole or not at all', (t) => {
  const side = podGrant({ id: 'side12', container: 'side', gpus: [{ ...podGpu, coresPercent: 30 }] });
  const other = podGrant({
    id: 'other1',
    gpus: [{ ...podGpu, coresPercent: 40 }],
    owner: { pid: 1, startTicks: 1, cgroup: '' },
  });
  const after = (text: string, grants = [podGrant(), side, other]) => {
    const found = readOverrides(podUid, annotated(text), grants);
    return found.ok ? found.value.map(({ gpus }) => gpus[0]?.coresPercent) : found.error;
  };
  t.is(after('{"main":{"weight":0}}'), 'main.weight: 0 is not a whole number from 1 to 1000');
  t.is(after('{"mian":{"weight":1}}'), 'mian: no container with a grant has this name; the pod has main, side');
  t.is(
    after('{"main":{"coresPercent":60}}'),
    'main: coresLimitPercent: 50 is below the share; write 60 to 100, or null',
  );
  const full = `${GPU} has 60 % of its compute left for the pod`;
  t.is(after('{"main":{"coresPercent":31}}'), `${full}, but 61 % are requested`);
  t.is(after('{"main":{"coresPercent":40},"side":{"coresPercent":25}}'), `${full}, but 65 % are requested`);
  t.deepEqual(after('{"main":{"coresPercent":40},"side":{"coresPercent":20}}'), [40, 20]);
  const tooMuch = { ...other, gpus: [{ ...podGpu, coresPercent: 90 }] };
  t.deepEqual(after('{"main":{"coresPercent":15}}', [podGrant(), side, tooMuch]), [15, 30], 'less is never refused');
});

test('a share beyond the rest is refused, one that the grant already has is not', (t) => {
  const other = podGrant({
    id: 'other1',
    gpus: [{ ...podGpu, coresPercent: 70 }],
    owner: { pid: 1, startTicks: 1, cgroup: '' },
  });
  t.deepEqual(
    changeOf(podGrant(), { coresPercent: 40 }, [other]),
    err({
      refused: `${GPU} has 30 % of its compute left for it, but 40 % are requested`,
    }),
  );
  t.like(changeOf(podGrant(), { coresPercent: 30 }, [other]), {
    ok: true,
    value: { gpus: [{ ...podGpu, coresPercent: 30 }] },
  });
});

test('stored compute policies are read back as written, and nothing else is', (t) => {
  const set: NodeCompute = { policy: 'soft', gpus: { A: 'fixed' }, highCapPercent: 90 };
  t.deepEqual(parseState(COMPUTE_FORMAT, formatState(COMPUTE_FORMAT, set)), { ok: true, value: set });
  t.deepEqual(parseState(COMPUTE_FORMAT, formatState(COMPUTE_FORMAT, { gpus: {} })), {
    ok: true,
    value: { gpus: {} },
  });
  for (const text of [
    '',
    '{"version":2}',
    '{"version":1,"gpus":{"A":"6"}}',
    '{"version":1,"gpus":{},"highCapPercent":0}',
  ])
    t.false(parseState(COMPUTE_FORMAT, text).ok, text);
});

const reportOf = (id: string, chargedNs: number, faults = 0, join = 1): ArbiterReport => ({
  plan: 1,
  pages: [
    {
      id,
      join,
      broken: undefined,
      gpus: [
        {
          chargedNs,
          contendedNs: 0,
          throttledNs: 2 * chargedNs,
          relieved: faults,
          overruns: 0,
          faults,
          guaranteePpm: 250_000,
          limitPpm: 250_000,
        },
      ],
    },
  ],
});

test('counts continue with a new page or a restarted arbiter, and end with their grant', (t) => {
  const grantOf = (id: string) => id.split('.')[0];
  const isLive = () => true;
  let account = advanceAccount(NO_ACCOUNT, reportOf('g.0', 1e9), grantOf, isLive);
  account = advanceAccount(account, reportOf('g.0', 3e9, 1), grantOf, isLive);
  t.like(account.uses.get(useKey('g', 0)), {
    chargedSeconds: 3,
    throttledSeconds: 6,
    relieved: 1,
    faults: 1,
    limitRatio: 0.25,
  });
  account = advanceAccount(account, reportOf('g.1', 1e9), grantOf, isLive);
  t.is(account.uses.get(useKey('g', 0))?.chargedSeconds, 4, 'another page counts from nothing');
  account = advanceAccount(account, reportOf('g.1', 5e8), grantOf, isLive);
  t.is(account.uses.get(useKey('g', 0))?.chargedSeconds, 4, 'what was counted is not taken back');
  account = advanceAccount(account, reportOf('g.1', 6e8, 0, 2), grantOf, isLive);
  t.is(
    account.uses.get(useKey('g', 0))?.chargedSeconds,
    4.6,
    'nor is a page that was taken up again, which counts from nothing',
  );
  account = advanceAccount(withNewArbiter(account), reportOf('g.1', 7e8, 0, 2), grantOf, isLive);
  t.is(Math.round((account.uses.get(useKey('g', 0))?.chargedSeconds ?? 0) * 10), 53, 'nor another arbiter');
  const meanwhile = advanceAccount(account, reportOf('g.1', 8e8, 0, 2), () => undefined, isLive);
  const later = advanceAccount(meanwhile, reportOf('g.1', 9e8, 0, 2), grantOf, isLive);
  t.is(
    Math.round((later.uses.get(useKey('g', 0))?.chargedSeconds ?? 0) * 10),
    54,
    'nor what was reported while no process ran',
  );
  account = advanceAccount(
    account,
    reportOf('other.0', 1),
    () => undefined,
    () => false,
  );
  t.is(account.uses.size, 0);
});

test('a line of the arbiter is read as written, and another line is a problem', (t) => {
  const line =
    '{"plan":3,"lateNs":5,"pages":[{"id":"a.0","join":5,"broken":"the file was truncated","gpus":[{"chargedNs":7,"contendedNs":1,"throttledNs":2,"relieved":6,"launches":9,"overruns":3,"faults":4,"guaranteePpm":1,"limitPpm":500000,"high":false,"native":false}]}]}';
  t.deepEqual(
    parseReport(line),
    ok({
      plan: 3,
      pages: [
        {
          id: 'a.0',
          join: 5,
          broken: 'the file was truncated',
          gpus: [
            {
              chargedNs: 7,
              contendedNs: 1,
              throttledNs: 2,
              relieved: 6,
              overruns: 3,
              faults: 4,
              guaranteePpm: 1,
              limitPpm: 500_000,
            },
          ],
        },
      ],
    }),
  );
  t.deepEqual(parseReport('{"plan":3,"lateNs":5,"same":true}'), ok('same'));
  t.deepEqual(parseReport('{"problem":"GPU: want GPU"}'), err('GPU: want GPU'));
  const cut = parseReport('{"plan":');
  t.true(!cut.ok && cut.error.startsWith('invalid JSON in its report: '));
});

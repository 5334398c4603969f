// What happens in time: a live change, a lent share that is taken back, a high-priority container's requests, an agent
// that stops.
import type { BenchOptions } from '../bench.ts';
import type { Row } from '../row.ts';
import { each, lengthName, runLab, type Served, type Tenant } from './lab.ts';
import { after, between, percentOf, settledAfterMs, stretches } from './measure.ts';

const SOFT = 4;
const QUANTUM_MS = 10;
/** From the end of one container's work to the beginning of another's, at most: the helper's look, ring, wake,
 * switch. */
const HANDOVER_MS = 1;

const nth = (served: readonly Served[], index: number): Served => {
  const one = served[index];
  if (!one) throw new Error(`the laboratory served ${served.length} tenants`);
  return one;
};
const busy = (kernelUs: number, percent: number, more: Tenant['more'] = {}): Tenant => ({
  form: 'async',
  kernelUs,
  percent,
  more,
});

async function settling(): Promise<Row[]> {
  const cases = [200, 5000].flatMap((kernelUs) => [
    { kernelUs, tenants: [75], to: [2] },
    { kernelUs, tenants: [2], to: [75] },
    { kernelUs, tenants: [30, 70], to: [70, 30] },
  ]);
  return await each(cases, async ({ kernelUs, tenants, to }): Promise<Row> => {
    const words = to.map((percent, index) => `set=6000:${index}:percent:${percent}`);
    const served = await runLab({ seconds: 12, tenants: tenants.map((percent) => busy(kernelUs, percent)), words });
    // Two that ask for all of a GPU get a little less, for changing hands takes time. 6 points of half a second are the
    // 3 points that a second may be off at any time.
    const times = to.map((percent, index) => {
      const windows = nth(served, index).work_us;
      const reached = tenants.length > 1 ? percentOf(between(windows, 8, 12)) : percent;
      return Math.abs(reached - percent) > 3 ? null : settledAfterMs(windows, 6000, reached, 6);
    });
    const slowest = times.includes(null) ? null : Math.max(...times.filter((time) => time !== null));
    return {
      name: `compute.settle_ms.${tenants.join('_')}_to_${to.join('_')}.${lengthName(kernelUs)}`,
      value: slowest,
      unit: 'ms',
      reference: { value: 500, what: 'the bound; until each half second is within 6 points of the new share' },
      goal: { most: 500 },
      ...(slowest === null ? { skipped: 'never within 3 points of the new share' } : {}),
    };
  });
}

async function lending(quick: boolean): Promise<Row[]> {
  const seconds = quick ? 12 : 42;
  const rows = await each([200, 1000, 5000], async (kernelUs): Promise<Row[]> => {
    const pausing = busy(200, 70, { active_ms: 1000, pause_ms: 1000 });
    const lent = await runLab({ policy: SOFT, seconds, tenants: [busy(kernelUs, 30), pausing] });
    // Odd seconds are the neighbor's pauses.
    const away = stretches(nth(lent, 0).work_us, 1).filter((_, second) => second > 2 && second % 2 === 1);
    const share = away.reduce((sum, got) => sum + (got - 30) / 70, 0) / away.length;
    const rare: Tenant = {
      form: 'requests',
      kernelUs: 1000,
      percent: 70,
      more: { burst: 1, load: 2, spread: 'fixed' },
    };
    const fixed = { spread: 'fixed' };
    const taken = await runLab({ policy: SOFT, seconds, tenants: [busy(kernelUs, 30, fixed), rare] });
    const bound = QUANTUM_MS + kernelUs / 1000 + HANDOVER_MS;
    return [
      {
        name: `compute.soft.lent_ratio.${lengthName(kernelUs)}`,
        value: share,
        unit: 'ratio',
        reference: { value: 0.95, what: "the bound; of an idle neighbor's 70 %" },
        goal: { least: 0.95 },
      },
      {
        name: `compute.soft.give_back_ms.${lengthName(kernelUs)}`,
        value: (nth(taken, 1).max_us ?? 0) / 1000 - 1,
        unit: 'ms',
        reference: { value: bound, what: 'the bound: a quantum, a kernel and the change of hands; longest of the run' },
        goal: { most: bound },
      },
    ];
  });
  return rows.flat();
}

/** Best effort of kernels that are all as long, and of such whose mean that is and of which some are several times as
 * long. */
async function priority(): Promise<Row[]> {
  const seconds = 122;
  const cases = [
    { kernels: 20, each: 500 },
    { kernels: 20, each: 200 },
  ].flatMap((request) =>
    [50, 200, 1000, 5000].flatMap((kernelUs) =>
      ['fixed', 'lognormal'].map((spread) => ({ request, kernelUs, spread })),
    ),
  );
  const rows = await each(cases, async ({ request, kernelUs, spread }): Promise<Row[]> => {
    const inference = (high: number): Tenant => ({
      form: 'requests',
      kernelUs: request.each,
      percent: 50,
      more: { burst: request.kernels, load: 30, high },
    });
    const training = busy(kernelUs, 50, { spread });
    const p99 = (served: readonly Served[]) => nth(served, 0).p99_us ?? 0;
    const alone = p99(await runLab({ law: 'native', seconds, tenants: [inference(0)] }));
    const beside = await runLab({ policy: SOFT, seconds, tenants: [inference(1), training] });
    const native = await runLab({ law: 'native', seconds, tenants: [inference(0), training] });
    const added = (served: readonly Served[]) => (100 * p99(served)) / alone - 100;
    const uneven = spread === 'fixed' ? '' : '_uneven';
    const name = `request_${lengthName(request.kernels * request.each)}.beside_${lengthName(kernelUs)}${uneven}`;
    return [
      {
        name: `compute.high.p99_added_percent.${name}`,
        value: added(beside),
        unit: 'percent',
        reference: { value: added(native), what: `native sharing; alone ${alone / 1000} ms, load 30 %` },
        ...(kernelUs <= 1000 && !uneven ? { goal: { most: 7 } } : {}),
      },
      {
        name: `compute.high.best_effort_percent.${name}`,
        value: percentOf(nth(beside, 1).work_us),
        unit: 'percent',
        reference: { value: percentOf(nth(native, 1).work_us), what: 'native sharing' },
      },
    ];
  });
  return rows.flat();
}

/** A high-priority container that wants all of the GPU and may have a part of it: the rest is its neighbor's. */
async function capped(quick: boolean): Promise<Row[]> {
  const cases = (quick ? [70] : [50, 60, 70, 90]).flatMap((cap) =>
    [200, 1000, 5000].map((kernelUs) => ({ cap, kernelUs })),
  );
  const rows = await each(cases, async ({ cap, kernelUs }): Promise<Row[]> => {
    const served = await runLab({
      seconds: 62,
      tenants: [busy(kernelUs, 50, { high: 1, cap }), busy(kernelUs, 50)],
    });
    const got = (index: number) => percentOf(after(nth(served, index).work_us, 2));
    const name = `cap_${cap}.beside_${lengthName(kernelUs)}`;
    return [
      {
        name: `compute.high.cap_error_points.${name}`,
        value: Math.abs(got(0) - cap),
        unit: 'points',
        reference: { value: 1, what: 'the bound; over a minute' },
        goal: { most: 1 },
      },
      {
        name: `compute.high.left_ratio.${name}`,
        value: got(1) / (100 - cap),
        unit: 'ratio',
        reference: { value: 100 - cap, what: 'percent of the GPU that the cap leaves to a neighbor of 50 %' },
        goal: { least: 0.9 },
      },
    ];
  });
  return rows.flat();
}

type Outage = { readonly name: string; readonly tenants: readonly Tenant[] };
const OUTAGES: readonly Outage[] = [
  { name: 'alone', tenants: [busy(200, 25)] },
  { name: '30_70', tenants: [busy(200, 30), busy(200, 70)] },
  { name: '30_70_unequal', tenants: [busy(5000, 30), busy(200, 70)] },
  { name: '10x5_long', tenants: Array.from({ length: 10 }, () => busy(5000, 5)) },
  { name: '50x2', tenants: Array.from({ length: 50 }, () => busy(200, 2)) },
];

async function outages(quick: boolean): Promise<Row[]> {
  const cases = (quick ? OUTAGES.slice(0, 3) : OUTAGES).flatMap((outage) => [
    { outage, how: 'stopped_30s', words: ['stop=6000', 'resume=36000'] },
    { outage, how: 'restarted', words: ['stop=6000', 'restart=6500'] },
  ]);
  const rows = await each(cases, async ({ outage, how, words }): Promise<Row[]> => {
    const { name, tenants } = outage;
    const usual = await runLab({ seconds: 44, tenants });
    const served = await runLab({ seconds: 44, tenants, words });
    const over = (from: number, to: number) => (one: Served, index: number) =>
      percentOf(between(one.work_us, from, to)) - (tenants[index]?.percent ?? 0);
    const windows = served.flatMap((one, index) =>
      stretches(between(one.work_us, 6, 37), 1).map((got) => got - (tenants[index]?.percent ?? 0)),
    );
    const longest = (all: readonly Served[]) => Math.max(...all.map((one) => one.longest_wait_us)) / 1000;
    const back = served.map(over(38, 44)).map((error, index) => error - over(38, 44)(nth(usual, index), index));
    return [
      {
        name: `compute.agent.${how}.excess_points.${name}`,
        value: Math.max(...served.map(over(6, 36))),
        unit: 'points',
        reference: { value: Math.max(...windows), what: 'the worst single second of any tenant' },
        goal: { most: 5 },
      },
      {
        name: `compute.agent.${how}.added_wait_ms.${name}`,
        value: longest(served) - longest(usual),
        unit: 'ms',
        reference: { value: longest(usual), what: 'the longest wait of the same programs with an agent all the time' },
        goal: { most: 100 },
      },
      {
        name: `compute.agent.${how}.off_afterwards_points.${name}`,
        value: Math.max(...back.map(Math.abs)),
        unit: 'points',
        reference: {
          value: 1,
          what: 'the bound; from 2 s after the agent is back, against the same without an outage',
        },
        goal: { most: 1 },
      },
    ];
  });
  return rows.flat();
}

export async function live({ quick, note }: BenchOptions): Promise<Row[]> {
  note('compute: live changes, lending, priority, outages of the agent');
  return [
    ...(await settling()),
    ...(await lending(quick)),
    ...(await priority()),
    ...(await capped(quick)),
    ...(await outages(quick)),
  ];
}

// What the interposer adds to a call: nanoseconds and instructions, over a driver whose calls return at once, and over
// the simulated one. Every figure is a difference of samples that were taken in turns.

import type { Teardown } from '../../support/native/node.ts';
import { MIB } from '../../support/product/grant.ts';
import { type Bench, type BenchOptions, withTeardown } from '../bench.ts';
import {
  type Environment,
  FORWARD,
  idleEnvironment,
  type Setting,
  simulatedEnvironment,
  writeFeedback,
} from '../environment.ts';
import type { Goal, Row } from '../row.ts';
import { median, medianDifference } from '../statistics.ts';
import { startCaller, takeTurns } from './caller.ts';
import { instructionsPerCall, instructionsPerStart, whyNoCallgrind } from './instructions.ts';
import { measureStarts } from './starts.ts';

const LAUNCH_NS: Goal = { most: 5 };
const LAUNCH_INSTRUCTIONS: Goal = { most: 60 };
const ALLOC_NS: Goal = { most: 100 };
const LOOK_UP_NS: Goal = { most: 30 };
/** With many processes, or many live allocations. */
const ALLOC_MANY_NS: Goal = { most: 200 };

type Subject = {
  /** Part of the row's name: `interposer.NAME.added_ns`. */
  readonly name: string;
  readonly command: (at: string) => string;
  /** Asked of each process once, before it is measured. */
  readonly before?: string;
  /** Processes that are measured at the same time. */
  readonly processes?: number;
  /** Further processes of the container that hold a context and do nothing. */
  readonly idle?: number;
  /** Processes of the container that have come and gone before. */
  readonly ended?: number;
  readonly isolate?: boolean;
  /** The agent has measured every process. */
  readonly feedback?: boolean;
  /** Measured through a preload that only forwards, too. */
  readonly forwarded?: boolean;
  readonly goal?: Goal;
  readonly what: string;
};

const LAUNCH = (at: string) => `launch 100000 1000 ${at}`;
const PAIRS = (bytes: number) => (at: string) => `alloc 20000 100 ${at} ${bytes}`;
const PAIR = 'cuMemAlloc and cuMemFree of 2 MiB';
const SUBJECTS: readonly Subject[] = [
  {
    name: 'look_up.dlsym',
    command: (at) => `dlsym 50000 500 ${at}`,
    forwarded: true,
    goal: LOOK_UP_NS,
    what: 'dlsym of cuMemAlloc_v2',
  },
  {
    name: 'look_up.cuGetProcAddress',
    command: (at) => `gpa 100000 1000 ${at}`,
    forwarded: true,
    goal: LOOK_UP_NS,
    what: 'cuGetProcAddress of cuMemAlloc',
  },
  { name: 'launch.limited', command: LAUNCH, forwarded: true, goal: LAUNCH_NS, what: 'cuLaunchKernel' },
  { name: 'launch.unlimited', command: LAUNCH, isolate: false, goal: LAUNCH_NS, what: 'cuLaunchKernel' },
  {
    name: 'launch.two_processes',
    command: LAUNCH,
    processes: 2,
    goal: LAUNCH_NS,
    what: 'cuLaunchKernel in two processes at once',
  },
  { name: 'alloc_free', command: PAIRS(2 * MIB), forwarded: true, goal: ALLOC_NS, what: PAIR },
  { name: 'alloc_free.unlimited', command: PAIRS(2 * MIB), isolate: false, goal: ALLOC_NS, what: PAIR },
  { name: 'alloc_free.small', command: PAIRS(512), what: 'cuMemAlloc and cuMemFree of 512 B' },
  {
    name: 'alloc_free.live_100000',
    command: PAIRS(512),
    before: 'hold 100000 512',
    what: 'cuMemAlloc and cuMemFree of 512 B beside 100,000 that live',
  },
  {
    name: 'alloc_free.live_1000000',
    command: PAIRS(512),
    before: 'hold 1000000 512',
    goal: ALLOC_MANY_NS,
    what: 'cuMemAlloc and cuMemFree of 512 B beside 1,000,000 that live',
  },
  {
    name: 'alloc_free.two_processes',
    command: PAIRS(2 * MIB),
    processes: 2,
    goal: ALLOC_NS,
    what: `${PAIR} in two processes at once`,
  },
  {
    name: 'alloc_free.processes_64',
    command: PAIRS(2 * MIB),
    idle: 63,
    goal: ALLOC_MANY_NS,
    what: `${PAIR} in a container of 64 processes`,
  },
  {
    name: 'alloc_free.feedback',
    command: PAIRS(2 * MIB),
    feedback: true,
    goal: ALLOC_NS,
    what: `${PAIR}, measured by the agent`,
  },
  {
    name: 'alloc_free.feedback_64',
    command: PAIRS(2 * MIB),
    idle: 63,
    feedback: true,
    goal: ALLOC_MANY_NS,
    what: `${PAIR} in a container of 64 processes, all measured by the agent`,
  },
  {
    name: 'alloc_free.after_64_ended',
    command: PAIRS(2 * MIB),
    ended: 64,
    what: `${PAIR} in a container in which 64 processes have ended`,
  },
];
const OVER_SIMULATOR: readonly Subject[] = [
  { name: 'launch.simulator', command: (at) => `launch 5000 1000 ${at}`, what: 'cuLaunchKernel' },
  { name: 'alloc_free.simulator', command: (at) => `alloc 500 10 ${at} ${2 * MIB}`, what: PAIR },
];

/** Direct, direct once more (what the machine adds by itself), through the interposer, and where it is asked for
 * through a preload that only forwards, in turns. */
async function measure(environment: Environment, subject: Subject, { quick }: BenchOptions): Promise<Row[]> {
  const [generations, rounds] = quick ? [3, 15] : [7, 60];
  const samples: [number[], number[], number[], number[]] = [[], [], [], []];
  // Processes are started anew a few times: where a program's code and data happen to lie changes its speed.
  for (let generation = 0; generation < generations; generation += 1) {
    await withTeardown(async (scope) => {
      const held = environment.grant(scope, subject.isolate ?? true);
      const start = (setting: Setting) =>
        Array.from({ length: subject.processes ?? 1 }, () => startCaller(scope, setting));
      for (let number = 0; number < (subject.ended ?? 0); number += 1) {
        const caller = startCaller(scope, held);
        await caller.ask('hold 1 512');
        await caller.end();
      }
      const idle = Array.from({ length: subject.idle ?? 0 }, () => startCaller(scope, held));
      await Promise.all(idle.map((caller) => caller.ask('hold 1 512')));
      const groups = [start({ lib: environment.lib }), start({ lib: environment.lib }), start(held)];
      if (subject.forwarded) groups.push(start({ lib: environment.lib, preload: FORWARD }));
      for (const caller of groups.flat()) if (subject.before) await caller.ask(subject.before);
      await takeTurns(groups, 2, subject.command);
      if (subject.feedback) writeFeedback(held);
      for (const [index, list] of (await takeTurns(groups, rounds, subject.command)).entries())
        samples[index]?.push(...list);
    });
  }
  const [direct, again, interposed, forwarded] = samples;
  const reference = { value: median(direct), what: `${subject.what}, straight into ${environment.what}` };
  const same = { value: median(direct), what: `the same call, measured twice: what the machine adds by itself` };
  const { goal } = subject;
  const rows: Row[] = [
    {
      name: `interposer.${subject.name}.added_ns`,
      value: medianDifference(interposed, direct),
      unit: 'ns',
      reference,
      ...(goal === undefined ? {} : { goal }),
    },
    {
      name: `interposer.${subject.name}.noise_ns`,
      value: Math.abs(medianDifference(again, direct)),
      unit: 'ns',
      reference: same,
    },
  ];
  if (subject.forwarded)
    rows.push({
      name: `interposer.${subject.name}.forwarded_ns`,
      value: medianDifference(forwarded, direct),
      unit: 'ns',
      reference: { value: median(direct), what: 'the same call; added by a preload that only forwards it' },
    });
  return rows;
}

const COUNTED = [
  {
    name: 'interposer.launch.limited.added_instructions',
    command: (calls: number) => `launch ${calls} 1000 0`,
    goal: LAUNCH_INSTRUCTIONS,
    what: 'cuLaunchKernel',
  },
  {
    name: 'interposer.alloc_free.added_instructions',
    command: (calls: number) => `alloc ${calls} 100 0 ${2 * MIB}`,
    what: PAIR,
  },
];

async function countInstructions(scope: Teardown, { note }: BenchOptions): Promise<Row[]> {
  const skipped = whyNoCallgrind();
  if (skipped !== undefined) note(`NOT MEASURED: instructions: ${skipped}`);
  const environment = idleEnvironment();
  const rows: Row[] = [];
  for (const { name, command, what, goal } of COUNTED) {
    const base = { name, unit: 'instructions', ...(goal === undefined ? {} : { goal }) };
    if (skipped !== undefined) {
      rows.push({ ...base, value: null, reference: null, skipped });
      continue;
    }
    const direct = await instructionsPerCall(scope, () => ({ lib: environment.lib }), command);
    const interposed = await instructionsPerCall(scope, () => environment.grant(scope), command);
    const reference = {
      value: direct,
      what: `${what}, straight into ${environment.what}, the loop around it included`,
    };
    rows.push({ ...base, value: interposed - direct, reference });
  }
  const start = { name: 'interposer.start.added_instructions', unit: 'instructions' };
  if (skipped !== undefined) return [...rows, { ...start, value: null, reference: null, skipped }];
  const direct = await instructionsPerStart(scope, { lib: environment.lib });
  const what = `a process from its exec to a context and its end, straight on ${environment.what}, the loader's work included`;
  const value = (await instructionsPerStart(scope, environment.grant(scope))) - direct;
  return [...rows, { ...start, value, reference: { value: direct, what } }];
}

export const interposer: Bench = {
  name: 'interposer',
  what: 'what the interposer adds to a launch and to an allocation',
  async run(scope, options) {
    const rows = await countInstructions(scope, options);
    rows.push(...measureStarts(scope, options));
    for (const subject of SUBJECTS) {
      options.note(`interposer: ${subject.name}`);
      rows.push(...(await measure(idleEnvironment(), subject, options)));
    }
    const simulated = await simulatedEnvironment(scope);
    for (const subject of OVER_SIMULATOR) {
      options.note(`interposer: ${subject.name}`);
      rows.push(...(await measure(simulated, subject, options)));
    }
    return rows;
  },
};

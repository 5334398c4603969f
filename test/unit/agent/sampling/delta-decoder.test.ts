// What the sampler's lines add up to: a process that is as before is the same object, and what does not add up is
// refused for good.
import test from 'ava';
import fc from 'fast-check';
import { createSampleDecoder, type SampleDecoder } from '../../../../src/agent/sampling/delta-decoder.ts';
import type { SampleLine } from '../../../../src/agent/sampling/line-schema.ts';
import type { Sample, SampledProcess } from '../../../../src/agent/sampling/sample.ts';
import { err } from '../../../../src/common/result.ts';
import { gpu, sampledProcess, sampleOf, use } from '../node.ts';

const lineOf = (
  round: number,
  processes: readonly SampledProcess[],
  processCount: number,
  removedPids: readonly number[] = [],
): SampleLine => ({
  ...sampleOf([gpu(0)], processes),
  round,
  removedPids,
  processCount,
  utilizationCursors: [{ uuid: 'GPU-0', dayUs: round * 1e6 + 5e9, bootUs: round * 1e6, setUs: 0 }],
});
const read = (reader: SampleDecoder, line: SampleLine): Sample => {
  const sample = reader.read(JSON.stringify(line));
  if (!sample.ok) throw new Error(sample.error);
  return sample.value;
};
const figures = (pid: number, bytes: number): SampledProcess => ({ pid, gpus: [use(0, { bytes })] });
const whole = (pid: number, bytes: number, more: Partial<SampledProcess> = {}) =>
  sampledProcess(pid, [use(0, { bytes })], more);

test('processes that a line does not name stay the same objects; so does their list', (t) => {
  const reader = createSampleDecoder();
  const first = read(reader, lineOf(1, [whole(11, 1), whole(12, 2), whole(13, 3)], 3));
  t.deepEqual(first.processes, [whole(11, 1), whole(12, 2), whole(13, 3)]);
  const { removedPids: _, processCount: __, utilizationCursors, ...sample } = lineOf(1, first.processes, 3);
  t.deepEqual(first, sample, 'nothing of the line but what a sample has');
  t.deepEqual(reader.utilizationCursors(), utilizationCursors);

  const second = read(reader, lineOf(2, [], 3));
  t.is(second.processes, first.processes);

  const third = read(reader, lineOf(3, [figures(12, 20)], 3));
  t.is(third.processes[0], first.processes[0]);
  t.is(third.processes[0]?.gpus, first.processes[0]?.gpus);
  t.deepEqual(third.processes[1], whole(12, 20));
  t.is(third.processes[1]?.ancestors, first.processes[1]?.ancestors, 'its identity is what was reported before');
  t.is(third.processes[2], first.processes[2]);
  t.deepEqual(first.processes[1], whole(12, 2), 'a sample stays what it was');

  const fourth = read(reader, lineOf(4, [whole(10, 9), whole(13, 3, { command: 'other' })], 3, [11]));
  t.deepEqual(fourth.processes, [whole(10, 9), whole(12, 20), whole(13, 3, { command: 'other' })], 'by pid');
  t.is(fourth.processes[1], third.processes[1]);
});

test('after a sampler restart a process is gone by the PID that the last one reported', (t) => {
  const used = [use(0, { smUs: 7000 })];
  const gone = (pid: number): SampledProcess => ({ pid, gone: true, gpus: used });
  const again = whole(13, 3, { startTicks: 999 });
  const reader = createSampleDecoder([whole(11, 1), { pid: 12, gone: true, gpus: [] }, whole(13, 2)]);
  const first = read(reader, lineOf(1, [gone(11), gone(12), again, gone(14)], 4));
  t.deepEqual(first.processes, [{ ...whole(11, 1), gone: true, gpus: used }, gone(12), again, gone(14)]);
  const second = read(reader, lineOf(2, [{ pid: 11, gpus: [use(0, { smUs: 8000 })] }, gone(13)], 4, [13]));
  t.deepEqual(second.processes[0], { ...whole(11, 1), gone: true, gpus: [use(0, { smUs: 8000 })] });
  t.deepEqual(second.processes[2], gone(13), 'later the sampler has reported it');
});

test('a PID that was removed, or has another identity, is another process', (t) => {
  const reader = createSampleDecoder();
  read(reader, lineOf(1, [whole(11, 1), whole(12, 2)], 2));
  const again = whole(11, 5, { startTicks: 999 });
  t.deepEqual(read(reader, lineOf(2, [again], 2)).processes, [again, whole(12, 2)], 'at once');
  const gone: SampledProcess = { pid: 12, gone: true, gpus: [use(0)] };
  t.deepEqual(read(reader, lineOf(3, [gone], 2, [12])).processes, [again, gone], 'after it left');
  t.deepEqual(read(reader, lineOf(4, [], 0, [11, 12])).processes, []);
});

test('a line that does not fit the lines before is refused, and so are all later ones', (t) => {
  const cases: [line: SampleLine, wrong: string][] = [
    [lineOf(2, [figures(13, 1)], 2), 'processes[0]: want startTicks, or gone: no line before identifies process 13'],
    [
      lineOf(2, [figures(12, 1)], 1, [12]),
      'processes[0]: want startTicks, or gone: no line before identifies process 12',
    ],
    [
      lineOf(2, [{ ...figures(12, 1), cgroup: '0::/' }], 2),
      'processes[0]: want startTicks, or gone: no line before identifies process 12',
    ],
    [
      lineOf(2, [{ ...figures(12, 1), gone: false }], 2),
      'processes[0]: want startTicks, or gone: no line before identifies process 12',
    ],
    [lineOf(2, [figures(12, 1), figures(11, 1)], 2), 'processes[1]: PID 11 follows 12: want ascending PIDs'],
    [lineOf(2, [figures(12, 1), figures(12, 1)], 2), 'processes[1]: PID 12 follows 12: want ascending PIDs'],
    [lineOf(2, [whole(0, 1)], 3), 'processes[0]: PID 0 follows 0: want ascending PIDs'],
    [lineOf(2, [], 1, [13]), 'removedPids[0]: process 13 is in no line before'],
    [lineOf(2, [], 1, [12, 12]), 'removedPids[1]: process 12 is in no line before'],
    [lineOf(2, [], 3), 'processCount: 3, but the lines so far have 2'],
    [lineOf(2, [whole(13, 1)], 2), 'processCount: 2, but the lines so far have 3'],
    [lineOf(2, [], 2, [12]), 'processCount: 2, but the lines so far have 1'],
    [lineOf(3, [], 2), 'round: 3 follows 1'],
    [lineOf(1, [], 2), 'round: 1 follows 1'],
    [{ ...lineOf(2, [], 2), atMs: -1 }, 'atMs: -1 is not a whole number'],
  ];
  for (const [line, wrong] of cases) {
    const reader = createSampleDecoder();
    read(reader, lineOf(1, [whole(11, 1), whole(12, 2)], 2));
    t.deepEqual(reader.read(JSON.stringify(line)), err(wrong));
    t.deepEqual(reader.read(JSON.stringify(lineOf(2, [], 2))), err(wrong), 'a line that would have been right before');
  }
  t.deepEqual(createSampleDecoder().read(JSON.stringify(lineOf(2, [], 0))), err('round: 2 follows 0'));
});

type Picture = ReadonlyMap<number, SampledProcess>;
const who = ({ gpus: _, ...rest }: SampledProcess) => JSON.stringify(rest);
const uses = ({ gpus }: SampledProcess) => JSON.stringify(gpus);
const byPid = (picture: Picture) => [...picture.values()].sort((a, b) => a.pid - b.pid);

/** The line from one picture to the next, as the sampler prints it. */
function lineBetween(round: number, before: Picture, after: Picture): SampleLine {
  const processes = byPid(after).flatMap((process) => {
    const known = before.get(process.pid);
    if (known === undefined || who(known) !== who(process)) return [process];
    return uses(known) === uses(process) ? [] : [{ pid: process.pid, gpus: process.gpus }];
  });
  return lineOf(
    round,
    processes,
    after.size,
    [...before.keys()].filter((pid) => !after.has(pid)),
  );
}

type Reported = { readonly pid: number; readonly ticks: number; readonly bytes: number; readonly on: number };
const histories = fc.array(
  fc.uniqueArray(
    fc.record<Reported>({
      pid: fc.integer({ min: 1, max: 8 }),
      ticks: fc.integer({ min: 1, max: 2 }),
      bytes: fc.integer({ min: 0, max: 2 }),
      on: fc.integer({ min: 0, max: 2 }),
    }),
    { selector: ({ pid }) => pid, maxLength: 8 },
  ),
  { minLength: 1, maxLength: 12 },
);

/** The pictures that a history tells of, each with the line that leads to it. */
const linesOf = (history: readonly (readonly Reported[])[]) => {
  let before: Picture = new Map();
  return history.map((reported, index) => {
    const after = new Map(
      reported.map(({ pid, ticks, bytes, on }) => [
        pid,
        sampledProcess(
          pid,
          [...Array(on).keys()].map((at) => use(at, { bytes })),
          { startTicks: ticks },
        ),
      ]),
    );
    const step = { before, after, line: lineBetween(index + 1, before, after) };
    before = after;
    return step;
  });
};

test('for any changes samples equal the reported ones, and unchanged parts stay', (t) => {
  t.notThrows(() =>
    fc.assert(
      fc.property(histories, (history) => {
        const reader = createSampleDecoder();
        let last: Sample | undefined;
        for (const { before, after, line } of linesOf(history)) {
          const sample = read(reader, line);
          if (JSON.stringify(sample.processes) !== JSON.stringify(byPid(after)))
            throw new Error(JSON.stringify(sample));
          for (const process of sample.processes) {
            const [was, is] = [before.get(process.pid), after.get(process.pid)];
            const same = was !== undefined && is !== undefined && who(was) === who(is) && uses(was) === uses(is);
            const object = last?.processes.find(({ pid }) => pid === process.pid);
            if (same !== (object === process)) throw new Error(`process ${process.pid} of sample ${line.round}`);
          }
          last = sample;
        }
      }),
      { numRuns: 300 },
    ),
  );
});

/** The line with something left out that it cannot do without. */
function* cutsOf(line: SampleLine, before: Picture): Generator<SampleLine> {
  for (const at of line.removedPids.keys()) yield { ...line, removedPids: line.removedPids.toSpliced(at, 1) };
  for (const [at, { pid, gpus }] of line.processes.entries()) {
    if (before.has(pid)) continue; // other figures that are not reported are no contradiction
    yield { ...line, processes: line.processes.toSpliced(at, 1) };
    yield { ...line, processes: line.processes.toSpliced(at, 1, { pid, gpus }) };
  }
}

test('a line without a required field, or without its predecessor, is refused', (t) => {
  t.notThrows(() =>
    fc.assert(
      fc.property(histories, (history) => {
        const steps = linesOf(history);
        for (const [index, { line, before }] of steps.entries()) {
          const next = steps[index + 1]?.line;
          for (const cut of [...cutsOf(line, before), ...(next ? [next] : [])]) {
            const reader = createSampleDecoder();
            for (const { line: earlier } of steps.slice(0, index)) read(reader, earlier);
            const sample = reader.read(JSON.stringify(cut));
            if (sample.ok) throw new Error(`${JSON.stringify(cut)} was taken`);
          }
        }
      }),
      { numRuns: 100 },
    ),
  );
});

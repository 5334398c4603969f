// Samplers whose driver holds them so that not even SIGKILL ends them: how many there may be, and what follows their
// release. And one whose lines do not add up.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, copyFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import type { Sample } from '../../../../src/agent/sampling/sample.ts';
import { startSampler } from '../../../../src/agent/sampling/sampler-process.ts';
import { childrenOf, startedMs } from '../../../support/machine/scheduling-delays.ts';
import { BUILD, eventually, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { loggerTo } from '../../../support/product/logger.ts';

const SILENCE_MS = 500;
/** Where no sampler is to be abandoned for its silence. */
const NEVER_MS = 60_000;

function start(t: ExecutionContext, silenceMs = SILENCE_MS) {
  const library = join(temporaryFolder(t), 'hang.so');
  copyFileSync(join(BUILD, 'tests/hanging_nvml.so'), library);
  const samples: Sample[] = [];
  const problems: string[] = [];
  const release = () => writeFileSync(`${library}.release`, '');
  const sampler = startSampler({
    intervalMs: 100,
    library,
    silenceMs,
    onSample: (sample) => samples.push(sample),
    log: loggerTo(problems),
  });
  t.teardown(async () => {
    release();
    await sampler.close();
    await eventually(() => sampler.abandonedCounts().hung === 0 || undefined, 'no process is left');
  });
  /** Processes that the driver has held so far. One that a busy machine kept from asking it in time was ended. */
  const starts = () => (existsSync(`${library}.starts`) ? readFileSync(`${library}.starts`).length : 0);
  /** When those that the driver holds were started: the kernel's word, however late they or this process came to
   * run. */
  const startTimes = () =>
    childrenOf(process.pid)
      .filter((pid) => readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').includes(library))
      .map(startedMs)
      .toSorted((left, right) => left - right);
  return { sampler, samples, problems, release, starts, startTimes };
}

test('a driver that hangs for good blocks three samplers and no more', async (t) => {
  const { sampler, samples, problems, release, starts } = start(t);
  await eventually(() => sampler.abandonedCounts().hung === 3 || undefined, 'three are abandoned');
  t.is(starts(), 3);
  const counts = sampler.abandonedCounts();
  t.true(counts.abandoned >= 3, String(counts.abandoned));
  t.regex(problems.at(-1) ?? '', /none is started until one of the 3 that hang in the driver has ended$/);
  const until = Date.now() + 6 * SILENCE_MS;
  await eventually(() => Date.now() > until || undefined, 'the time of several more');
  t.is(starts(), 3);
  t.deepEqual(sampler.abandonedCounts(), counts);
  t.deepEqual(samples, []);
  release();
  const sample = await eventually(() => samples.at(-1), 'samples come');
  t.regex(sample.problem ?? '', /NVML does not start/);
  await eventually(() => sampler.abandonedCounts().hung === 0 || undefined, 'those that were held have ended');
});

test('the more samplers the driver holds, the later the next one is started', async (t) => {
  const { sampler, startTimes } = start(t);
  await eventually(() => sampler.abandonedCounts().hung === 3 || undefined, 'three are abandoned');
  const times = startTimes();
  t.is(times.length, 3);
  const [first = 0, second = 0, third = 0] = times;
  // Each is silent for so long; then comes the pause, of one silence and of two.
  t.true(second - first >= 1.8 * SILENCE_MS, `${second - first} ms`);
  t.true(third - second >= 2.8 * SILENCE_MS, `${third - second} ms`);
});

test('the agent can end while the driver holds its sampler', async (t) => {
  const { sampler, starts } = start(t, NEVER_MS);
  await eventually(() => starts() === 1 || undefined, 'it asks the driver');
  const begun = Date.now();
  await sampler.close();
  t.true(Date.now() - begun < 10_000);
  t.is(starts(), 1);
});

test('a sampler that hangs in a released driver is counted, and none starts meanwhile', async (t) => {
  const { sampler, starts, release, samples } = start(t, NEVER_MS);
  await eventually(() => starts() === 1 || undefined, 'it asks the driver');
  await sampler.release();
  t.is(sampler.abandonedCounts().hung, 1);
  release();
  await eventually(() => sampler.abandonedCounts().hung === 0 || undefined, 'the driver lets go of it');
  const until = Date.now() + 3 * SILENCE_MS;
  await eventually(() => Date.now() > until || undefined, 'the time of several more');
  t.is(starts(), 1);
  sampler.reacquire();
  await eventually(() => samples.at(-1), 'samples come');
});

test('a reloaded driver is opened again; a lost GPU restarts nothing', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 't4');
  const samples: Sample[] = [];
  const problems: string[] = [];
  const sampler = startSampler({
    intervalMs: 100,
    library: join(node.lib, 'libnvidia-ml.so.1'),
    silenceMs: 10_000,
    onSample: (sample) => samples.push(sample),
    log: loggerTo(problems),
  });
  t.teardown(() => sampler.close());
  const until = (looks: (sample: Sample) => boolean, what: string) =>
    eventually(() => {
      const last = samples.at(-1);
      return last && looks(last) ? last : undefined;
    }, what);
  const well = (sample: Sample) => sample.problem === undefined && (sample.gpus[0]?.totalBytes ?? 0) > 0;
  await until(well, 'it is seen');
  node.control('lose', '0');
  const lost = await until((sample) => sample.gpus[0]?.healthy === false, 'the GPU is lost');
  await until((sample) => sample.round > lost.round + 3, 'it stays so');
  t.is(samples.at(-1)?.problem, undefined);
  node.control('recover', '0');
  await until(well, 'it is back');
  t.deepEqual(problems, []);

  const ended = once(node.child, 'exit');
  node.child.kill('SIGKILL');
  await ended;
  const silent = await eventually(() => samples.find(({ problem }) => problem !== undefined), 'nothing is answered');
  t.is(silent.problem, 'the driver answers nothing about any GPU');
  await until((sample) => /NVML does not start/.test(sample.problem ?? ''), 'there is no driver');
  t.true(problems.includes('the driver does not answer any more; it is opened again'), problems.join());
  const program = join(BUILD, 'cotenant-simulator');
  const next = spawn(program, ['serve', '--dir', node.folder, '--gpu', 't4', '--driver', '590.1'], {
    stdio: 'ignore',
  });
  t.teardown(() => next.kill('SIGTERM'));
  t.is((await until(well, 'another driver is there')).driverVersion, '590.1');
});

test('a sampler with inconsistent lines is ended; the next starts with a full sample', async (t) => {
  const program = join(temporaryFolder(t), 'sampler');
  const lineOf = (round: number, processes: unknown[], removedPids: number[], processCount: number) =>
    JSON.stringify({
      ...{ round, atMs: 1, bootNs: 1, driverVersion: '580.1', cudaVersion: 13000, gpus: [], errors: [], tookUs: 1 },
      ...{ processes, removedPids, processCount },
      // What no driver calls a GPU is handed on to no part.
      utilizationCursors: ['GPU-a', 'GPU-\u00e9', 'a b', ''].map((uuid) => ({
        uuid,
        dayUs: round + 50,
        bootUs: round,
        setUs: 0,
      })),
    });
  const first = lineOf(1, [{ pid: 7, startTicks: 70, command: 'first', gpus: [] }], [], 1);
  // The other one finds the first process gone.
  const other = lineOf(
    1,
    [
      { pid: 7, gone: true, gpus: [] },
      { pid: 8, startTicks: 80, command: 'other', gpus: [] },
    ],
    [],
    2,
  );
  const goesOn = lineOf(2, [], [], 2);
  // The first one's second line tells that a process has left which it never reported, and its third one would be
  // right.
  writeFileSync(`${program}.1`, `${[first, lineOf(2, [], [9], 1), lineOf(2, [], [], 1)].join('\n')}\n`);
  writeFileSync(`${program}.2`, `${[other, goesOn].join('\n')}\n`);
  writeFileSync(program, '#!/bin/sh\necho "$@" >>"$0.starts"\ncat "$0.$(wc -l <"$0.starts")"\nexec sleep 1000\n');
  chmodSync(program, 0o755);
  const answers: [round: number, commands: (string | undefined)[]][] = [];
  const problems: string[] = [];
  const sampler = startSampler({
    intervalMs: 100,
    library: 'none',
    program,
    silenceMs: 30_000,
    onSample: ({ round, processes }) => answers.push([round, processes.map(({ command }) => command)]),
    log: loggerTo(problems),
  });
  t.teardown(() => sampler.close());
  await eventually(() => answers.length === 3 || undefined, 'samples of both');
  t.deepEqual(answers, [
    [1, ['first']],
    [1, ['first', 'other']],
    [2, ['first', 'other']],
  ]);
  t.deepEqual(problems, [
    'the sampler wrote a line that cannot be used, and is restarted: removedPids[0]: process 9 is in no line before',
    'the sampler ended (SIGKILL); it is restarted',
  ]);
  t.deepEqual(sampler.abandonedCounts(), { abandoned: 0, hung: 0 });
  const own = '--interval-ms 100 --library none';
  const starts = readFileSync(`${program}.starts`, 'utf8').trimEnd().split('\n');
  t.deepEqual(
    starts,
    [own, `${own} --utilization-cursor 51:1:0:GPU-a`],
    'it goes on where the last line that was used ended',
  );
});

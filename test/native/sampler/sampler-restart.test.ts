// A sampler that continues where another one ended: --utilization-cursor. The GPU is a fake NVML library.
import { spawn } from 'node:child_process';
import { renameSync, rmSync, writeFileSync } from 'node:fs';
import test, { type ExecutionContext } from 'ava';
import { follow, gpuOf } from '../../support/native/listed-processes.ts';
import { eventually } from '../../support/native/node.ts';

function sleeper(t: ExecutionContext): number {
  const child = spawn('sleep', ['1000'], { stdio: 'ignore' });
  t.teardown(() => child.kill('SIGKILL'));
  if (child.pid === undefined) throw new Error('it does not start');
  return child.pid;
}

test('a new sampler counts use since the last one, as far as the driver kept it', async (t) => {
  const pid = sleeper(t);
  const { library, list, use } = gpuOf(t);
  list(pid);
  const startUs = Date.now() * 1000;
  const first = follow(t, library);
  use(0, [pid, 80, startUs]);
  await first.next();
  use(0, [pid, 80, startUs + 1000]);
  const { line } = await first.next();
  const [until] = line.utilizationCursors;
  if (!until) throw new Error('no utilization cursor');
  t.is(line.utilizationCursors.length, 1);
  t.is(until.dayUs, startUs + 1000);
  t.is(until.uuid, line.gpus[0]?.uuid ?? '');
  t.is(until.setUs, 0);
  // It has lived for more than half a second by then.
  use(0, [pid, 4, startUs + 501_000]);
  const [LATER, EARLIER, HOUR] = [60e6, -10_001_000, 3600e6];
  const at = (dayUs: number, bootUs: number, uuid = until.uuid) => `${dayUs}:${bootUs}:0:${uuid}`;
  const cases: [what: string, more: readonly string[], reported: boolean, smUs: number, gaps: number][] = [
    ['it goes on', [at(until.dayUs, until.bootUs)], true, 20_000, 0],
    ['there was no sampler before', [], false, 0, 0],
    ['another GPU', [at(until.dayUs, until.bootUs, 'GPU-other')], false, 0, 0],
    [
      'longer ago than the driver keeps anything',
      [at(until.dayUs + EARLIER, until.bootUs + EARLIER)],
      true,
      400_000,
      1,
    ],
    ['much longer ago', [at(until.dayUs - until.bootUs + 1, 1)], true, 400_000, 1],
    ['a time to come', [at(until.dayUs + LATER, until.bootUs + LATER)], false, 0, 0],
    ['the time of day was set', [at(until.dayUs - HOUR, until.bootUs)], false, 0, 1],
    ['no time of day', [at(1, until.bootUs)], false, 0, 0],
    ['beyond any time', [`${2n ** 64n - 1n}:${until.bootUs}:0:${until.uuid}`], false, 0, 0],
    ...['', '1', '1:2', '1:2:3', '1:2:3:', '1:2:GPU', 'a:2:3:GPU'].map((text): (typeof cases)[number] => [
      `no place to go on from, but '${text}'`,
      [text],
      false,
      0,
      0,
    ]),
    ['one of two', ['1:2:3:', at(until.dayUs, until.bootUs)], true, 20_000, 0],
  ];
  const from = (...more: string[]) =>
    follow(
      t,
      library,
      [],
      more.flatMap((text) => ['--utilization-cursor', text]),
    );
  for (const [what, more, reported, smUs, gaps] of cases) {
    const { gpus, processes } = (await from(...more).next()).sample;
    const found = [gpus[0]?.hasProcessUtilization === true, processes[0]?.gpus[0]?.smUs, gpus[0]?.utilizationGaps];
    t.deepEqual(found, [reported, smUs, gaps], what);
  }
  // Most of that mean is another one's, who had the pid before.
  use(0, [pid, 80, startUs + 501_000]);
  const earlier = from(at(until.dayUs + EARLIER, until.bootUs + EARLIER));
  const young = (await earlier.next()).sample.processes[0]?.gpus[0]?.smUs ?? 0;
  t.true(young >= 501_000 && young < 8_000_000 / 2, `${young} us of one who began a moment ago`);
  // Of a time of day that was set a moment ago the driver may still have rows, which look as if they were to come.
  use(0, [pid, 50, startUs + HOUR]);
  for (const [setUs, reported] of [
    [0, true],
    [until.bootUs, false],
  ] as const) {
    const second = from(`${until.dayUs}:${until.bootUs}:${setUs}:${until.uuid}`);
    t.is((await second.next()).sample.gpus[0]?.hasProcessUtilization === true, reported, `set at ${setUs}`);
  }
});

test('a sampler passes on unused resume points unless its driver was gone', async (t) => {
  const pid = sleeper(t);
  const { library, list, use } = gpuOf(t);
  const nameless = `${library}.nameless`;
  list(pid);
  const first = follow(t, library);
  const startUs = Date.now() * 1000;
  use(0, [pid, 80, startUs]);
  const { line } = await first.next();
  const [until] = line.utilizationCursors;
  if (!until) throw new Error('no utilization cursor');
  const text = `${until.dayUs}:${until.bootUs}:${until.setUs}:${until.uuid}`;
  use(0, [pid, 50, startUs + 100_000]);

  writeFileSync(nameless, '');
  const second = follow(t, library, [], ['--utilization-cursor', text]);
  const unreported = await second.next();
  t.deepEqual(unreported.sample.gpus, [], 'a GPU without a name is ignored');
  t.deepEqual(unreported.line.utilizationCursors, [until]);
  rmSync(nameless);

  renameSync(library, `${library}.away`);
  const third = follow(t, library, [], ['--utilization-cursor', text]);
  const away = await third.next();
  t.regex(away.sample.problem ?? '', /./);
  t.deepEqual(away.line.utilizationCursors, []);
  renameSync(`${library}.away`, library);
  const back = await eventually(async () => {
    const now = await third.next();
    return now.sample.gpus.length > 0 ? now : undefined;
  }, 'a driver is there');
  t.deepEqual([back.sample.gpus[0]?.hasProcessUtilization, back.sample.processes[0]?.gpus[0]?.smUs], [undefined, 0]);
});

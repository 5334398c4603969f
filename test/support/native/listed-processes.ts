// A fake NVML library whose process lists the test writes (test/native/plugins/nvml_from_files.c), and a sampler on it
// that takes a round when the test asks for one.
import { spawn } from 'node:child_process';
import { copyFileSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setImmediate } from 'node:timers/promises';
import { parseLine, type SampleLine } from '../../../src/agent/sampling/line-schema.ts';
import type { Sample } from '../../../src/agent/sampling/sample.ts';
import { sampleReader } from '../product/sample.ts';
import { BUILD, environment, type Teardown, temporaryFolder } from './node.ts';

/** Percent of the SMs, and of memory, encoder and decoder, 0 unless given. */
type UseRow = readonly [
  pid: number,
  percent: number,
  atUs: number,
  memory?: number,
  encoder?: number,
  decoder?: number,
];

export function gpuOf(t: Teardown) {
  const library = join(temporaryFolder(t), 'listed.so');
  copyFileSync(join(BUILD, 'tests/nvml_from_files.so'), library);
  const list = (...pids: number[]) => writeFileSync(`${library}.pids`, pids.join(' '));
  /** Sets the utilization answer: an error of the driver, or rows of PID, percent and time in microseconds. */
  const use = (code: number, ...rows: UseRow[]) =>
    writeFileSync(
      `${library}.uses`,
      [[code], ...rows.map(([pid, percent, atUs, ...others]) => [pid, percent, atUs, ...others, 0, 0, 0].slice(0, 6))]
        .map((row) => row.join(' '))
        .join('\n'),
    );
  /** Sets the process list byte by byte: under which of its names, with what count. */
  const raw = (name: '' | '_v2' | '_v3', code: number, count: number, bytes: Uint8Array) =>
    writeFileSync(
      `${library}.raw`,
      Buffer.concat([Buffer.from(`${name || '-'} ${code} ${count} ${bytes.length}\n`), bytes]),
    );
  /** Sets the GPU's own readings: its memory, and two percentages of its utilization. */
  const reports = (total: bigint, used: bigint, free: bigint, busyPercent: number, memoryBusyPercent: number) =>
    writeFileSync(`${library}.readings`, [total, used, free, busyPercent, memoryBusyPercent].join(' '));
  list();
  return { library, list, use, raw, reports };
}

/**
 * A sampler that takes its first round when it is first asked, and each later one at once when it is asked again, and
 * reads everything in each.
 * `within`: a command that runs the sampler; `more`: further arguments.
 */
export function follow(t: Teardown, library: string, within: readonly string[] = [], more: readonly string[] = []) {
  let intervalMs = 60_000;
  const paces = ['--interval-ms', String(intervalMs), '--utilization-ms', '0', '--readings-ms', '0'];
  const argv = [join(BUILD, 'cotenant-sampler'), ...paces, '--library', library, ...more];
  const [file = '', ...args] = [...within, ...argv];
  const begin = () => {
    const child = spawn(file, args, { stdio: ['pipe', 'pipe', 'inherit'], env: environment({}) });
    t.teardown(() => {
      child.kill('SIGKILL');
    });
    return { child, lines: createInterface({ input: child.stdout })[Symbol.asyncIterator]() };
  };
  let begun: ReturnType<typeof begin> | undefined;
  const read = sampleReader();
  /** A process that started within 10 ms of the list call is listed in the next round only. */
  const pastTick = async () => {
    const tick = () => readFileSync('/proc/uptime', 'utf8').split(' ', 1)[0];
    for (const before = tick(); tick() === before; ) await setImmediate();
  };
  const next = async (): Promise<{ line: SampleLine; sample: Sample }> => {
    await pastTick();
    // A shorter interval begins now.
    if (begun) begun.child.stdin.write(`interval ${--intervalMs}\n`);
    begun ??= begin();
    const { value, done } = await begun.lines.next();
    if (done) throw new Error('the sampler ended');
    const parsed = parseLine(String(value));
    if (!parsed.ok) throw new Error(parsed.error);
    return { line: parsed.value, sample: read(String(value)) };
  };
  const folder = () => `/proc/${begun?.child.pid}`;
  return {
    next,
    /** Calls of read(2) so far. */
    reads: () => Number(/^syscr: (\d+)/m.exec(readFileSync(`${folder()}/io`, 'utf8'))?.[1]),
    descriptors: () => readdirSync(`${folder()}/fd`).map((name) => readlinkSync(`${folder()}/fd/${name}`)),
  };
}
export const handles = (descriptors: readonly string[]) => descriptors.filter((to) => to.includes('pidfd')).length;

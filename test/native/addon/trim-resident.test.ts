// Resident pages of the node binary are released when they are no longer needed, and come back when they are.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import test from 'ava';

const NATIVE = join(import.meta.dirname, '../../../src/agent/os/addon.ts');
const MIB = 2 ** 20;

/** Bytes of the program's own file that are resident in a process, of mappings that it cannot write. */
function residentOfProgram(pid: number | undefined): number {
  let sum = 0;
  let isOfProgram = false;
  for (const line of readFileSync(`/proc/${pid}/smaps`, 'utf8').split('\n')) {
    if (/^[0-9a-f]+-/.test(line)) isOfProgram = line.endsWith(process.execPath) && line.split(' ')[1]?.[1] !== 'w';
    const [, kb] = /^Rss: +(\d+) kB/.exec(line) ?? [];
    if (isOfProgram && kb) sum += Number(kb) * 1024;
  }
  return sum;
}

test("resident pages of the program's own file are released", async (t) => {
  // Between two lines that it writes it waits for one byte: what is resident then is read from outside, for reading it
  // would bring pages back.
  const script = `
    import { readSync, writeSync } from 'node:fs';
    import { loadNative } from ${JSON.stringify(NATIVE)};
    const native = loadNative();
    const work = () => JSON.stringify([...'abc'].map((each, index) => each.repeat(index + 1)).toSorted().reverse());
    const byte = Buffer.alloc(1);
    const say = (value) => { writeSync(1, JSON.stringify(value) + '\\n'); readSync(0, byte); };
    say(work());
    say(native.trimProgramMemory());
    say(work());
    say(native.trimProgramMemory());`;
  const child = spawn(process.execPath, ['--input-type=module-typescript', '-e', script], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  t.teardown(() => child.kill('SIGKILL'));
  const ended = once(child, 'exit');
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => {
    const line = await lines.next();
    if (line.done) throw new Error('the program ended early');
    const resident = residentOfProgram(child.pid);
    child.stdin.write('.');
    return { said: JSON.parse(line.value) as unknown, resident };
  };
  const [before, trimmed, worked, again] = [await next(), await next(), await next(), await next()];
  t.deepEqual(await ended, [0, null]);

  t.true(before.resident > 20 * MIB, `${before.resident}`);
  t.true(Number(trimmed.said) > before.resident / 2, `${trimmed.said} of ${before.resident}`);
  t.true(trimmed.resident < before.resident / 2, `${trimmed.resident} of ${before.resident}`);
  t.is(worked.said, before.said);
  t.true(Number(again.said) < Number(trimmed.said), 'a second time there is less');
});

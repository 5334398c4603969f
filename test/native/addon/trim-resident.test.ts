// Resident pages of the node binary are released when they are no longer needed, and come back when they are.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import test from 'ava';

const NATIVE = join(import.meta.dirname, '../../../src/agent/os/addon.ts');
const MIB = 2 ** 20;

test("resident pages of the program's own file are released", (t) => {
  const script = `
    import { readFileSync } from 'node:fs';
    import { loadNative } from ${JSON.stringify(NATIVE)};
    const ofProgram = () => {
      let sum = 0, isOurs = false;
      for (const line of readFileSync('/proc/self/smaps', 'utf8').split('\\n')) {
        if (/^[0-9a-f]+-/.test(line)) isOurs = line.endsWith(process.execPath) && line.split(' ')[1][1] !== 'w';
        const [, kb] = /^Rss: +(\\d+) kB/.exec(line) ?? [];
        if (isOurs && kb) sum += Number(kb) * 1024;
      }
      return sum;
    };
    const work = () => JSON.stringify([...'abc'].map((each, index) => each.repeat(index + 1)).toSorted().reverse());
    const before = ofProgram(), first = work();
    const letGo = loadNative().trimProgramMemory();
    const after = ofProgram(), second = work();
    const again = loadNative().trimProgramMemory();
    console.log(JSON.stringify({ before, after, letGo, again, first, second }));`;
  const out = execFileSync(process.execPath, ['--input-type=module-typescript', '-e', script], { encoding: 'utf8' });
  const { before, after, letGo, again, first, second } = JSON.parse(out) as Record<string, number>;
  t.true((before ?? 0) > 20 * MIB, `${before}`);
  t.true((letGo ?? 0) > (before ?? 0) / 2, `${letGo} of ${before}`);
  t.true((after ?? 0) < (before ?? 0) / 2, `${after} of ${before}: what was looked at since`);
  t.true((again ?? 0) < (letGo ?? 0), 'a second time there is less');
  t.is(second, first);
});

// Loaded by ava in each test file's process: records the time of the file, so that test/run.ts can print the slowest of
// a layer.
import { appendFileSync, readFileSync } from 'node:fs';
import { relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'ava';

const TICKS_PER_SECOND = 100;
const timesPath = process.env.COTENANT_FILE_TIMES;

/** CPU ticks of this process and of the children that it has waited for. */
const ticks = (): number[] =>
  readFileSync('/proc/self/stat', 'utf8')
    .replace(/^.*\) /s, '')
    .split(' ')
    .slice(11, 15)
    .map(Number);

if (timesPath !== undefined)
  process.on('exit', () => {
    const file = relative(process.cwd(), fileURLToPath(test.meta.file));
    const busy = ticks().reduce((sum, part) => sum + part, 0) / TICKS_PER_SECOND;
    appendFileSync(timesPath, `${process.uptime().toFixed(1)} ${busy.toFixed(1)} ${file}\n`);
  });

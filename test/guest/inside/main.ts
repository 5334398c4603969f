// Runs the checks in the guest, one after the other, and reports each result.
import { setTimeout as delay } from 'node:timers/promises';
import { CHECKS } from './checks.ts';
import { formatResult } from './report.ts';

/** Timeout of one check, so that a check that hangs does not stop the others. */
const LIMIT_MS = 180_000;

for (const { name, run } of CHECKS) {
  const started = performance.now();
  let wrong: string | undefined;
  try {
    const late = delay(LIMIT_MS, undefined, { ref: false }).then(() => {
      throw new Error(`not within ${LIMIT_MS / 1000} s`);
    });
    await Promise.race([run(), late]);
  } catch (error) {
    wrong = error instanceof Error ? (error.stack ?? error.message) : String(error);
  }
  const ms = Math.round(performance.now() - started);
  console.log(formatResult({ name, ms, ...(wrong === undefined ? {} : { wrong }) }));
}
process.exit(0);

// Runs the checks in the guest, one after the other, and says how each went.
import { setTimeout as delay } from 'node:timers/promises';
import { CHECKS } from './checks.ts';
import { formatResult } from './report.ts';

/** Of one check: what waits for ever must not keep the others from their turn. */
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

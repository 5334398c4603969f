// `npm run bench -- [NAME...] [--json] [--quick]`: runs the named benchmarks, or all there are, and prints their rows.
// Owns the names, the command line and what is printed where: rows on standard output, everything else on standard
// error.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { agent } from './agent/agent.ts';
import { nvmlCost } from './agent/nvml-cost.ts';
import { type Bench, withTeardown } from './bench.ts';
import { burst } from './burst/burst.ts';
import { compute } from './compute/compute.ts';
import { extender } from './extender/extender.ts';
import { interposer } from './interposer/interposer.ts';
import { operate } from './operate/operate.ts';
import { placement } from './placement/placement.ts';
import { jsonOf, type Row, tableOf } from './row.ts';
import { restart } from './scale/restart.ts';
import { scale } from './scale/scale.ts';
import { scheduler } from './scheduler/scheduler.ts';
import { scrape } from './scrape/scrape.ts';
import { storms } from './storm/storm.ts';
import { webhook } from './webhook/webhook.ts';

const BENCHES: readonly Bench[] = [
  interposer,
  storms,
  agent,
  nvmlCost,
  scrape,
  webhook,
  extender,
  scheduler,
  scale,
  restart,
  burst,
  compute,
  placement,
  operate,
];
const NAMES = BENCHES.map((bench) => bench.name);
const USAGE = `usage: npm run bench -- [NAME...] [--json] [--quick] [--trace DIR]; names: ${NAMES.join(', ')}`;

/** Bad command lines and names that measure nothing end with this code, before anything is built. */
const REFUSED = 2;

function refuse(text: string): never {
  console.error(text);
  process.exit(REFUSED);
}

function commandLine() {
  try {
    return parseArgs({
      allowPositionals: true,
      options: { json: { type: 'boolean' }, quick: { type: 'boolean' }, trace: { type: 'string' } },
    });
  } catch (error) {
    return refuse(`${(error as Error).message}\n${USAGE}`);
  }
}

const { values, positionals } = commandLine();
const unknown = positionals.filter((name) => !NAMES.includes(name));
if (unknown.length > 0) refuse(`no such benchmark: ${unknown.join(', ')}\n${USAGE}`);

const note = (text: string) => console.error(text);
const chosen = positionals.length === 0 ? BENCHES : BENCHES.filter((bench) => positionals.includes(bench.name));
const make = ['-C', join(import.meta.dirname, '../../native'), '--silent', '--no-print-directory', '-j2', 'bench'];
// Its output goes to standard error: standard output carries rows alone.
if (chosen.some(({ isPure }) => !isPure) && spawnSync('make', make, { stdio: ['ignore', 2, 2] }).status !== 0)
  refuse('the native parts could not be built');

const failed: string[] = [];
const rows: Row[] = [];
for (const bench of chosen) {
  note(`${bench.name}: ${bench.what}`);
  const started = performance.now();
  try {
    const found = await withTeardown((scope) =>
      bench.run(scope, { quick: values.quick ?? false, note, ...(values.trace && { trace: values.trace }) }),
    );
    rows.push(...found);
    if (values.json) for (const row of found) console.log(jsonOf(row));
  } catch (error) {
    failed.push(bench.name);
    note(`${bench.name}: FAILED: ${(error as Error).stack ?? String(error)}`);
  }
  note(`${bench.name}: ${Math.round((performance.now() - started) / 1000)} s`);
}
if (!values.json) console.log(tableOf(rows));
note('Measured on a simulated GPU node or on a driver that does nothing: none of it is a hardware figure.');
if (failed.length > 0) note(`failed: ${failed.join(', ')}`);
process.exit(failed.length === 0 ? 0 : 1);

// Limits that change while programs run under load: usage never exceeds the larger limit, and nothing is freed.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import test from 'ava';
import { BUILD, environment, startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';

const WORKERS = 8;
const [SMALL, LARGE] = [128 * MIB, 2048 * MIB];
const ROUNDS = Math.ceil(40 * Number(process.env.COTENANT_STORM_SHARE ?? 1));

type Resized = {
  granted: number;
  refused: number;
  failed: number;
  wrongBytes: number;
  /** Looks at what all hold together after a shrink; those rounds that began above the new limit; rises above it. */
  samples: number;
  above: number;
  over: number;
};

test(`a grant that shrinks below its usage ${ROUNDS} times is never exceeded anew`, async (t) => {
  t.timeout(240_000);
  const node = await startNode(t, '--gpu', 'l4');
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: WORKERS * context + LARGE }]);
  const args = [join(grant.folder, 'limits'), WORKERS, ROUNDS, context, SMALL, LARGE].map(String);
  // A shell that waits for a line, so that its pid is watched before any process exists.
  const child = spawn('/bin/sh', ['-c', 'read go; exec "$0" "$@"', join(BUILD, 'tests/resizer'), ...args], {
    env: environment({ LD_LIBRARY_PATH: node.lib }, grant.cuda),
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  t.teardown(() => child.kill('SIGKILL'));
  node.control('watch', String(child.pid));
  let output = '';
  child.stdout.on('data', (part: Buffer) => {
    output += part.toString();
  });
  child.stdin.end('go\n');
  const [code] = await once(child, 'close');
  const result = JSON.parse(output) as Resized;
  t.log(result);
  t.is(code, 0);
  const peak = node.usage().groups.find((entry) => entry.root === child.pid)?.gpus[0]?.peak ?? Number.NaN;
  t.true(peak <= WORKERS * context + LARGE, `${peak}`);
  t.is(result.over, 0);
  t.is(result.failed, 0);
  t.is(result.wrongBytes, 0);
  t.true(result.above > ROUNDS / 4, 'the shrink was below what was held');
  t.true(result.samples > 10 * ROUNDS && result.refused > 0 && result.granted > 0);
});

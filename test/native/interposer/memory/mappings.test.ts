// What mapping and unmapping memory costs in a process with few mappings and with many, in instructions counted by
// callgrind.
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { testUnless } from '../../../support/gate.ts';
import { IDLE_CONTEXT_BYTES, idleNode } from '../../../support/native/idle.ts';
import { BUILD, environment, temporaryFolder } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';
import { account } from '../../../support/product/ledger-row.ts';

const CALLS = 500;
const found = spawnSync('valgrind', ['--version']);
const testHere = testUnless(found.status === 0 ? undefined : 'valgrind is not on the PATH');

/** Instructions of the program with so many mappings and so many calls. */
function instructions(t: ExecutionContext, held: number, calls: number): number {
  const grant = makeGrant(t, idleNode, [{ gpu: 0, memoryBytes: 1024 * MIB }]);
  const out = join(temporaryFolder(t), 'out');
  const program = [join(BUILD, 'tests/mappings'), String(held), String(calls)];
  const env = environment({ PATH: process.env.PATH ?? '', LD_LIBRARY_PATH: idleNode.lib }, grant.cuda);
  const ran = spawnSync('valgrind', ['--tool=callgrind', `--callgrind-out-file=${out}`, ...program], {
    env,
    encoding: 'utf8',
  });
  t.is(ran.status, 0, ran.stderr);
  t.is(account(grant).held, BigInt(IDLE_CONTEXT_BYTES), 'every mapping was found: the memory is free again');
  return Number(/^summary: (\d+)/m.exec(readFileSync(out, 'utf8'))?.[1]);
}

testHere('unmapping costs the same with 1,000 and with 40,000 mappings', (t) => {
  t.timeout(300_000);
  const [few, many] = [1000, 40_000].map((held) => (instructions(t, held, CALLS) - instructions(t, held, 0)) / CALLS);
  t.log(`instructions of an unmap and a map: ${few} of 1,000 mappings, ${many} of 40,000`);
  if (few === undefined || many === undefined) throw new Error('not measured');
  t.true(many < few * 1.5, `${few} and ${many}`);
});

// Calls with more arguments than registers, through trampolines that do not know the signature: resolved at the first
// call, direct afterwards, and through a closed gate whose agent has been silent for so long that launches do not wait.
import { execFileSync } from 'node:child_process';
import { closeSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { BUILD, environment } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';

/** The one GPU of test/native/drivers/many_arguments.c. */
const GPU = '11'.repeat(16);
/** Offset of gate and heartbeat_ns in struct cot_limits_page_header (native/shared-memory/limits_page.h). */
const GATE_AT = 28;
const HEARTBEAT_AT = 40;

for (const gate of [0, 1]) {
  test(`arguments and result of each call arrive unchanged, gate ${gate ? 'closed' : 'open'}`, (t) => {
    const node = {
      uuidHex: () => GPU,
      usage: () => ({ gpus: [], clients: [], groups: [] }),
    };
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 64 * MIB }]);
    const page = openSync(join(grant.folder, 'limits'), 'r+');
    writeSync(page, Uint32Array.of(gate), 0, 4, GATE_AT);
    writeSync(page, BigUint64Array.of(0n), 0, 8, HEARTBEAT_AT);
    closeSync(page);
    const env = environment({ LD_LIBRARY_PATH: join(BUILD, 'tests/many_arguments') }, grant.cuda);
    const calls = ['cuFuncGetName 0', 'cuLaunchCooperativeKernelMultiDevice 0'];
    const output = execFileSync(join(BUILD, 'tests/arguments'), { encoding: 'utf8', env });
    t.deepEqual(output.trim().split('\n'), ['cuInit 0', ...calls, ...calls]);
  });
}

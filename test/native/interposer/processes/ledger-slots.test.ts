// Slots of the ledger: every request sums over the used ones, so those of ended processes must not accumulate.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { readyClient } from '../../../support/native/client.ts';
import { startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';

/** Offset of slots_used in struct cot_ledger_header (native/shared-memory/ledger.h). */
const SLOTS_USED_AT = 20;

test('slots of ended processes are reused, those of running ones never', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 20 * context }]);
  const slotsUsed = () => readFileSync(join(grant.folder, 'ledger')).readUInt32LE(SLOTS_USED_AT);
  const lasting = await readyClient(t, node, { preload: grant.cuda });
  await lasting.must(`alloc ${64 * MIB}`);
  for (let number = 0; number < 30; number += 1) {
    const client = await readyClient(t, node, { preload: grant.cuda });
    await client.must(`alloc ${2 * MIB}`);
    await client.kill();
  }
  t.is(slotsUsed(), 8, 'the dead are looked for when eight rows are in use');
  const living = await Promise.all(Array.from({ length: 12 }, () => readyClient(t, node, { preload: grant.cuda })));
  t.true(slotsUsed() >= 13 && slotsUsed() <= 16, `${slotsUsed()} rows for 13 living ones`);
  for (const client of living) await client.must(`alloc ${2 * MIB}`);
  const held = await lasting.ask('info');
  t.is(held[1], 20 * context - 64 * MIB - 12 * 2 * MIB - 13 * context, 'the ledger counts running processes only');
});

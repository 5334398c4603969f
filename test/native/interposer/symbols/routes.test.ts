import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { BUILD, environment, type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant, mountOver } from '../../../support/product/grant.ts';

const GRANT_MIB = 512;
const plugins = [1, 2, 3].map((number) => join(BUILD, `tests/plugin${number}.so`));

/** Look-up route -> total memory in MiB that it reports. */
function totals(
  node: SimulatedNode,
  preload?: string,
  lib = node.lib,
  absolute = join(lib, 'libcuda.so.1'),
): Map<string, number> {
  const env = environment({ LD_LIBRARY_PATH: lib }, preload);
  const output = execFileSync(join(BUILD, 'tests/routes'), [...plugins, absolute], { encoding: 'utf8', env });
  return new Map(
    output
      .trim()
      .split('\n')
      .map((line): [string, number] => {
        const [way = '', mib = ''] = line.split(' ');
        return [way, Number(mib)];
      }),
  );
}

test('the preload form catches 14 of 15 look-up routes; dlmopen escapes', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const whole = node.usable(0) / MIB;
  const plain = totals(node);
  t.is(plain.size, 15);
  for (const [way, mib] of plain) t.is(mib, whole, `${way}, without us`);
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: GRANT_MIB * MIB }]);
  const held = totals(node, grant.cuda);
  t.is(held.size, 15);
  const escaped = [...held].filter(([, mib]) => mib !== GRANT_MIB);
  t.deepEqual(escaped, [['plugin-dlmopen', whole]]);
});

test('the mounted form catches all 15 look-up routes, with and without the preload', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  for (const form of ['mounted', 'both forms']) {
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: GRANT_MIB * MIB }]);
    const mounted = mountOver(t, node, grant);
    const held = totals(node, form === 'mounted' ? undefined : grant.cuda, mounted.lib, mounted.cuda);
    t.is(held.size, 15);
    for (const [way, mib] of held) t.is(mib, GRANT_MIB, `${way}, ${form}`);
    const slots = readFileSync(join(grant.folder, 'ledger')).readUInt32LE(20);
    t.is(slots, 2, `${form}: one for the process and one for the namespace of its own`);
  }
});

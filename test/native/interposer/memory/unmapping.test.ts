// The ledger follows what driver 580.159.04 did on an H100 with ranges that are not one mapping (step mappings.gaps in
// test/gpu/observed): a range with gaps is unmapped, a part of a mapping is refused.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { readyClient } from '../../../support/native/client.ts';
import { startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';

const OBSERVED = join(import.meta.dirname, '../../../gpu/observed/h100-580.159.04.json');
const PIECE = 32 * MIB;
type Case = {
  readonly mapped: string;
  readonly unmapped: readonly [from: number, to: number];
  readonly result: number;
} & {
  readonly gpuBytes: readonly [asMapped: number, after: number];
};
const { steps }: { steps: readonly { id: string; data: Readonly<Record<string, Case>> }[] } = JSON.parse(
  readFileSync(OBSERVED, 'utf8'),
);
const cases = Object.entries(steps.find(({ id }) => id === 'mappings.gaps')?.data ?? {});

test('there are cases', (t) => t.true(cases.length >= 9));

for (const [name, { mapped, unmapped, result, gpuBytes }] of cases) {
  test(`unmapping releases in the ledger what it frees: ${name}`, async (t) => {
    const node = await startNode(t, '--gpu', 'h100');
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 4096 * MIB }]);
    const client = await readyClient(t, node, { preload: grant.cuda });
    const left = async () => (await client.ask('info'))[1] ?? -1;
    const whole = await left();
    // A reservation to map into: that of memory which is gone.
    const [, base = 0, first] = await client.ask(`vmm ${mapped.length * PIECE}`);
    await client.must(`unmap ${base} ${mapped.length * PIECE}`);
    await client.must(`unhandle ${first}`);
    for (const letter of new Set(mapped.replaceAll('.', ''))) {
      const bytes = mapped.split(letter).length * PIECE - PIECE;
      const handle = await client.must(`physical ${bytes}`);
      await client.must(`map ${base + mapped.indexOf(letter) * PIECE} ${bytes} ${handle}`);
      await client.must(`unhandle ${handle}`);
    }
    t.is(whole - (await left()), gpuBytes[0], 'as mapped');
    const [from, to] = unmapped;
    const answer = await client.ask(`unmap ${base + from * PIECE} ${(to - from) * PIECE}`);
    t.is(answer[0], result);
    t.is(whole - (await left()), gpuBytes[1], 'unmapped');
    t.is(
      node.usage().clients[0]?.gpus[0]?.bytes,
      (node.usage().gpus[0]?.contextBytes ?? 0) + gpuBytes[1],
      'the driver',
    );
  });
}

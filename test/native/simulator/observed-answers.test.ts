// Answers that NVIDIA's documents do not give, or give otherwise, as driver 580.159.04 gave them on an H100
// (docs/develop/conformance.md, "What drivers answer otherwise").
import test from 'ava';
import { readyClient } from '../../support/native/client.ts';
import { startNode } from '../../support/native/node.ts';
import { NVML, readyNvml } from '../../support/native/nvml.ts';
import { MIB } from '../../support/product/grant.ts';

const [INVALID_VALUE, NOT_SUPPORTED] = [1, 801];

test('a mapping may go beyond its reservation, but not beyond its memory', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const client = await readyClient(t, node);
  const [result, at = 0, handle] = await client.ask(`vmm ${4 * MIB}`);
  t.is(result, 0);
  await client.must(`unmap ${at} ${4 * MIB}`);
  t.is((await client.ask(`map ${at} ${8 * MIB} ${handle}`))[0], NOT_SUPPORTED, 'beyond the memory');
  t.is((await client.ask(`map ${at} ${MIB} ${handle}`))[0], NOT_SUPPORTED, 'half a granule');
  await client.must(`map ${at + 2 * MIB} ${4 * MIB} ${handle}`);
  t.is((await client.ask(`map ${at + 4 * MIB} ${2 * MIB} ${handle}`))[0], INVALID_VALUE, 'something is mapped there');
  await client.must(`unmap ${at + 2 * MIB} ${4 * MIB}`);
  const next = await client.ask(`vmm ${4 * MIB}`);
  t.is(next[0], 0, 'whose addresses lie behind those');
  t.is((await client.ask(`map ${at + 4 * MIB} ${4 * MIB} ${handle}`))[0], INVALID_VALUE, "into another's reservation");
});

test('an unknown version of the GPU memory structure is no version mismatch', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const nvml = await readyNvml(t, node);
  for (const version of [0, 0x01000028, 0x02000029])
    t.is((await nvml.ask(`memory-second ${version} 0`)).result, NVML.FUNCTION_NOT_FOUND);
});

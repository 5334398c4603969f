// cotenant-calibrate with drivers from 418 on, whose NVML lacks the newer forms of the process list.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import test from 'ava';
import { readyClient } from '../../support/native/client.ts';
import { BUILD, startNode } from '../../support/native/node.ts';
import { MIB } from '../../support/product/grant.ts';

const CONTEXT = 104 * MIB;
const GRANULE = 2 * MIB;
const DRIVERS = [
  '418.226.00',
  '450.248.02',
  '470.256.02',
  '510.108.03',
  '525.147.05',
  '530.41.03',
  '535.86.10',
  '550.54.15',
];

for (const driver of DRIVERS) {
  test(`calibration measures a GPU of driver ${driver}`, async (t) => {
    const node = await startNode(t, '--gpu', 't4', '--driver', driver);
    // Other processes on the GPU: the entry to be read is not the first of the list.
    await readyClient(t, node);
    await readyClient(t, node);
    const libraries = ['--cuda', join(node.lib, 'libcuda.so.1'), '--nvml', join(node.lib, 'libnvidia-ml.so.1')];
    const text = execFileSync(join(BUILD, 'cotenant-calibrate'), libraries, { encoding: 'utf8' });
    const { contextBytes, granuleBytes, usableBytes, driverVersion } = JSON.parse(text);
    t.deepEqual(
      { contextBytes, granuleBytes, usableBytes, driverVersion },
      { contextBytes: CONTEXT, granuleBytes: GRANULE, usableBytes: node.usable(0), driverVersion: driver },
    );
  });
}

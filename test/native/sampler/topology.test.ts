// How GPUs of a simulated node are linked, as the driver says it by NVML's topology and NVLink calls: levels of
// src/api/node-annotation.ts.
import test from 'ava';
import { startNode } from '../../support/native/node.ts';
import { follow, type Sample } from './following.ts';

const linksOf = ({ gpus }: Sample) => gpus.map(({ links }) => links);

test('a sampler reads NVLinks, NVSwitches, PCIe switches and NUMA nodes of GPUs', async (t) => {
  const node = await startNode(
    t,
    ...['--gpu', 'h100,nvswitch=18', '--gpu', 'h100,nvswitch=12', '--gpu', 'v100,numa=1,nvlink=3:2'],
    ...['--gpu', 'v100,numa=1,pcie-switch=1', '--gpu', 'l4,numa=1'],
  );
  const { until } = follow(t, node, 5);
  const first = await until(({ round }) => round === 1, 'the first sample');
  t.deepEqual(linksOf(first), [
    [0, 18, 1, 1, 1],
    [18, 0, 1, 1, 1],
    [1, 1, 0, 8, 5],
    [1, 1, 8, 0, 2],
    [1, 1, 5, 2, 0],
  ]);
  t.deepEqual(
    first.gpus.map(({ numaNodes }) => numaNodes),
    [[0], [0], [1], [1], [1]],
  );
  const calls = first.errors.map(({ call }) => call).filter((call) => /Link|Topology|Affinity/.test(call));
  t.deepEqual(calls, [], 'a GPU without NVLinks is no failure');
});

test('one GPU has no links, and an old driver tells NVLinks and no NUMA nodes', async (t) => {
  const one = follow(t, await startNode(t, '--gpu', 'h100,nvswitch=18'), 1);
  t.deepEqual(linksOf(await one.until(({ round }) => round === 1, 'the first sample')), [undefined]);
  const old = await startNode(t, '--gpu', 'v100,nvlink=1:1', '--gpu', 'v100', '--driver', '418.226.00');
  const first = await follow(t, old, 2).until(({ round }) => round === 1, 'the first sample');
  t.deepEqual(linksOf(first), [
    [0, 7],
    [7, 0],
  ]);
  t.is(first.gpus[0]?.numaNodes, undefined, 'the call came with driver 450');
});

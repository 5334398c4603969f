// A program that asks the decider about many different requests in a large cluster, to be run with a small heap.

import { MIB } from '../../../../src/common/quantity.ts';
import { createAllocations } from '../../../../src/placement/allocations.ts';
import { createDecider } from '../../../../src/scheduler/decisions/filter-and-score.ts';
import { parsedRequest, uuid } from '../cluster.ts';

const allocations = createAllocations();
const nodes = Array.from({ length: 1000 }, (_, index) => `gpu-node-${index}.example.com`);
for (const [index, node] of nodes.entries()) {
  const gpus = Array.from({ length: 8 }, (_, gpu) => ({
    ...{ gpuUuid: uuid(8 * index + gpu), index: gpu, model: 'x', usableBytes: 1000 * MIB, healthy: true },
  }));
  allocations.setNode(node, { mostTenantsPerGpu: 10, gpus });
  const demand = new Map(gpus.map(({ gpuUuid }) => [gpuUuid, { memoryBytes: 900 * MIB, coresPercent: 0, tenants: 1 }]));
  allocations.allocate({ podUid: node, nodeName: node, demand });
}
const decider = createDecider(allocations, 'binpack');
let fits = 0;
for (let mib = 200; mib < 1000; mib += 1) fits += decider.filter(parsedRequest(decider, mib), nodes).feasible.length;
console.log(JSON.stringify({ cached: decider.cached, fits, arrayBytes: process.memoryUsage().arrayBuffers }));

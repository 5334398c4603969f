// Calls of NVML that scrapes cause, counted by a library in the driver's place (test/bench/drivers/counting.c) under a
// real agent. Its sampler rests meanwhile, so that every call that is counted is a scrape's; all that it goes on with
// is to wait for Xids, in a thread of its own that asks anew each second, and those calls are counted apart.
import { closeSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { BUILD, eventually, startNode, type Teardown, temporaryFolder } from '../../support/native/node.ts';
import { startAgent } from '../../support/product/agent.ts';
import type { Row } from '../row.ts';

const SCRAPES = 500;

export async function driverCalls(scope: Teardown): Promise<Row> {
  const node = await startNode(scope, ...Array.from({ length: 8 }, () => ['--gpu', 'h100']).flat());
  const file = join(temporaryFolder(scope), 'calls');
  closeSync(openSync(file, 'w'));
  writeFileSync(file, Buffer.alloc(16));
  const calls = () => Number(readFileSync(file).readBigUInt64LE());
  const agent = await startAgent(scope, node, {
    library: join(BUILD, 'bench/counting/libnvidia-ml.so.1'),
    env: { COTENANT_BENCH_NVML: join(node.lib, 'libnvidia-ml.so.1'), COTENANT_BENCH_CALLS: file },
    settings: { intervalMs: 60_000, silenceMs: 600_000, calibrate: false },
  });
  await eventually(async () => ((await agent.metric('cotenant_up')) === 1 ? true : undefined), 'the first page');
  const perSample = calls();
  if (perSample === 0) throw new Error('the sampler called nothing: the count counts nothing');
  for (let round = 0; round < SCRAPES / 2; round += 1) await Promise.all([agent.metrics(), agent.metrics()]);
  return {
    name: 'scrape.nvml_calls',
    value: calls() - perSample,
    unit: 'calls',
    reference: {
      value: perSample,
      what: `calls of the sampler for its first sample of 8 GPUs; then ${SCRAPES} scrapes`,
    },
    goal: { most: 0 },
  };
}

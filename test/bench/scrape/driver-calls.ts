// Calls of NVML that scrapes cause, counted under a real agent by a library in the driver's place. Its sampler rests
// meanwhile, so that every call that is counted is a scrape's; all that it goes on with is to wait for Xids, in a thread
// of its own that asks anew each second, and those calls are not counted.
import { eventually, startNode, type Teardown } from '../../support/native/node.ts';
import { countNvmlCalls, isWait } from '../../support/native/nvml-calls.ts';
import { startAgent } from '../../support/product/agent.ts';
import type { Row } from '../row.ts';

const SCRAPES = 500;

export async function driverCalls(scope: Teardown): Promise<Row> {
  const node = await startNode(scope, ...Array.from({ length: 8 }, () => ['--gpu', 'h100']).flat());
  const { library, env, read } = countNvmlCalls(scope, node);
  const calls = () => [...read()].reduce((sum, [name, count]) => sum + (isWait(name) ? 0 : count), 0);
  const agent = await startAgent(scope, node, {
    library,
    env,
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

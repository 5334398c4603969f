// What the agent costs as the two processes that the chart makes of it, without types as in the image: the node half without a port, and the exporter half that
// serves what that one tells. On an empty node: what a full one adds is in the rows of one process.
import { startAgent } from '../../support/agent.ts';
import { startExporterHalf } from '../../support/halves.ts';
import { imageHome } from '../../support/image.ts';
import { eventually, type SimulatedNode, type Teardown, temporaryFolder } from '../../support/node.ts';
import type { Row } from '../row.ts';
import { type Cost, costOver } from './process.ts';

/** `env`: as the agent of one process has it, whose cost on the same node is `whole`; `headers`: of a scrape. */
export async function measureHalves(
  scope: Teardown,
  node: SimulatedNode,
  env: Readonly<Record<string, string>>,
  headers: Readonly<Record<string, string>>,
  whole: Cost,
  seconds: number,
): Promise<Row[]> {
  const socket = `${temporaryFolder(scope)}/views.sock`;
  const root = imageHome(scope);
  const half = await startAgent(scope, node, { root, env, settings: { 'page.socket': socket, calibrate: false } });
  // It has no folder in which compiled code would stay.
  const { NODE_COMPILE_CACHE: _, ...bare } = env;
  const exporter = await startExporterHalf(scope, socket, {}, bare, root);
  await eventually(async () => (await exporter.metric('cotenant_up')) === 1 || undefined, 'the first page');
  const scrape = async () => (await exporter.get('/metrics', headers)).arrayBuffer();
  const timer = setInterval(() => void scrape().catch(() => {}), 15_000);
  const [own, served] = await costOver([[half.child.pid ?? 0], [exporter.child.pid ?? 0]], seconds);
  clearInterval(timer);
  await Promise.all([half.stop(), exporter.stop()]);
  if (!own || !served) throw new Error('unreachable');
  const reference = { value: whole.mib, what: "the agent's own process where one process is both halves; empty node" };
  const cores = { value: whole.cores, what: reference.what };
  return [
    { name: 'agent.halves.node.rss_mb', value: own.mib, unit: 'MiB', reference },
    { name: 'agent.halves.exporter.rss_mb', value: served.mib, unit: 'MiB', reference },
    { name: 'agent.halves.node.cpu_core_ratio', value: own.cores, unit: 'cores', reference: cores },
    { name: 'agent.halves.exporter.cpu_core_ratio', value: served.cores, unit: 'cores', reference: cores },
  ];
}

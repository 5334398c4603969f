// Alerts about GPUs and their agent that fire from faults of the hardware, none before, and end when the fault does: an
// agent on a simulated node, scraped by a real Prometheus that has our rules with short times.
import { stringify } from 'yaml';
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { CONFIGURATION, type Configuration } from '../../../dashboards/lib/configuration.ts';
import { testUnless } from '../../support/gate.ts';
import { eventually, startNode } from '../../support/native/node.ts';
import { startAgent } from '../../support/product/agent.ts';
import { prometheusReason, scraping, startPrometheus } from '../../support/services/prometheus.ts';

const testWithPrometheus = testUnless(prometheusReason());

/** The rules as they are, but for their times. */
const SHORT: Configuration = {
  ...CONFIGURATION,
  keepsFiring: '2s',
  // Longer than a busy machine lets an agent wait that is there.
  exporterDown: { for: '20s' },
  gpuMissing: { within: '20s', step: '1s', lasts: '2s' },
  gpuUnhealthy: { lasts: '2s' },
  xid: { withinSeconds: 20 },
  eccUncorrected: { within: '20s' },
  clocksThrottled: { ...CONFIGURATION.clocksThrottled, lasts: '2s' },
};

/** What is done to GPUs of the node, and what undoes it; without: it passes by itself. */
type Fault = {
  readonly does: readonly string[];
  readonly undoes?: readonly string[];
  readonly alerts: readonly string[];
};
const FAULTS: readonly Fault[] = [
  { does: ['lose', '1'], undoes: ['recover', '1'], alerts: ['CotenantGpuUnhealthy'] },
  { does: ['xid', '2', '79'], undoes: ['reset', '2'], alerts: ['CotenantXidCritical'] },
  { does: ['xid', '0', '94'], alerts: ['CotenantXidContained'] },
  { does: ['ecc', '0', 'uncorrected', '2'], alerts: ['CotenantEccUncorrected'] },
  { does: ['rows', '0', 'pending', '1'], undoes: ['rows', '0', 'pending', '0'], alerts: ['CotenantRowRemapPending'] },
  { does: ['rows', '0', 'failed', '1'], undoes: ['rows', '0', 'failed', '0'], alerts: ['CotenantRowRemapFailure'] },
  { does: ['throttle', '0', 'hw-thermal'], undoes: ['throttle', '0', 'none'], alerts: ['CotenantClocksThrottled'] },
  { does: ['hide', '3'], undoes: ['show', '3'], alerts: ['CotenantGpuMissing'] },
];
const NAMES = FAULTS.flatMap(({ alerts }) => alerts);

testWithPrometheus('alerts about hardware fire from their faults, and end with them', async (t) => {
  t.timeout(240_000);
  const node = await startNode(t, ...Array.from({ length: 4 }, () => ['--gpu', 'h100']).flat());
  const agent = await startAgent(t, node, { settings: { intervalMs: 500 } });
  await agent.measured(4);
  const prometheus = await startPrometheus(t, {
    configuration: scraping([agent.url, { instance: 'node-a' }]),
    ruleFiles: { 'alerts.yaml': stringify(alertRules(SHORT)) },
  });
  const fired = new Set<string>();
  const firing = async () => {
    const now = await prometheus.firing();
    for (const name of now) fired.add(name);
    return now;
  };
  const scrapedFor = (count: number) =>
    eventually(
      async () => {
        const now = await firing();
        const found = await prometheus.query(`count_over_time(cotenant_up[1m]) > ${count}`);
        return (found.length > 0 && now.size === 0) || undefined;
      },
      'it was scraped, and nothing fires',
      60_000,
    );
  // Before the first scrape there is no agent.
  await scrapedFor(0);
  fired.clear();
  await scrapedFor(20);
  t.deepEqual([...fired], []);
  for (const { does } of FAULTS) node.control(...does);
  await eventually(
    async () => {
      await firing();
      return NAMES.every((name) => fired.has(name)) || undefined;
    },
    'each of them fires',
    60_000,
  );
  for (const { undoes } of FAULTS) if (undoes) node.control(...undoes);
  await eventually(async () => (await firing()).size === 0 || undefined, 'all of them end', 90_000);
  // What goes with them: a GPU whose processor fell off the bus is unhealthy, too.
  t.deepEqual([...fired].toSorted(), NAMES.toSorted());

  await agent.stop();
  await eventually(async () => (await firing()).has('CotenantExporterDown') || undefined, 'it is noticed', 60_000);
  const port = Number(new URL(agent.url).port);
  await startAgent(t, node, { state: agent.state, settings: { intervalMs: 500, port } });
  await eventually(async () => (await firing()).size === 0 || undefined, 'it is noticed that it is back', 60_000);
  t.deepEqual([...fired].toSorted(), [...NAMES, 'CotenantExporterDown'].toSorted());
});

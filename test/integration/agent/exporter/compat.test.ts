// Other exporters' names on a real page: their boards' queries on a real Prometheus, and what Prometheus' own linter
// has to say about names that are not ours to choose.
import { createRecorder } from '../../../../src/agent/snapshot/history.ts';
import type { Snapshot } from '../../../../src/agent/snapshot/snapshot.ts';
import { createLocalSource } from '../../../../src/agent/snapshot/source.ts';
import { COMPAT_NAMES } from '../../../../src/api/compat-exporters.ts';
import { createMetricsCache } from '../../../../src/exporter/metrics-cache.ts';
import { createExporter } from '../../../../src/exporter/routes.ts';
import { startHttpServer } from '../../../../src/serving/http-server.ts';
import { selfMetrics, serializeMetrics } from '../../../../src/serving/process-metrics.ts';
import { testUnless } from '../../../support/gate.ts';
import { eventually } from '../../../support/native/node.ts';
import { withInstance } from '../../../support/product/snapshots.ts';
import { KNOWN_BOARDS, LABELS_OF_THE_SCRAPE } from '../../../support/services/known-boards.ts';
import { prometheusReason, scraping, startPrometheus } from '../../../support/services/prometheus.ts';
import { checkMetrics, findPromtool } from '../../../support/services/promtool.ts';

/** The example so many seconds later: a share of its totals is used in each of them, and one process is left. */
function after(seconds: number): Snapshot {
  const grown = <T extends { smSeconds: number; memoryBusySeconds: number }>(totals: T): T => ({
    ...totals,
    smSeconds: totals.smSeconds + seconds / 4,
    memoryBusySeconds: totals.memoryBusySeconds + seconds / 8,
  });
  return {
    ...withInstance,
    atMs: withInstance.atMs + 1000 * seconds,
    devices: withInstance.devices.map((device) => ({
      ...device,
      gpu: {
        ...device.gpu,
        ...(device.gpu.pcieSentBytes !== undefined && { pcieSentBytes: device.gpu.pcieSentBytes + 1e6 * seconds }),
      },
    })),
    containers: withInstance.containers.map((one) => ({ ...one, processes: one.processes.slice(0, 1) })),
    containerTotals: withInstance.containerTotals.map(grown),
    assignedTotals: withInstance.assignedTotals.map(grown),
    foreignTotals: withInstance.foreignTotals.map(grown),
  };
}

async function startExporter(t: { teardown(undo: () => Promise<void>): void }) {
  const self = selfMetrics();
  const problems: string[] = [];
  let seconds = 0;
  let snapshot = after(seconds);
  const source = createLocalSource({
    snapshot: () => snapshot,
    history: createRecorder().history,
    own: () => serializeMetrics(self),
  });
  const page = createMetricsCache({
    processes: false,
    compatibility: COMPAT_NAMES.join(','),
    nodeName: 'node-a',
    source,
    log: { info: () => {}, warn: (text) => void problems.push(text) },
  });
  const { close, port } = await startHttpServer(createExporter({ ...source, scrape: page.scrape }), {
    listen: { host: '127.0.0.1', port: 0 },
  });
  t.teardown(async () => {
    await close();
    await page.close();
  });
  const publish = () => {
    seconds += 15;
    snapshot = after(seconds);
  };
  return { port, problems, publish };
}

testUnless(prometheusReason())("every query and variable of other exporters' dashboards has a result", async (t) => {
  t.timeout(180_000);
  const { port, problems, publish } = await startExporter(t);
  const labels = Object.fromEntries(LABELS_OF_THE_SCRAPE.map((label) => [label, 'node-a']));
  const prometheus = await startPrometheus(t, { configuration: scraping([`http://127.0.0.1:${port}`, labels]) });
  await eventually(async () => {
    publish();
    return (await prometheus.query('DCGM_CUSTOM_ILLEGAL_PROCESS_SM_UTIL')).length > 0 || undefined;
  }, 'it is scraped, until there are rates');
  // All of each variable, as Grafana sends it.
  const sent = (text: string) => text.replace(/\$\w+/g, '.+');
  const asked = KNOWN_BOARDS.flatMap(({ from, queries, variables }) => [
    ...queries.map((query) => ({ what: `${from}: ${query}`, answer: () => prometheus.query(sent(query)) })),
    ...variables.map(([selector, label]) => ({
      what: `${from}: ${label} of ${selector}`,
      answer: () => prometheus.values(label, sent(selector)),
    })),
  ]);
  t.true(asked.length > 50, String(asked.length));
  // Each once: a scrape that comes late leaves a second without any series.
  let silent = asked;
  await eventually(async () => {
    publish();
    const answers = await Promise.all(silent.map(({ answer }) => answer()));
    silent = silent.filter((_, index) => answers[index]?.length === 0);
    return silent.length === 0 || undefined;
  }, 'each has had an answer').catch(() =>
    t.deepEqual(
      silent.map(({ what }) => what),
      [],
    ),
  );
  t.deepEqual(await prometheus.query('DCGM_FI_DEV_NOTHING'), [], 'what is not there has no answer');
  t.deepEqual(problems, []);
});

/** promtool's words about names, and which names it says them about; of labels, of all that DCGM and ACK have. */
const COMPLAINTS: Readonly<Record<string, readonly string[]>> = {
  'counter metrics should have "_total" suffix': ['DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION'],
  "metric names should be written in 'snake_case' not 'camelCase'": [
    'HostCoreUtilization',
    'HostGPUMemoryUsage',
    'MigInfo',
    'vGPU_device_memory_limit_in_bytes',
    'vGPU_device_memory_usage_in_bytes',
  ],
  'non-counter metrics should not have "_total" suffix': ['metagpu_device_memory_total'],
  'non-histogram and non-summary metrics should not have "_count" suffix': ['hami_gpu_shared_count'],
};
const OF_LABELS = "label names should be written in 'snake_case' not 'camelCase'";

const promtool = findPromtool();
testUnless('reason' in promtool ? promtool.reason : undefined)(
  'promtool complains only about names of other exporters',
  async (t) => {
    const { port } = await startExporter(t);
    const page = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
    const said = Map.groupBy(checkMetrics(page).said.trim().split('\n'), (line) => line.replace(/^\S+ /, ''));
    const complaints = Object.fromEntries(
      [...said].map(([words, lines]) => [
        words,
        [...new Set(lines.map((line) => line.split(' ')[0] ?? ''))].toSorted(),
      ]),
    );
    const withCamels = [...new Set([...page.matchAll(/^(DCGM_\w+)\{/gm)].map(([, name]) => name))].toSorted();
    t.true(withCamels.length > 25, String(withCamels.length));
    t.deepEqual(complaints, { ...COMPLAINTS, [OF_LABELS]: withCamels });
  },
);

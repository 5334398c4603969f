// What a real Prometheus makes of the page: in OpenMetrics, with every family there is. What boards of other exporters
// find on it is in compat.test.ts.
import test from 'ava';
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
import { exampleSnapshot } from '../../../support/product/snapshots.ts';
import { prometheusReason, scraping, startPrometheus } from '../../../support/services/prometheus.ts';

async function startExporter(t: { teardown(undo: () => Promise<void>): void }) {
  const self = selfMetrics();
  let snapshot: Snapshot | undefined;
  const source = createLocalSource({
    snapshot: () => snapshot,
    history: createRecorder().history,
    own: () => serializeMetrics(self),
  });
  const problems: string[] = [];
  const page = createMetricsCache({
    processes: true,
    compatibility: COMPAT_NAMES.join(','),
    nodeName: 'node-a',
    source,
    log: { info: () => {}, warn: (text) => void problems.push(text) },
  });
  const exporter = createExporter({ ...source, scrape: page.scrape });
  const { close, port } = await startHttpServer(exporter, { listen: { host: '127.0.0.1', port: 0 } });
  t.teardown(async () => {
    await close();
    await page.close();
  });
  const publish = () => {
    snapshot = { ...exampleSnapshot };
  };
  return { port, problems, publish };
}

const OPEN = 'application/openmetrics-text; version=1.0.0';

test('scrapers that ask for OpenMetrics get it, others the text format', async (t) => {
  const { port, publish } = await startExporter(t);
  const get = async (accept: string) => {
    const answer = await fetch(`http://127.0.0.1:${port}/metrics`, { headers: { accept } });
    return { type: answer.headers.get('content-type'), vary: answer.headers.get('vary'), text: await answer.text() };
  };
  t.regex((await get(OPEN)).text, /\n# EOF\n$/, 'before the first page, too');
  publish();
  const first = await get(OPEN);
  t.is(first.type, 'application/openmetrics-text; version=1.0.0; charset=utf-8');
  t.is(first.vary, 'Accept, Accept-Encoding');
  t.regex(first.text, /\n# EOF\n$/);
  t.is((await get(OPEN)).text, first.text);
  const plain = await get('*/*');
  t.is(plain.type, 'text/plain; version=0.0.4; charset=utf-8');
  t.notRegex(plain.text, /# EOF/);
  publish();
  const next = await eventually(async () => {
    const found = await get(OPEN);
    return found.text === first.text ? undefined : found;
  }, 'the next page');
  t.regex(next.text, /\n# EOF\n$/);
});

const reason = prometheusReason();
testUnless(reason)('Prometheus reads the OpenMetrics page with every metric', async (t) => {
  t.timeout(180_000);
  const { port, problems, publish } = await startExporter(t);
  publish();
  const prometheus = await startPrometheus(t, { configuration: scraping([`http://127.0.0.1:${port}`]) });
  await eventually(async () => {
    const [up] = await prometheus.query('up{job="cotenant"}');
    return up?.value === 1 || undefined;
  }, 'it is scraped');
  t.is((await prometheus.query('sum by (fence) (last_over_time(cotenant_container_info[1m]))')).length, 2);
  const types = (await (
    await fetch(`${prometheus.url}/api/v1/metadata?metric=cotenant_container_sm_seconds`)
  ).json()) as {
    data: Record<string, { type: string }[]>;
  };
  // Under this name it is only in OpenMetrics.
  t.is(types.data.cotenant_container_sm_seconds?.[0]?.type, 'counter');
  t.deepEqual(problems, []);
});

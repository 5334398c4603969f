// The two formats of the metrics page, and which one a scraper gets.
import test from 'ava';
import { COMPAT_NAMES } from '../../../src/api/compat-exporters.ts';
import { acceptedFormat } from '../../../src/exporter/accept.ts';
import { processes } from '../../../src/exporter/collectors/process.ts';
import { compatCollectors } from '../../../src/exporter/compat/index.ts';
import { COLLECTORS, createRenderer, type Format } from '../../../src/exporter/render.ts';
import { exampleSnapshot } from '../../support/product/snapshots.ts';

test('both formats have the same series', async (t) => {
  const render = createRenderer(COLLECTORS);
  const samples = async (format: Format) =>
    (await render(exampleSnapshot, format)).text
      .split('\n')
      .filter((line) => line !== '' && !line.startsWith('#') && !/^cotenant_exporter_\w+_duration_seconds/.test(line));
  t.deepEqual(await samples('openmetrics'), await samples('text'));
  t.true((await samples('text')).length > 100);
});

test('no help has a quotation mark, which prom-client does not escape', (t) => {
  for (const { metrics } of [...COLLECTORS, processes, ...compatCollectors(COMPAT_NAMES.join(','), { nodeName: '' })])
    for (const [name, { help }] of Object.entries(metrics)) t.regex(help, /^[A-Z0-9][^"\n\\]*\.$/, name);
});

test('a scraper gets OpenMetrics if it prefers it', (t) => {
  const cases: [accept: string | undefined, open: boolean][] = [
    [undefined, false],
    ['*/*', false],
    ['text/html,application/xhtml+xml,*/*;q=0.8', false],
    ['text/plain;version=0.0.4', false],
    ['application/openmetrics-text', true],
    ['application/openmetrics-text; version=1.0.0', true],
    ['application/openmetrics-text;version=2.0.0', false],
    ['application/openmetrics-text;q=0', false],
    ['application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.6', false],
    // Prometheus 2.42 and 3
    [
      'application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1',
      true,
    ],
    [
      'application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.4,*/*;q=0.2',
      true,
    ],
  ];
  for (const [accept, open] of cases) t.is(acceptedFormat(accept), open ? 'openmetrics' : 'text', accept ?? 'none');
});

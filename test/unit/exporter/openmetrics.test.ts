// The page as OpenMetrics, and who gets it.
import test from 'ava';
import { toOpenMetrics, wantsOpenMetrics } from '../../../src/exporter/format/openmetrics.ts';
import { createPage, FAMILIES } from '../../../src/exporter/render.ts';
import { exampleSnapshot } from '../../support/snapshots.ts';

test('counters lose their ending where they are described and keep it where they are counted; units and the end are told', (t) => {
  const text = [
    '# HELP a_seconds_total Time "as" told.',
    '# TYPE a_seconds_total counter',
    'a_seconds_total{x="# TYPE y counter"} 1.5',
    '',
    '# HELP b_bytes Bytes.',
    '# TYPE b_bytes gauge',
    'b_bytes 3',
    '# HELP UPPER_COUNT No ending.',
    '# TYPE UPPER_COUNT counter',
    'UPPER_COUNT 4',
    '# HELP h_seconds A histogram.',
    '# TYPE h_seconds histogram',
    'h_seconds_bucket{le="+Inf"} 1',
    'h_seconds_sum Nan',
    'h_seconds_count 1',
    '',
  ].join('\n');
  t.is(
    toOpenMetrics(text),
    [
      '# TYPE a_seconds counter',
      '# UNIT a_seconds seconds',
      '# HELP a_seconds Time \\"as\\" told.',
      'a_seconds_total{x="# TYPE y counter"} 1.5',
      '# TYPE b_bytes gauge',
      '# UNIT b_bytes bytes',
      '# HELP b_bytes Bytes.',
      'b_bytes 3',
      '# TYPE UPPER_COUNT unknown',
      '# HELP UPPER_COUNT No ending.',
      'UPPER_COUNT 4',
      '# TYPE h_seconds histogram',
      '# HELP h_seconds A histogram.',
      'h_seconds_bucket{le="+Inf"} 1',
      'h_seconds_sum NaN',
      'h_seconds_count 1',
      '# EOF',
      '',
    ].join('\n'),
  );
});

test('no sample of the page is lost or changed', async (t) => {
  const { text } = await createPage(FAMILIES)(exampleSnapshot);
  const samples = (page: string) => page.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  t.deepEqual(samples(toOpenMetrics(text)), samples(text));
  t.true(samples(text).length > 100);
});

test('it is given to whoever likes it at least as much as the text', (t) => {
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
  for (const [accept, open] of cases) t.is(wantsOpenMetrics(accept), open, accept ?? 'none');
});

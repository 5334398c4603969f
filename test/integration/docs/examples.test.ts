// The examples that run without a cluster: the script on a simulated GPU, and Prometheus' own check of its
// configuration, and of the query by which replicas scale.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'ava';
import { parse } from 'yaml';
import { ROOT, readPage } from '../../support/docs.ts';
import { testUnless } from '../../support/gate.ts';
import { findPromtool } from '../../support/services/promtool.ts';

const promtool = findPromtool();

test('the script shows a grant as the GPU and ends at the grant', (t) => {
  t.timeout(120_000);
  const { status, stdout, stderr } = spawnSync('sh', ['examples/one-machine/share.sh'], {
    cwd: ROOT,
    encoding: 'utf8',
    timeout: 100_000,
  });
  t.is(status, 0, stderr);
  for (const [grant, mib] of [
    ['2Gi', 2048],
    ['512Mi', 512],
  ] as const) {
    const [, shown, got, error] =
      new RegExp(
        `a grant of ${grant}:\\nGPU memory: (\\d+) MiB, .*\\nallocated (\\d+) MiB, then cuMemAlloc answered (\\d+) `,
      ).exec(stdout) ?? [];
    t.is(Number(shown), mib, stdout);
    t.true(Number(got) > 0 && Number(got) < mib, stdout);
    t.is(Number(error), 2);
  }
});

testUnless('reason' in promtool ? promtool.reason : undefined)('promtool accepts the scrape configuration', (t) => {
  t.timeout(180_000);
  const file = join(ROOT, 'examples/prometheus/prometheus.yaml');
  const { status, stderr } = spawnSync('path' in promtool ? promtool.path : '', ['check', 'config', file], {
    encoding: 'utf8',
  });
  t.is(status, 0, stderr);
});

/** As HorizontalPodAutoscaler and KEDA have it for an average value: the sum over the threshold, rounded up. */
testUnless('reason' in promtool ? promtool.reason : undefined)(
  'the query for KEDA gives as many replicas as its threshold wants',
  (t) => {
    t.timeout(180_000);
    const { metadata } = parse(readPage('examples/autoscaling/keda.yaml')).spec.triggers[0];
    const folder = mkdtempSync(join(tmpdir(), 'cotenant-keda-'));
    t.teardown(() => rmSync(folder, { recursive: true }));
    const series = (name: string, labels: string, value: number) => ({
      series: `cotenant_container_sm_${name}{namespace="default",container="main",mode="shared",${labels}}`,
      values: `${value}`,
    });
    // Two replicas use 0.2 of their quarter, one with two GPUs half of each, one without a share 0.4 of its GPU.
    const quarters = ['a', 'b'].map((pod) => `pod="server-${pod}",gpu="0",gpu_uuid="x"`);
    const gpus = ['0', '1'].map((gpu) => `pod="server-c",gpu="${gpu}",gpu_uuid="${gpu}"`);
    const whole = 'pod="server-d",gpu="2",gpu_uuid="z"';
    const others = 'pod="other-e",gpu="2",gpu_uuid="z"';
    const input = [
      ...quarters.flatMap((of) => [
        series('utilization_ratio', of, 0.2),
        series('limit_ratio', `${of},enforced="true"`, 0.25),
      ]),
      ...gpus.flatMap((of) => [
        series('utilization_ratio', of, 0.25),
        series('limit_ratio', `${of},enforced="true"`, 0.5),
      ]),
      ...[whole, others].map((of) => series('utilization_ratio', of, 0.4)),
    ];
    const wanted = 0.8 + 0.8 + 0.5 + 0.4;
    const tests = {
      tests: [
        {
          interval: '1m',
          input_series: input,
          promql_expr_test: [
            {
              expr: `round(${metadata.query}, 0.001)`,
              eval_time: '0m',
              exp_samples: [{ labels: '{}', value: wanted }],
            },
            {
              expr: `ceil(round(${metadata.query}, 0.001) / ${metadata.threshold})`,
              eval_time: '0m',
              exp_samples: [{ labels: '{}', value: 4 }],
            },
          ],
        },
      ],
    };
    writeFileSync(join(folder, 'tests.yaml'), JSON.stringify(tests));
    const { status, stdout, stderr } = spawnSync(
      'path' in promtool ? promtool.path : '',
      ['test', 'rules', join(folder, 'tests.yaml')],
      { encoding: 'utf8' },
    );
    t.is(status, 0, `${stdout}${stderr}`);
    // prometheus-adapter's rule is the same for one pod.
    const rule: string = parse(readPage('examples/autoscaling/adapter.yaml')).rules.custom[0].metricsQuery;
    const selector = '{namespace="default", pod=~"server-.*"}';
    t.is(
      `sum(${rule.replaceAll('{<<.LabelMatchers>>}', selector).replace('<<.GroupBy>>', 'pod')})`.replaceAll(' ', ''),
      metadata.query.replaceAll(' ', ''),
    );
  },
);

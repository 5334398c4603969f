// The examples that run without a cluster: the script on a simulated GPU, and Prometheus' own check of its
// configuration.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import test from 'ava';
import { ROOT } from '../../support/docs.ts';
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
  t.timeout(60_000);
  const file = join(ROOT, 'examples/prometheus/prometheus.yaml');
  const { status, stderr } = spawnSync('path' in promtool ? promtool.path : '', ['check', 'config', file], {
    encoding: 'utf8',
  });
  t.is(status, 0, stderr);
});

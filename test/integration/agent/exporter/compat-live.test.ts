// Other exporters' names on the page of a real agent, whose figures come from the driver: their boards' queries on a
// real Prometheus.
import { mkdirSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { COMPAT_NAMES } from '../../../../src/api/compat-exporters.ts';
import { testUnless } from '../../../support/gate.ts';
import { groupHome } from '../../../support/machine/cgroups.ts';
import { startClient } from '../../../support/native/client.ts';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';
import { KNOWN_BOARDS, LABELS_OF_THE_SCRAPE } from '../../../support/services/known-boards.ts';
import { prometheusReason, scraping, startPrometheus } from '../../../support/services/prometheus.ts';

const groups = groupHome();

function removed(group: string): boolean {
  try {
    rmdirSync(group);
    return true;
  } catch {
    return false;
  }
}

testUnless(prometheusReason() ?? ('reason' in groups ? groups.reason : undefined))(
  "other exporters' dashboards have values from a real agent",
  async (t) => {
    t.timeout(120_000);
    const node = await startNode(t, '--gpu', 'h100');
    const agent = await startAgent(t, node, {
      settings: { intervalMs: 500, computePolicy: 'fixed', compatibilityMetrics: COMPAT_NAMES.join(',') },
    });
    await agent.measured(1);
    node.control('activity', '0', 'tensor', '50');
    const tenant = runTenant(
      t,
      node,
      agent,
      ['--gpu-memory', '4Gi', '--gpu-cores', '50', '--name', 'train'],
      [join(BUILD, 'tests/client')],
    );
    // A process in a container without a grant.
    const group = join('home' in groups ? groups.home : '', `docker-${'f1'.repeat(32)}.scope`);
    mkdirSync(group, { recursive: true });
    t.teardown(() => eventually(() => removed(group) || undefined, 'the cgroup is empty'));
    const stranger = startClient(t, node);
    writeFileSync(join(group, 'cgroup.procs'), String(stranger.pid));
    for (const command of ['init', 'context 0', `alloc ${1024 * MIB}`])
      t.is((await tell(tenant, command))[0], 0, command);
    for (const command of ['init', 'context 0', `alloc ${512 * MIB}`]) await stranger.must(command);
    const labels = Object.fromEntries(LABELS_OF_THE_SCRAPE.map((label) => [label, 'node-a']));
    const prometheus = await startPrometheus(t, { configuration: scraping([agent.url, labels]) });
    const sent = (text: string) => text.replace(/\$\w+/g, '.+');
    const asked = KNOWN_BOARDS.flatMap(({ from, queries }) => queries.map((query) => ({ from, query: sent(query) })));
    t.true(asked.length > 50, String(asked.length));
    let silent = asked;
    await eventually(
      async () => {
        await Promise.all([tell(tenant, 'load plain 400 1000'), stranger.ask('load plain 400 1000')]);
        const answers = await Promise.all(silent.map(({ query }) => prometheus.query(query)));
        silent = silent.filter((_, index) => answers[index]?.length === 0);
        return silent.length === 0 || undefined;
      },
      'every query has had an answer',
      60_000,
    ).catch(() => t.deepEqual(silent, []));

    const value = async (query: string) => (await prometheus.query(`last_over_time(${query}[1m])`))[0]?.value;
    const held = (await agent.metric('cotenant_container_memory_used_bytes', { pod: 'train' })) ?? 0;
    t.true(held > 1024 * MIB);
    for (const [query, want] of [
      ['metagpu_process_memory_usage{pod_name="train"}', held / MIB],
      ['hami_vgpu_memory_used_bytes{pod="train"}', held],
      ['vGPU_device_memory_usage_in_bytes{podname="train"}', held],
    ] as const)
      t.is(await value(query), want, query);
  },
);

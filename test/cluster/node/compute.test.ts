// Compute shares on a real cluster: policies from a Node's label and pods' annotations, changed while pods compute and
// visible in all outputs. A pod that would overcommit a GPU is refused, and a container that exceeds its share past the
// gate is stopped.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { ExecutionContext } from 'ava';
import { readSnapshot } from '../../../src/cli/lib/agent-client.ts';
import { nodeLines } from '../../../src/cli/output/node-table.ts';
import { BUILD, type NodeUsage } from '../../support/native/node.ts';
import { seriesOf } from '../../support/product/agent.ts';
import type { Bed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { NODE_NAME } from '../bed/node.ts';
import { WHOLE_VALUES } from '../bed/whole.ts';
import { cotenant, TEAM } from '../pod-lifecycle/common.ts';
import {
  type Amounts,
  clientOf,
  containerOf,
  eventsOf,
  namespaceOf,
  podOf,
  rogueOf,
  untilPod,
  untilRunning,
} from '../support/pods.ts';
import { agentPage } from '../support/release.ts';
import { testsOnWhole } from '../support/shared.ts';

const LABEL = 'cotenant.io/compute-policy';
const onCluster = testsOnWhole(['l4', 'a10'], {
  agent: {
    configuration: {
      ...WHOLE_VALUES.agent.configuration,
      enforcement: { shareSeconds: 20, softSeconds: 4 },
    },
  },
  webhook: {
    replicas: 1,
    configuration: { ...WHOLE_VALUES.webhook.configuration, annotationWriters: ['admin'] },
  },
});

/** Computes without end. */
const WORK = ['init', 'context 0', 'load async 3600000 2000'];
const share = (percent: number): Amounts => ({ 'cotenant.io/gpu-memory': '1Gi', 'cotenant.io/gpu-cores': percent });

const stateOf = (bed: Bed): string => join(bed.folder, 'host/_var_lib_cotenant');

async function pidOf(bed: Bed, pod: string): Promise<number> {
  const look = async () =>
    (await readSnapshot(stateOf(bed))).containers.find((one) => one.pod === pod)?.processes[0]?.pid;
  return eventually(look, `${pod} is seen at work`);
}

/** Percent of a GPU that these had over two seconds, from the simulated node's usage. */
async function sharesOf(bed: Bed, pids: readonly number[]): Promise<readonly number[]> {
  const ranMs = (): readonly number[] => {
    const text = execFileSync(join(BUILD, 'cotenant-simulator'), ['usage', '--dir', join(bed.folder, 'gpu')]);
    const { clients } = JSON.parse(String(text)) as NodeUsage;
    return pids.map(
      (one) => clients.find(({ pid }) => pid === one)?.gpus.reduce((sum, { smNs }) => sum + smNs / 1e6, 0) ?? 0,
    );
  };
  const [from, before] = [performance.now(), ranMs()];
  await delay(2000);
  const after = ranMs();
  return after.map((sum, index) => (100 * (sum - (before[index] ?? 0))) / (performance.now() - from));
}

const isDue = (share: number, percent: number): boolean => share <= percent + 3 && share >= 0.7 * percent;

/** All have their shares in one window: never more, and less only by what a busy machine costs. */
async function hold(
  t: ExecutionContext,
  bed: Bed,
  pids: readonly number[],
  percents: readonly number[],
): Promise<void> {
  const seen: string[] = [];
  const met = async () => {
    const shares = await sharesOf(bed, pids);
    seen.push(shares.map((one) => one.toFixed(0)).join('/'));
    return shares.every((one, index) => isDue(one, percents[index] ?? 0)) || undefined;
  };
  const held = await eventually(met, `${percents.join('/')} %`).catch(() => false);
  t.true(held, `${percents.join('/')}: ${seen.join(' ')}`);
  t.log(`${percents.join('/')}: ${seen.join(' ')}`);
}

const metricIs = (bed: Bed, name: string, labels: Record<string, string>, value: number | undefined) =>
  eventually(
    async () => {
      const page = await agentPage(bed);
      return page !== undefined && seriesOf(page, name, labels) === value ? true : undefined;
    },
    `${name} ${JSON.stringify(labels)} is ${value}`,
  );
const policyIs = (bed: Bed, pod: string, policy: string) =>
  metricIs(bed, 'cotenant_container_compute_policy', { pod, policy }, 1);

function label(bed: Bed, policy: string | undefined): void {
  const { code, err } = bed.kubectl(
    'label',
    'node',
    NODE_NAME,
    '--overwrite',
    policy === undefined ? `${LABEL}-` : `${LABEL}=${policy}`,
  );
  if (code !== 0) throw new Error(err);
}

const rowOf = (text: string, pod: string): string =>
  text
    .split('\n')
    .find((line) => ` ${line}`.includes(` ${pod}`))
    ?.replaceAll(/ +/g, ' ') ?? '';
/** The share as `cotenant inspect` shows it for the node. */
const topOf = async (bed: Bed, pod: string): Promise<string> =>
  rowOf(nodeLines(await readSnapshot(stateOf(bed))).join('\n'), `${TEAM.namespace}/${pod}/`);

onCluster('compute policies come from labels and annotations and change under load', async (t, { bed, uuids }) => {
  const [gpu = '', other = ''] = uuids;
  bed.apply(namespaceOf('team'));
  const on = (gpuUuid: string, more: Record<string, string> = {}) => ({
    ...TEAM,
    annotations: { 'cotenant.io/gpu-uuid': gpuUuid, ...more },
  });
  bed.apply(
    podOf('dodger', [rogueOf(share(25), WORK)], on(other, { [LABEL]: 'fixed' })),
    podOf('one', [clientOf(share(30), WORK)], on(gpu)),
    podOf('two', [clientOf(share(30), WORK)], on(gpu)),
    podOf('capped', [clientOf(share(10), WORK)], on(gpu, { [LABEL]: '3' })),
  );
  for (const name of ['one', 'two', 'capped', 'dodger']) await untilRunning(bed, name, TEAM);
  const pids = [await pidOf(bed, 'one'), await pidOf(bed, 'two'), await pidOf(bed, 'capped')];

  await policyIs(bed, 'one', 'fixed');
  label(bed, 'native');
  await policyIs(bed, 'one', 'native');
  await policyIs(bed, 'capped', 'fixed');
  label(bed, 'fixed');
  await policyIs(bed, 'one', 'fixed');
  await metricIs(bed, 'cotenant_device_compute_policy', { gpu_uuid: gpu, policy: 'fixed', source: 'label' }, 1);
  await hold(t, bed, pids, [30, 30, 10]);
  await metricIs(bed, 'cotenant_container_sm_limit_effective_ratio', { pod: 'one' }, 0.3);
  t.regex(await topOf(bed, 'one'), /\/30 fixed interposer enforce \w+ within$/);
  const listed = cotenant(bed, 'get', '-n', 'team');
  t.regex(listed, new RegExp(`${NODE_NAME} +all +fixed +label`));
  t.regex(rowOf(listed, 'team/one/main'), / the GPU's normal 30 30% - - - enforce node$/);
  t.regex(rowOf(listed, 'team/capped/main'), / fixed normal 10 10% - - - enforce node$/);

  cotenant(bed, 'set', 'team/one', '--gpu-cores', '60');
  await metricIs(bed, 'cotenant_container_sm_limit_effective_ratio', { pod: 'one' }, 0.6);
  await hold(t, bed, pids, [60, 30, 10]);
  t.regex(await topOf(bed, 'one'), /\/60 fixed interposer enforce \w+ within$/);
  t.regex(rowOf(cotenant(bed, 'get', '-n', 'team'), 'team/one/main'), / 60 60% - - - enforce node$/);

  cotenant(bed, 'set', 'team/one', '--gpu-cores', '90');
  const refusals = async () =>
    (await eventsOf(bed, 'one', 'team')).filter(({ reason }) => reason === 'GPUComputeChangeRefused');
  const [refusal] = await eventually(
    async () => [await refusals()].find((found) => found.length > 0),
    'the pod has an Event',
  );
  t.regex(
    refusal?.message ?? '',
    new RegExp(
      `^annotation cotenant.io/compute is not applied: ${gpu} has 60 % of its compute left for the pod, but 90 % are requested$`,
    ),
  );
  for (const value of ['a', 'b']) {
    const { code, err } = bed.kubectl('-n', 'team', 'label', 'pod', 'one', '--overwrite', `x=${value}`);
    t.is(code, 0, err);
  }
  await metricIs(bed, 'cotenant_container_sm_limit_effective_ratio', { pod: 'one' }, 0.6);

  label(bed, 'weighted');
  await policyIs(bed, 'one', 'weighted');
  label(bed, 'fair');
  await policyIs(bed, 'one', 'fixed');
  cotenant(bed, 'set', '--node', NODE_NAME, '--policy', 'soft');
  await policyIs(bed, 'one', 'soft');
  cotenant(bed, 'set', 'team/two', '--policy', 'fixed');
  await policyIs(bed, 'two', 'fixed');
  bed.kubectl('-n', 'team', 'delete', 'pod', 'capped', '--wait=false');
  await hold(t, bed, pids.slice(0, 2), [70, 30]);
  cotenant(bed, 'set', 'team/two', '--policy', 'default');
  await policyIs(bed, 'two', 'soft');
  label(bed, undefined);
  await policyIs(bed, 'one', 'fixed');
  t.is((await refusals()).length, 1, 'one Event');

  const stopped = await untilPod(
    bed,
    'dodger',
    'was stopped',
    (pod) => containerOf(pod)?.lastState.terminated !== undefined,
    TEAM,
  );
  const sentence =
    /^team\/dodger\/main exceeds its GPU compute share: \d+ % of 25 % on GPU-\S+ over [2-9]\d s, and launches kernels past its closed gate; the agent stops it$/;
  t.regex(containerOf(stopped)?.lastState.terminated?.message ?? '', sentence);
  const events = (await eventsOf(bed, 'dodger', 'team')).filter(({ reason }) => reason === 'GPUComputeQuotaExceeded');
  t.true(
    events.some(({ message }) => sentence.test(message)),
    JSON.stringify(events),
  );
  const kills = seriesOf((await agentPage(bed)) ?? '', 'cotenant_container_kills_total', {
    action: 'kill',
    reason: 'over-share',
  });
  t.is(kills, 1, 'no other container');
});

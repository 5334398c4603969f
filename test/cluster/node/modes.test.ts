// What is changed on running pods from the cluster: their memory, and the enforcement mode set by namespace, pod and administrator, with a driver that has memory limits for cgroups: in
// enforce mode the driver refuses a container beyond its grant by any path, in report mode it does not.
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { testUnless } from '../../support/gate.ts';
import { BUILD } from '../../support/native/node.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { BUILD_MS } from '../../support/services/helm.ts';
import type { User } from '../bed/api.ts';
import type { Bed } from '../bed/bed.ts';
import { containerProcesses } from '../bed/cgroups.ts';
import { eventually } from '../bed/eventually.ts';
import { NODE_NAME } from '../bed/node.ts';
import { NAMESPACE } from '../bed/product.ts';
import { startWhole, WHOLE_VALUES, type Whole, wholeTools } from '../bed/whole.ts';
import { cotenant, refusedBy } from '../pod-lifecycle/common.ts';
import { lookAtPermissions } from '../support/permissions.ts';
import {
  answersOf,
  attach,
  containerOf,
  eventsOf,
  MIB,
  namespaceOf,
  podOf,
  podPath,
  rogueOf,
  untilGone,
  untilPod,
  untilRunning,
} from '../support/pods.ts';
import { agentPage } from '../support/release.ts';
import { resized } from './resizes.ts';

const tools = wholeTools(console.log);
const SHARE = { 'cotenant.io/gpu-memory': '1Gi' };
const LIMIT = 1024 * MIB;
const TEAM = 'watched';
const OVERRIDE = 'cotenant.io/enforcement-override';
const TENANT: User = { name: 'alice', groups: ['system:masters'] };
const OUT_OF_MEMORY = 2;

type LimitAnswer = { readonly result: number; readonly hardBytes?: number | null };

/** The folder of the container's cgroup in the machine's unified hierarchy. */
function groupOf(bed: Bed, containerId: string): string {
  const id = containerId.replace(/^.*:\/\//, '');
  const [pid] = containerProcesses(bed.cgroup, id);
  const path = /^0::(.*)$/m.exec(readFileSync(`/proc/${pid}/cgroup`, 'utf8'))?.[1] ?? '';
  const mount = existsSync('/sys/fs/cgroup/unified') ? '/sys/fs/cgroup/unified' : '/sys/fs/cgroup';
  return join(mount, path);
}

/** The limit of a cgroup, from the driver. */
function limitOf({ bed, uuids: [uuid] }: Whole, folder: string): LimitAnswer {
  const args = ['--library', join(bed.folder, 'gpu/lib/libnvidia-ml.so.1')];
  const input = `get ${uuid} ${folder}\n`;
  return JSON.parse(execFileSync(join(BUILD, 'cotenant-limits'), args, { input, encoding: 'utf8' })) as LimitAnswer;
}

const isSeries = (bed: Bed, name: string, labels: Record<string, string>, what: string) =>
  eventually(
    async () => seriesOf((await agentPage(bed)) ?? '', `cotenant_container_${name}`, labels) === 1 || undefined,
    `${what}: ${name} ${JSON.stringify(labels)}`,
  );

const annotate = (bed: Bed, name: string, namespace: string, annotations: object, as: User) =>
  bed.api.ask('PATCH', podPath(name, namespace), { metadata: { annotations } }, as);

async function refused(t: ExecutionContext, answer: ReturnType<typeof annotate>, why: RegExp): Promise<void> {
  const { status, body } = await answer;
  t.is(status, 403);
  t.regex((body as { message: string }).message, why);
}

/** A pod of the default namespace that bypasses the interposer, and the modes that an administrator sets for it. */
async function held(t: ExecutionContext, whole: Whole): Promise<void> {
  const { bed } = whole;
  bed.apply(podOf('held', [rogueOf(SHARE, ['init', 'context 0'])]));
  const running = await untilRunning(bed, 'held');
  await isSeries(bed, 'info', { pod: 'held', fence: 'driver' }, 'the driver holds it');
  await isSeries(bed, 'enforcement', { pod: 'held', enforcement: 'enforce', source: 'node' }, 'as everybody');
  const found = seriesOf((await agentPage(bed)) ?? '', 'cotenant_device_fence_holds', { fence: 'driver' });
  t.is(found, 1, 'its canary was refused by it, too');
  const folder = groupOf(bed, containerOf(running)?.containerID ?? '');
  t.is(limitOf(whole, folder).hardBytes, LIMIT);
  const client = attach(bed, 'held');
  t.is((await client.ask(`alloc ${512 * MIB}`))[0], 0);
  t.is((await client.ask(`alloc ${512 * MIB}`))[0], OUT_OF_MEMORY, 'its context has its part of the grant');
  await isSeries(bed, 'info', { pod: 'held', fence: 'driver' }, 'and goes on doing so');
  const page = (await agentPage(bed)) ?? '';
  t.is(seriesOf(page, 'cotenant_container_memory_over_limit', { pod: 'held' }), 0);
  t.is(seriesOf(page, 'cotenant_container_kills_total', { pod: 'held' }), undefined);

  await refused(
    t,
    annotate(bed, 'held', 'default', { [OVERRIDE]: 'off' }, TENANT),
    /may not be added by "?alice|cotenant-grants/,
  );
  t.is(
    refusedBy(bed, 'set', 'default/held', '--enforcement', 'report'),
    'cotenant: pod default/held: report is weaker than enforce, which its namespace sets; only administrators can weaken it, with --override\n',
  );
  t.is(
    cotenant(bed, 'set', 'default/held', '--enforcement', 'report', '--override'),
    'pod default/held: enforcement report, set by administrator\n',
  );
  await isSeries(bed, 'enforcement', { pod: 'held', enforcement: 'report', source: 'administrator' }, 'it is reported');
  await isSeries(bed, 'info', { pod: 'held', fence: 'agent' }, 'the limit is taken back');
  t.is(limitOf(whole, folder).hardBytes, null);
  t.regex(cotenant(bed, 'get', '-n', 'default'), /^default\/held\/main .* report +administrator$/m);
  const table = cotenant(bed, 'inspect');
  t.regex(table, new RegExp(`^${NODE_NAME} .*/50 +enforce$`, 'm'));
  t.regex(table, /^ +default\/held\/main .* report, administrator +agent$/m);
  t.is(
    cotenant(bed, 'set', 'default/held', '--enforcement', 'default', '--override'),
    'pod default/held: enforcement enforce, set by node\n',
  );
  await isSeries(bed, 'info', { pod: 'held', fence: 'driver' }, 'and set again');
  const ofNode = (mode: string) => cotenant(bed, 'set', '--node', NODE_NAME, '--enforcement', mode);
  t.is(ofNode('report'), `node ${NODE_NAME}: enforcement report\n`);
  await isSeries(bed, 'enforcement', { pod: 'held', enforcement: 'report', source: 'node' }, 'its node reports only');
  await isSeries(bed, 'info', { pod: 'held', fence: 'agent' }, 'no driver limit applies there');
  t.regex(cotenant(bed, 'inspect'), new RegExp(`^${NODE_NAME} .*/50 +report$`, 'm'));
  t.is(ofNode('default'), `node ${NODE_NAME}: enforcement default\n`);
  await isSeries(bed, 'info', { pod: 'held', fence: 'driver' }, 'all is as it was');
  t.is(containerOf(await untilRunning(bed, 'held'))?.restartCount, 0);
  await client.leave();
}

/** A pod of a namespace in report mode: it keeps what it allocates until its own annotation says enforce. */
async function reported(t: ExecutionContext, whole: Whole): Promise<void> {
  const { bed } = whole;
  const own = { namespace: TEAM };
  bed.apply(namespaceOf(TEAM));
  const weaker = podOf('weaker', [rogueOf(SHARE, [])], { ...own, annotations: { 'cotenant.io/enforcement': 'off' } });
  const { status, body } = await bed.api.ask('POST', `/api/v1/namespaces/${TEAM}/pods`, weaker);
  t.is(status, 403);
  t.regex(
    (body as { message: string }).message,
    /"off" is not allowed in this namespace; write one of report, enforce/,
  );

  const commands = ['init', 'context 0', `alloc ${2 * LIMIT}`];
  bed.apply(podOf('seen', [rogueOf(SHARE, commands)], { ...own, spec: { restartPolicy: 'Never' } }));
  const running = await untilRunning(bed, 'seen', own);
  await isSeries(bed, 'enforcement', { pod: 'seen', enforcement: 'report', source: 'namespace' }, 'it is reported');
  await eventually(
    async () =>
      (await eventsOf(bed, 'seen', TEAM)).some(({ message }) =>
        /in enforce mode the agent would stop it$/.test(message),
      ) || undefined,
    'an Event says what would have been done',
  );
  t.deepEqual(
    answersOf(bed, running).map(([result]) => result),
    [0, 0, 0],
  );
  await isSeries(bed, 'info', { pod: 'seen', fence: 'agent' }, 'nothing but the agent sees it');
  t.is(limitOf(whole, groupOf(bed, containerOf(running)?.containerID ?? '')).hardBytes, null);
  t.is(containerOf(await untilRunning(bed, 'seen', own))?.restartCount, 0);

  const wish = (mode: string) => annotate(bed, 'seen', TEAM, { 'cotenant.io/enforcement': mode }, TENANT);
  await refused(t, wish('off'), /"off" is weaker than the pod's mode, report; write one of report, enforce/);
  t.regex(
    refusedBy(bed, 'set', `${TEAM}/seen`, '--enforcement', 'off'),
    /: off is weaker than report, which its namespace/,
  );
  t.is(
    cotenant(bed, 'set', `${TEAM}/seen`, '--enforcement', 'enforce'),
    `pod ${TEAM}/seen: enforcement enforce, set by pod\n`,
  );
  const ended = await untilPod(bed, 'seen', 'is stopped', ({ status: now }) => now?.phase === 'Failed', own);
  t.regex(
    containerOf(ended)?.state.terminated?.message ?? '',
    /exceeds its GPU memory grant.*past the interposer; the agent stops it/,
  );
  await refused(t, wish('report'), /"report" is weaker than the pod's mode, enforce/);
}

testUnless(tools.ok ? undefined : tools.reason)(
  'enforcement follows namespace, pod and administrator; memory is changed',
  async (t) => {
    t.timeout(BUILD_MS);
    if (!tools.ok) throw new Error(tools.reason);
    const { configuration } = WHOLE_VALUES.webhook;
    const settings = {
      ...configuration,
      namespaces: { [TEAM]: { enforcement: 'report' } },
      annotationWriters: ['admin'],
    };
    const values = { ...WHOLE_VALUES, webhook: { ...WHOLE_VALUES.webhook, configuration: settings } };
    const whole = await startWhole(tools, ['l4'], (line) => t.log(line), values, '615.71.09');
    const { bed } = whole;
    t.teardown(() => bed.close());
    await held(t, whole);
    await reported(t, whole);
    await resized(t, whole);
    for (const [name, namespace] of [
      ['held', 'default'],
      ['seen', TEAM],
      ['resized', 'default'],
    ] as const) {
      t.is(bed.kubectl('-n', namespace, 'delete', 'pod', name, '--wait=false').code, 0);
      await untilGone(bed, name, { namespace });
    }
    await eventually(() => {
      const path = join(bed.folder, 'host/_var_lib_cotenant/driver-limits.json');
      return (JSON.parse(readFileSync(path, 'utf8')) as { limits: unknown[] }).limits.length === 0 || undefined;
    }, 'nothing is left of the limits of pods that are gone');
    t.deepEqual((await lookAtPermissions(bed, NAMESPACE)).denied, []);
  },
);

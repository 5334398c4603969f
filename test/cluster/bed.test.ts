// The test cluster itself: it starts, runs pods like any Kubernetes, survives the failure of each part, and leaves
// nothing behind.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import type { ExecutionContext } from 'ava';
import { testUnless } from '../support/gate.ts';
import { processesNaming } from '../support/machine/processes.ts';
import { listenersOf } from '../support/machine/sockets.ts';
import { pythonClients } from '../support/toolchains/python.ts';
import { type Bed, bedTools, startBed } from './bed/bed.ts';
import { bedCgroup } from './bed/cgroups.ts';
import { eventually } from './bed/eventually.ts';
import { BOUND } from './bed/node.ts';
import { PARTS } from './bed/parts.ts';
import { addClientImage, addNvmlImage, addSimulatedGpus, NAMESPACE, NVML_IMAGE } from './bed/product.ts';
import { firstProcessOf, rightsOf, signalContainer } from './support/containers.ts';
import { lookAtPermissions } from './support/permissions.ts';
import {
  answersOf,
  attach,
  clientOf,
  containerOf,
  getPod,
  MIB,
  namespaceOf,
  outputOf,
  podOf,
  RESTRICTED,
  rogueOf,
  shellOf,
  untilPhase,
  untilPod,
  untilRunning,
} from './support/pods.ts';

const tools = bedTools(console.log, false);
if (tools.ok) console.log(`the cluster of these tests: ${tools.versions}`);

const SETTINGS = ['vm/overcommit_memory', 'kernel/panic', 'kernel/panic_on_oops', 'net/ipv4/ip_forward'];
const settings = () => SETTINGS.map((name) => readFileSync(`/proc/sys/${name}`, 'utf8'));
const mounts = () => readFileSync('/proc/self/mounts', 'utf8');
const folders = () => BOUND.filter((path) => existsSync(path));
const interfaces = () => readFileSync('/proc/net/dev', 'utf8').match(/^ *[^ :]+(?=:)/gm);

const ALL_GPUS = { env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }] };
const ON_GPUS = { namespace: 'team', spec: { runtimeClassName: 'nvidia', restartPolicy: 'OnFailure' } };

testUnless(tools.ok ? undefined : tools.reason)(
  'a test cluster starts, runs pods, survives failures and leaves nothing behind',
  async (t) => {
    t.timeout(600_000);
    if (!tools.ok) throw new Error(tools.reason);
    const before = { settings: settings(), mounts: mounts(), interfaces: interfaces(), folders: folders() };
    const started = performance.now();
    const bed = await startBed(tools, (line) => t.log(line));
    t.teardown(() => bed.close());
    const seconds = () => Math.round((performance.now() - started) / 1000);
    t.log(`up after ${seconds()} s`);

    await runsPods(t, bed);
    t.log(`pods ran after ${seconds()} s`);
    await givesSimulatedGpus(t, bed);
    t.log(`clients ran after ${seconds()} s`);
    await auditsRequests(t, bed);
    await survivesItsParts(t, bed);
    t.log(`each part was killed once after ${seconds()} s`);

    // With pods still running.
    await bed.close();
    t.deepEqual(processesNaming(bed.folder), []);
    t.deepEqual(
      readdirSync('/sys/fs/cgroup/memory').filter((name) => name === bedCgroup(process.pid)),
      [],
    );
    t.false(existsSync(bed.folder));
    t.deepEqual({ settings: settings(), mounts: mounts(), interfaces: interfaces(), folders: folders() }, before);
  },
);

async function runsPods(t: ExecutionContext, bed: Bed): Promise<void> {
  const memory = 'cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max';
  const once = { spec: { restartPolicy: 'Never' } };
  bed.apply(
    podOf('one', [shellOf(`echo "limit $(${memory})"; exit 3`, { resources: { limits: { memory: '64Mi' } } })], once),
    podOf('two', [shellOf('echo here; exec sleep 600')]),
  );
  const ended = await untilPhase(bed, 'one', 'Failed');
  t.is(containerOf(ended)?.state.terminated?.exitCode, 3);
  t.is(bed.kubectl('logs', 'one').out, `limit ${64 * MIB}\n`);
  t.deepEqual(outputOf(bed, ended), [`limit ${64 * MIB}`]);
  const running = await untilRunning(bed, 'two');
  t.regex(running.status?.podIP ?? '', /^10\.231\.7\.\d+$/);
  t.is(bed.kubectl('exec', 'two', '--', 'cat', '/etc/hostname').out, 'two\n');
  t.true(processesNaming(bed.folder).length > 5);
}

/** Programs with minimal rights reach the simulated GPUs, including one that ignores the preload list. */
async function givesSimulatedGpus(t: ExecutionContext, bed: Bed): Promise<void> {
  addClientImage(bed);
  await addSimulatedGpus(bed, 'l4', 'a10');
  const preload = { name: 'preload', configMap: { name: 'preload' } };
  const mounted = {
    ...ALL_GPUS,
    volumeMounts: [{ name: 'preload', mountPath: '/etc/ld.so.preload', subPath: 'list' }],
  };
  const withList = { ...ON_GPUS, spec: { ...ON_GPUS.spec, volumes: [preload] } };
  const commands = ['init', 'context 1', `alloc ${64 * MIB}`];
  bed.apply(
    namespaceOf('team', 'restricted'),
    {
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: { name: 'preload', namespace: 'team' },
      data: { list: '/run/not-there.so\n' },
    },
    podOf('client', [clientOf({}, commands, mounted)], withList),
    podOf('rogue', [rogueOf({}, commands, mounted)], withList),
  );
  const client = await untilRunning(bed, 'client', { namespace: 'team' });
  await eventually(() => answersOf(bed, client).length === 4 || undefined, 'three answers and a complaint');
  // The runtime does not keep the order of a container's two streams.
  t.regex(
    outputOf(bed, client).join('\n'),
    /object '\/run\/not-there\.so' from \/etc\/ld\.so\.preload cannot be preloaded/,
  );
  const rogue = await untilRunning(bed, 'rogue', { namespace: 'team' });
  await eventually(() => answersOf(bed, rogue).length === 3 || undefined, 'three answers of the rogue');
  t.deepEqual(
    answersOf(bed, rogue).map(([result]) => result),
    [0, 0, 0],
  );

  const talk = attach(bed, 'client', 'team');
  const [, free = 0] = await talk.ask('info');
  const block = await talk.must(`alloc ${128 * MIB}`);
  t.is((await talk.ask('info'))[1], free - 128 * MIB);
  await talk.must(`free ${block}`);
  await talk.leave();
  t.is((await getPod(bed, 'client', 'team'))?.status?.phase, 'Running', 'it keeps running without an attached client');

  const pid = firstProcessOf(bed, client);
  t.like(rightsOf(pid), {
    users: [1000, 1000, 1000, 1000],
    capabilities: 0n,
    noNewPrivileges: true,
    seccomp: 'filter',
    readOnlyRoot: true,
  });
  t.deepEqual(listenersOf([pid]), []);
  // Two other containers prove that the check would find something.
  const two = await untilRunning(bed, 'two');
  t.like(rightsOf(firstProcessOf(bed, two)), { noNewPrivileges: false, readOnlyRoot: false });
  t.not(rightsOf(firstProcessOf(bed, two)).capabilities, 0n);
  const listening = async (name: string, address: string, isLoopback: boolean) => {
    bed.apply(podOf(name, [shellOf(`exec httpd -f -p ${address}:4711`)]));
    const pid = firstProcessOf(bed, await untilRunning(bed, name));
    const found = await eventually(() => [listenersOf([pid])].find((list) => list.length > 0), `${name} listens`);
    t.deepEqual(found, [{ port: 4711, isLoopback }]);
  };
  await listening('inward', '127.0.0.1', true);
  await listening('outward', '0.0.0.0', false);

  if (pythonClients().ok) {
    addNvmlImage(bed);
    const container = { name: 'main', image: NVML_IMAGE, imagePullPolicy: 'Never', securityContext: RESTRICTED };
    bed.apply(podOf('nvml', [{ ...container, ...ALL_GPUS }], ON_GPUS));
    const ended = await untilPhase(bed, 'nvml', 'Succeeded', { namespace: 'team' });
    const gpus = JSON.parse(outputOf(bed, ended)[0] ?? '') as {
      uuid: string;
      totalBytes: number;
      usedBytes: number;
    }[];
    t.is(gpus.length, 2);
    t.regex(gpus[0]?.uuid ?? '', /^GPU-/);
    t.true((gpus[1]?.usedBytes ?? 0) >= 2 * 64 * MIB, 'what the client and the rogue hold');
  } else t.log('no Python client here');

  // A container ends with its processes.
  signalContainer(bed, client, 'main', 'SIGKILL');
  const again = await untilPod(bed, 'client', 'was restarted', (pod) => containerOf(pod)?.restartCount === 1, {
    namespace: 'team',
  });
  t.is(containerOf(again)?.lastState.terminated?.exitCode, 137);
}

/** A service account of our namespace is limited to its role, and the audit log has its requests and no others. */
async function auditsRequests(t: ExecutionContext, bed: Bed): Promise<void> {
  const metadata = { name: 'auditee', namespace: NAMESPACE };
  const account = { kind: 'ServiceAccount', name: 'auditee', namespace: NAMESPACE };
  const rbac = 'rbac.authorization.k8s.io';
  bed.apply(
    namespaceOf(NAMESPACE),
    { apiVersion: 'v1', kind: 'ServiceAccount', metadata },
    {
      apiVersion: `${rbac}/v1`,
      kind: 'ClusterRole',
      metadata: { name: 'auditee' },
      rules: [{ apiGroups: [''], resources: ['pods', 'pods/log'], verbs: ['get', 'list'] }],
    },
    {
      apiVersion: `${rbac}/v1`,
      kind: 'ClusterRoleBinding',
      metadata: { name: 'auditee' },
      roleRef: { apiGroup: rbac, kind: 'ClusterRole', name: 'auditee' },
      subjects: [account],
    },
  );
  const token = bed.kubectl('-n', NAMESPACE, 'create', 'token', 'auditee').out.trim();
  t.is(bed.kubectl('--token', token, 'get', 'pod', 'two').code, 0);
  t.is(bed.kubectl('--token', token, 'logs', 'two').out, 'here\n');
  t.not(bed.kubectl('--token', token, 'get', 'secrets').code, 0);
  const name = `system:serviceaccount:${NAMESPACE}:auditee`;
  const found = await eventually(async () => {
    const now = await lookAtPermissions(bed, NAMESPACE);
    return now.denied.length > 0 ? now : undefined;
  }, 'the refusal is in the audit');
  t.deepEqual(found, {
    held: 4,
    unused: [`${name}: list pods (role auditee)`, `${name}: list pods/log (role auditee)`],
    denied: [`${name}: list secrets in default`],
  });
}

async function survivesItsParts(t: ExecutionContext, bed: Bed): Promise<void> {
  const two = await untilRunning(bed, 'two');
  const pid = firstProcessOf(bed, two);
  await bed.stop('kubelet');
  await bed.stop('apiserver');
  t.not(bed.kubectl('get', '--raw', '/readyz').code, 0);
  await bed.start('apiserver');
  bed.apply(podOf('late', [shellOf('exec sleep 600')]));
  bed.pause('scheduler');
  await bed.start('kubelet');
  bed.resume('scheduler');
  await untilRunning(bed, 'late');
  for (const part of PARTS) {
    await bed.restart(part);
    t.is(bed.kubectl('get', '--raw', '/readyz').code, 0, part);
  }
  bed.apply(podOf('later', [shellOf('exec sleep 600')]));
  await untilRunning(bed, 'later');
  t.is(firstProcessOf(bed, await untilRunning(bed, 'two')), pid, 'the steady container was not restarted');
  t.is(containerOf(await getPod(bed, 'two'))?.restartCount, 0);
}

// What doctor says of machines and clusters that are made of files and objects.
import { X509Certificate } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import type { Cluster, Got } from '../../../src/cli/cluster/api-client.ts';
import { agentFindings } from '../../../src/cli/doctor/agent.ts';
import { clusterFindings } from '../../../src/cli/doctor/cluster.ts';
import { type Finding, findingLines } from '../../../src/cli/doctor/finding.ts';
import {
  certificateFinding,
  certificateFindings,
  cgroupFindings,
  clockFindings,
  driverFindings,
  type Machine,
} from '../../../src/cli/doctor/machine.ts';
import { runtimeFindings } from '../../../src/cli/doctor/runtimes.ts';
import { startHttpServer } from '../../../src/serving/http-server.ts';
import { makeAuthority } from '../../../src/serving/x509.ts';
import { ROOT, readPage } from '../../support/docs.ts';
import { temporaryFolder } from '../../support/native/node.ts';
import { exampleSnapshot } from '../../support/product/snapshots.ts';

const NOW = Date.parse('2026-11-26T12:00:00Z');
const AUTHORITY = makeAuthority('test', new Date(NOW), 365).cert;
const ENDS = new X509Certificate(AUTHORITY).validToDate.getTime();

/** A machine of these files; programs print the text of their file. */
function machineOf(t: ExecutionContext, files: Readonly<Record<string, string>>, nowMs = NOW): Machine {
  const root = temporaryFolder(t);
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), text);
  }
  return { root, nowMs, versionOf: (program) => files[program] };
}
const codes = (findings: readonly Finding[]): readonly string[] =>
  findings.map(({ status, reason }) => `${status} ${reason}`);

/** As the driver and its open kernel modules write it. */
const VERSION =
  'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@x)\nGCC version: gcc 12\n';
const DRIVER = {
  'proc/driver/nvidia/version': VERSION,
  'proc/driver/nvidia/gpus/0000:04:00.0/information': '',
  'dev/nvidia0': '',
  'dev/nvidiactl': '',
  'usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1': '',
};

test('the driver is looked for in the kernel, in /dev and among the libraries', (t) => {
  t.deepEqual(codes(driverFindings(machineOf(t, {}))), ['fail driver-not-loaded']);
  const [well, ...none] = driverFindings(machineOf(t, DRIVER));
  t.deepEqual([well?.found, none], ['580.159.04, 1 GPU(s)', []]);
  t.deepEqual(codes(driverFindings(machineOf(t, { 'proc/driver/nvidia/version': VERSION }))), [
    'fail no-gpu',
    'warn device-nodes-missing',
    'fail nvml-missing',
  ]);
});

const SPEC = JSON.stringify({
  cdiVersion: '0.5.0',
  kind: 'nvidia.com/gpu',
  devices: [{ name: 'GPU-51a0c07e-4a27-4551-8d21-6e1004000000', containerEdits: {} }],
  containerEdits: {},
});
const WELL = ['ok default-runtime-plain', 'ok toolkit-found', 'ok cdi-spec-found'];
const TOOLKIT = { 'usr/bin/nvidia-ctk': 'NVIDIA Container Toolkit CLI version 1.18.0', 'etc/cdi/nvidia.json': SPEC };
const NODE = { 'var/lib/kubelet/config.yaml': '', 'var/run/nri/nri.sock': '' };
const RUNTIMES: readonly (readonly [
  name: string,
  files: Readonly<Record<string, string>>,
  codes: readonly string[],
])[] = [
  ['none', {}, ['warn runtime-missing']],
  [
    'containerd 1.7 as it is, as a node',
    { ...TOOLKIT, ...NODE, 'usr/bin/containerd': 'containerd github.com/containerd/containerd v1.7.22 7f7fdf5' },
    ['warn cdi-off', ...WELL, 'warn route-environment'],
  ],
  [
    'containerd 1.7 with CDI',
    {
      ...TOOLKIT,
      'usr/local/bin/containerd': 'containerd github.com/containerd/containerd v1.7.22 7f7fdf5',
      'etc/containerd/config.toml': 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  enable_cdi = true\n',
    },
    ['ok cdi-on', ...WELL, 'ok route-cdi'],
  ],
  [
    'containerd 2.1 as a node',
    { ...TOOLKIT, ...NODE, 'usr/bin/containerd': 'containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7' },
    ['ok cdi-on', ...WELL, 'ok route-nri'],
  ],
  [
    'containerd 2.0, which has no CDI names in NRI',
    { ...TOOLKIT, ...NODE, 'usr/bin/containerd': 'containerd github.com/containerd/containerd/v2 v2.0.5 fb4c30d' },
    ['ok cdi-on', ...WELL, 'warn route-environment'],
  ],
  [
    "Docker 20.10 under NVIDIA's runtime, without a specification",
    {
      'usr/bin/dockerd': 'Docker version 20.10.24+dfsg1, build 5d6db84',
      'etc/docker/daemon.json': '{"default-runtime": "nvidia"}',
    },
    [
      'warn cdi-off',
      'warn default-runtime-nvidia',
      'warn toolkit-missing',
      'warn cdi-spec-missing',
      'warn route-flags',
    ],
  ],
  [
    'Docker 25 with the feature, beside Podman 4.3',
    {
      ...TOOLKIT,
      'usr/bin/dockerd': 'Docker version 25.0.3, build 4debf41',
      'etc/docker/daemon.json': '{"features": {"cdi": true}}',
      'usr/bin/podman': 'podman version 4.3.1',
    },
    ['ok cdi-on', 'ok cdi-on', ...WELL, 'ok route-cdi'],
  ],
  [
    'CRI-O 1.34 as a node',
    { ...TOOLKIT, ...NODE, 'usr/bin/crio': 'crio version 1.34.1' },
    ['ok cdi-on', ...WELL, 'ok route-nri'],
  ],
  [
    'files of another machine, whose programs cannot be started',
    { ...TOOLKIT, 'usr/bin/podman': '' },
    ['warn cdi-unknown', ...WELL, 'warn route-flags'],
  ],
];
for (const [name, files, expected] of RUNTIMES)
  test(`runtimes: ${name}`, (t) => t.deepEqual(codes(runtimeFindings(machineOf(t, files))), expected));

test('cgroups, the clock and certificates are judged by files and the time', (t) => {
  const cgroups = (files: Readonly<Record<string, string>>) => codes(cgroupFindings(machineOf(t, files)));
  t.deepEqual(cgroups({ 'sys/fs/cgroup/cgroup.controllers': 'cpu memory dmem\n' }), ['ok cgroup-v2']);
  t.deepEqual(cgroups({ 'sys/fs/cgroup/devices/tasks': '' }), ['warn cgroup-v1']);
  t.deepEqual(cgroups({ 'sys/fs/cgroup/unified/cgroup.procs': '' }), ['warn cgroup-hybrid']);
  t.deepEqual(cgroups({}), ['warn cgroup-unknown']);
  const synchronized = machineOf(t, { 'run/systemd/timesync/synchronized': '' });
  t.deepEqual(codes(clockFindings(synchronized)), ['ok clock-synchronized']);
  t.deepEqual(codes(clockFindings({ ...synchronized, nowMs: 0 })), ['fail clock-not-set']);
  t.deepEqual(codes(clockFindings(machineOf(t, {}))), ['warn clock-unsynchronized']);

  const at = (days: number) => certificateFinding('here', AUTHORITY, ENDS - days * 86_400_000);
  t.deepEqual(codes([at(100), at(3), at(-1)]), [
    'ok certificate-valid',
    'warn certificate-expires',
    'fail certificate-expired',
  ]);
  t.deepEqual(codes(certificateFindings(machineOf(t, {}), ['/nonexistent'])), ['fail certificate-unreadable']);
  const { root } = machineOf(t, { 'a.pem': AUTHORITY });
  const file = join(root, 'a.pem');
  t.deepEqual(codes(certificateFindings(machineOf(t, {}, ENDS), [relative('.', file)])), ['warn certificate-expires']);
  const kubelet = machineOf(t, { 'var/lib/kubelet/pki/kubelet-client-current.pem': AUTHORITY }, ENDS);
  t.regex(certificateFindings(kubelet, [])[0]?.found ?? '', /^\/var\/lib\/kubelet\/pki\/\S+ ends 20/);
});

test('the agent is asked over its socket, and each of its GPUs has a line', async (t) => {
  const folder = temporaryFolder(t);
  t.deepEqual(codes(await agentFindings(folder, NOW)), ['warn agent-absent']);
  let body: unknown = null;
  const socket = join(folder, 'agent.sock');
  const server = await startHttpServer((_, response) => response.end(JSON.stringify(body)), {
    listen: { socket, mode: 0o600 },
  });
  t.teardown(server.close);
  const nowMs = exampleSnapshot.atMs + 1000;
  const said = async (snapshot: unknown) => {
    body = snapshot;
    return codes(await agentFindings(folder, nowMs));
  };
  const { self, devices } = exampleSnapshot;
  const well = devices.map(() => 'ok gpu-healthy');
  const all = { ...exampleSnapshot, devices: devices.map((one) => ({ ...one, fences: {}, fault: undefined })) };
  const mode = { ...self, up: true, driverHeld: true, mode: 'enforce' };
  t.deepEqual(await said(null), ['warn agent-starting']);
  t.deepEqual(await said({ ...all, self: mode }), ['ok agent-up', ...well]);
  t.deepEqual(await said({ ...all, self: { ...mode, mode: 'report' } }), ['warn agent-lenient', ...well]);
  t.deepEqual(await said({ ...all, self: { ...mode, up: false } }), ['fail agent-stale', ...well]);
  t.deepEqual(await said({ ...all, self: { ...mode, driverHeld: false } }), ['warn driver-released', ...well]);
  t.deepEqual(await said({ ...all, self: mode, atMs: nowMs - 100_000 }), ['fail agent-stale', ...well]);
  const [one] = all.devices;
  const gpus = [
    { ...one, gpu: { ...one?.gpu, healthy: false } },
    { ...one, fault: { xid: 48, atMs: 0 } },
    { ...one, fences: { interposer: { result: 'fails', why: 'nothing was refused' } } },
  ];
  t.deepEqual(await said({ ...all, self: mode, devices: gpus }), [
    'ok agent-up',
    'fail gpu-lost',
    'fail gpu-fault',
    'warn limits-do-not-hold',
  ]);
});

/** The objects of a cluster by path; what is not there is not found, or not permitted. */
function clusterWith(objects: Readonly<Record<string, unknown>>, status = 404): Cluster {
  const find = <T>(path: string): Promise<Got<T>> =>
    Promise.resolve(
      path in objects ? { ok: true, value: objects[path] as T } : { ok: false, status, message: `no ${path}` },
    );
  const list: Cluster['list'] = (path, query = {}) => find(`${path} ${query.labelSelector ?? ''}`.trim());
  return { get: find, list } as Partial<Cluster> as Cluster;
}
const PODS = '/api/v1/namespaces/cotenant-system/pods cotenant.io/component=';
const ready = (status: string) => ({ metadata: { name: 'p' }, status: { conditions: [{ type: 'Ready', status }] } });
const nodeOf = (conditions: object[], allocatable = {}) => ({
  metadata: { name: 'n1', annotations: { 'cotenant.io/gpus': '[]' } },
  status: { conditions, allocatable },
});
const authority = () => Buffer.from(AUTHORITY).toString('base64');
const WEBHOOKS = '/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations';
const LEASES = '/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases';
const webhooksOf = (...names: string[]) =>
  names.map((name) => ({ metadata: { name: 'ct' }, webhooks: [{ name, clientConfig: { caBundle: authority() } }] }));
const lease = (ms: number) => [{ metadata: { name: 'n1' }, spec: { renewTime: new Date(ms).toISOString() } }];

test('a cluster that is well has a line for each part, and a line for what is not well', async (t) => {
  const nowMs = ENDS - 100 * 86_400_000;
  const well = {
    [`${PODS}agent`]: [ready('True')],
    [`${PODS}webhook`]: [ready('True'), ready('True')],
    [`${PODS}scheduler`]: [ready('True')],
    '/api/v1/nodes': [nodeOf([])],
    [WEBHOOKS]: webhooksOf('inject.cotenant.io'),
    [LEASES]: lease(nowMs - 9000),
  };
  const ask = async (more: Readonly<Record<string, unknown>>, status?: number) =>
    codes(await clusterFindings(clusterWith({ ...well, ...more }, status), { system: 'cotenant-system', nowMs }));
  const parts = ['ok part-ready', 'ok part-ready', 'ok part-ready'];
  const rest = ['ok nodes-advertise', 'ok certificate-valid', 'ok clocks-agree', 'ok no-foreign-system'];
  t.deepEqual(await ask({}), [...parts, ...rest]);
  const ill = await ask({
    [`${PODS}agent`]: [ready('True'), ready('False')],
    [`${PODS}webhook`]: [ready('False')],
    [`${PODS}scheduler`]: [],
    '/api/v1/nodes': [
      nodeOf([{ type: 'CotenantGpusHealthy', status: 'False', message: 'GPU-1 is lost' }], { 'nvidia.com/gpu': '8' }),
      nodeOf([{ type: 'CotenantFencesHold', status: 'False', message: 'nothing was refused' }]),
    ],
    [WEBHOOKS]: webhooksOf('other.example.com'),
    [LEASES]: lease(nowMs + 30_000),
  });
  t.deepEqual(ill, [
    'warn part-degraded',
    'fail part-down',
    'warn part-absent',
    'ok nodes-advertise',
    'fail gpu-unhealthy',
    'warn limits-do-not-hold',
    'fail webhook-unregistered',
    'warn clock-skew',
    'warn foreign-system',
  ]);
  t.deepEqual(codes(await clusterFindings(clusterWith({}, 403), { system: 'cotenant-system', nowMs })), [
    ...Array.from({ length: 6 }, () => 'warn not-permitted'),
    'ok no-foreign-system',
  ]);
  const nothing = { '/api/v1/nodes': [], [WEBHOOKS]: [], [LEASES]: [] };
  t.deepEqual(codes(await clusterFindings(clusterWith(nothing), { system: undefined, nowMs })), [
    ...Array.from({ length: 3 }, () => 'fail not-installed'),
    'warn no-node',
    'fail webhook-unregistered',
    'ok clocks-agree',
    'ok no-foreign-system',
  ]);
});

test('lines have status, check, what was found, the code, and what to do', (t) => {
  t.deepEqual(
    findingLines([
      { status: 'ok', check: 'driver', reason: 'driver-loaded', found: '580, 1 GPU(s)' },
      { status: 'fail', check: 'clock', reason: 'clock-not-set', found: 'it is\n1970', todo: 'set it' },
    ]),
    [
      'ok    driver  580, 1 GPU(s) [driver-loaded]',
      'fail  clock   it is 1970 [clock-not-set]',
      '      set it',
      '',
      '1 ok, 0 warn, 1 fail',
    ],
  );
});

test('the page has each reason code, and no other', (t) => {
  const folder = join(ROOT, 'src/cli/doctor');
  const source = readdirSync(folder)
    .map((name) => readFileSync(join(folder, name), 'utf8'))
    .join('\n');
  const inSource = [...source.matchAll(/'([a-z0-9]+(?:-[a-z0-9]+)+)'/g)].map(([, code]) => code ?? '');
  const rows = readPage('docs/operate/doctor.md').match(/^\| `[^|]+/gm) ?? [];
  const inPage = rows.flatMap((row) => [...row.matchAll(/`([a-z0-9-]+)`/g)].map(([, code]) => code ?? ''));
  t.true(inPage.length > 40);
  t.deepEqual(inPage.toSorted(), [...new Set(inSource)].filter((code) => !NO_CODES.includes(code)).toSorted());
});
const NO_CODES = ['default-runtime', 'cri-o', 'nvidia-ctk'];

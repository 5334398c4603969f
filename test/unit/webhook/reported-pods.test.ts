// Pods that failed in public reports of people who share GPUs, as minimal inputs: what is right for each of them. The
// report is named in the file of each, in test/fixtures/manifests/reported.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { parse, parseAllDocuments } from 'yaml';
import { type JsonObject, objectAt } from '../../../src/common/json.ts';
import { ROOT } from '../../support/docs.ts';
import { answerOf, configured, creation, specOf } from './reviews.ts';

const FOLDER = join(ROOT, 'test/fixtures/manifests/reported');
const PODS = new Map(
  readdirSync(FOLDER)
    .flatMap((file) => parseAllDocuments(readFileSync(join(FOLDER, file), 'utf8')).map((one) => one.toJS()))
    .map((pod: JsonObject): [string, JsonObject] => {
      const { name, generateName } = pod.metadata as Record<string, string>;
      return [name ?? generateName ?? '', pod];
    }),
);
const PREDICTOR = 'iris-predictor-00001-deployment-6d5b8c9f7-';
/** The chart's own defaults. */
const { configuration: DEFAULTS } = parse(readFileSync(join(ROOT, 'charts/cotenant/values.yaml'), 'utf8')).webhook;

const after = (name: string, settings: object = DEFAULTS) => {
  const review = creation(PODS.get(name), { namespace: objectAt(PODS.get(name), 'metadata').namespace });
  const configuration = configured(settings);
  return { ...answerOf(review, configuration), again: (pod: object) => answerOf(creation(pod), configuration).patch };
};
const ours = (name: string) => `spec.containers[0].resources.limits["cotenant.io/${name}"]`;

/** What each is refused with; of each pod that is not here a share is made. */
const REFUSED: Record<string, string> = {
  'count-zero': `${ours('gpu')}: "0" is less than 1; write a whole number from 1 to 64, or leave`,
  'all-zero': `${ours('gpu')}: "0" is less than 1; write a whole number from 1 to 64, or leave`,
  'count-negative': `${ours('gpu')}: "-1" is less than 1`,
  'count-half': `${ours('gpu')}: "0.5" is not a whole number`,
  'count-milli': `${ours('gpu')}: "1500m" is not a whole number`,
  'count-huge': `${ours('gpu')}: "4294967296" is more than 64`,
  'memory-zero': `${ours('gpu-memory')}: "0" is not more than 0`,
  'requests-only':
    'spec.containers[0].resources.requests["cotenant.io/gpu-memory"]: "1Gi" has no limit for the same resource',
  'bare-number': `${ours('gpu-memory')}: "4096" counts bytes, and is not whole MiB; write "4096Mi"`,
  both: `spec.containers[0].resources.limits["nvidia.com/gpu"]: 1 is given by NVIDIA's device plugin, which does not run`,
  'two-kinds': `spec.containers[0].resources.limits["nvidia.com/gpu"]: 1 is given by NVIDIA's device plugin, which`,
  'jupyter-alice': 'spec.schedulerName: "jhub-user-scheduler" does not grant shares of GPUs; leave it out or write',
  rl: 'spec.containers[0].securityContext.capabilities.add[0]: "SYS_PTRACE" would let the container escape its limits',
  'gang-worker-0': 'spec.schedulerName: "volcano" does not grant shares of GPUs; leave it out or write',
  win: 'spec.os.name: "windows" has no shares of GPUs; ask for a share in a pod of a Linux node',
  'pod-level-ours':
    'spec.resources.limits["cotenant.io/gpu-memory"]: "8Gi" is asked for by the pod as a whole; write it under',
};

test('reported pods get a share or a refusal with field, value and what is right', (t) => {
  for (const name of Object.keys(REFUSED)) t.true(PODS.has(name), name);
  for (const name of PODS.keys()) {
    if (name === 'hami') continue;
    const { outcome, denial, pod, again } = after(name);
    if (REFUSED[name] !== undefined) {
      t.regex(denial ?? '', /^(422 Invalid|403 Forbidden): /, name);
      t.true(denial?.slice(denial.indexOf(': ') + 2).startsWith(REFUSED[name]), `${name}: ${denial}`);
      continue;
    }
    t.is(outcome, 'patched', `${name}: ${denial}`);
    t.deepEqual(again(pod), [], `${name}: a second pass changes nothing`);
    t.is(specOf(pod).schedulerName, 'cotenant-scheduler', name);
  }
});

test("a share tolerates the taint of GKE's and AKS's GPU nodes by the chart's defaults", (t) => {
  const { pod } = after('share-on-gke');
  t.like(pod.spec, { tolerations: [{ key: 'nvidia.com/gpu', operator: 'Exists', effect: 'NoSchedule' }] });
});

test('a share smaller than a context is warned of, larger ones are not', (t) => {
  t.regex(after('small').warnings.join(), /^c: 100 MiB of a GPU may not hold a CUDA context .* need 512 MiB or more$/);
  t.deepEqual(after('memory-only').warnings, []);
});

test('compute without memory is warned of: the whole memory is taken', (t) => {
  t.regex(after('cores-only').warnings.join(), /gpu-memory is not set, so all memory of the GPU is reserved/);
});

test('a manifest of HAMi is left alone, or read where its dialect is on', (t) => {
  const hami = { rules: { dialects: ['hami'] } };
  t.like(after('hami'), { outcome: 'allowed', patch: [] });
  const limits = { 'cotenant.io/gpu': '1', 'cotenant.io/gpu-memory': '10Gi', 'cotenant.io/gpu-cores': '30' };
  t.deepEqual(specOf(after('hami', hami).pod).containers[0]?.resources?.limits, limits);
  t.regex(
    after('both', hami).denial ?? '',
    /^422 Invalid: spec.containers\[0\].resources.limits: has names of two dial/,
  );
  const [whole, part] = specOf(after('two-kinds', hami).pod).containers;
  t.deepEqual(whole?.resources?.limits, { 'cotenant.io/gpu': '1' });
  t.deepEqual(part?.resources?.limits, { 'cotenant.io/gpu': '1', 'cotenant.io/gpu-memory': '1Gi' });
});

test("JupyterHub's pod gets our scheduler where its own is listed, and keeps all else", (t) => {
  const { pod, warnings } = after('jupyter-alice', { replacedSchedulers: ['jhub-user-scheduler'] });
  const given = PODS.get('jupyter-alice') as JsonObject;
  t.deepEqual(warnings, []);
  t.like(pod.spec, { schedulerName: 'cotenant-scheduler', securityContext: { fsGroup: 100 } });
  t.like(pod.metadata, { labels: (given.metadata as JsonObject).labels });
  const [first] = specOf(pod).initContainers ?? [];
  t.like(first, { securityContext: { privileged: true }, env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'void' }] });
});

test('tracing is allowed in a namespace that allows it, and in no other', (t) => {
  const settings = (namespace: string) => ({ namespaces: { [namespace]: { allowPtrace: true } } });
  t.like(after('rl', settings('team')).pod.spec, {
    containers: [{ securityContext: { capabilities: { add: ['SYS_PTRACE', 'IPC_LOCK'] } } }],
  });
  t.regex(after('rl', settings('other')).denial ?? '', /"SYS_PTRACE" would let/);
});

test('gVisor is refused where devices come by a runtime class, and nowhere else', (t) => {
  t.like(after('gvisor').pod.spec, { runtimeClassName: 'gvisor' });
  t.regex(after('gvisor', { runtimeClassName: 'nvidia' }).denial ?? '', /"gvisor" is not one that gives containers/);
});

test('resources of the pod, user namespaces and shared processes stay as they are', (t) => {
  t.like(after('pod-level').pod.spec, { resources: { limits: { cpu: '4', memory: '8Gi' } } });
  t.like(after('userns').pod.spec, { hostUsers: false });
  const { pod } = after('shared-pids');
  t.like(pod.spec, { shareProcessNamespace: true });
  t.deepEqual(
    specOf(pod).containers.map((one) => objectAt(objectAt(one, 'resources'), 'limits')['cotenant.io/gpu-memory']),
    ['1Gi', '2Gi'],
  );
});

test("a KServe predictor's server alone gets the share, its helpers get no device", (t) => {
  const { pod } = after(PREDICTOR);
  const spec = specOf(pod);
  const all = [...(spec.initContainers ?? []), ...spec.containers];
  const shares = all.filter(({ volumeMounts = [] }) => volumeMounts.some(({ name }) => name === 'cotenant'));
  t.deepEqual(
    shares.map(({ name }) => name),
    ['kserve-container'],
  );
  for (const { name, env = [] } of all)
    t.is(env.find((one) => one.name === 'NVIDIA_VISIBLE_DEVICES')?.value, 'void', name);
});

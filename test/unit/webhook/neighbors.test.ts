// Objects of queues, jobs and serving systems, as docs/use/neighbors.md shows them: what becomes of the pods in them, and
// that the webhook keeps what these systems recognize their pods by. Facts: each project's public API reference.
import test from 'ava';
import { parse } from 'yaml';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import { convertDocument } from '../../../src/cli/commands/planning/convert.ts';
import { mapPods } from '../../../src/cli/lib/manifests.ts';
import type { JsonObject } from '../../../src/common/json.ts';
import { blocks, readPage } from '../../support/docs.ts';
import { answerOf, configured, creation, sharePod } from './reviews.ts';

const all = configured({ rules: { dialects: FOREIGN_DIALECT_NAMES } });
const objects = blocks(readPage('docs/use/neighbors.md'), 'yaml').map((text) => parse(text) as JsonObject);

/** Kind -> place of each pod, its containers with what they get. */
const EXPECTED: Record<string, readonly string[]> = {
  Workload: ['spec.podSets[0].template: main 8192 MiB and 25 % of the compute of one GPU'],
  JobSet: ['spec.replicatedJobs[0].template.spec.template: main 4096 MiB of one GPU'],
  LeaderWorkerSet: [
    'spec.leaderWorkerTemplate.leaderTemplate: main 16384 MiB of one GPU',
    'spec.leaderWorkerTemplate.workerTemplate: main 16384 MiB of one GPU',
  ],
  RayJob: [
    'spec.rayClusterSpec.headGroupSpec.template: ray-head none',
    'spec.rayClusterSpec.workerGroupSpecs[0].template: ray-worker 8192 MiB of one GPU',
  ],
  Job: ['spec.tasks[0].template: main 2048 MiB of one GPU'],
  Workflow: ['spec.templates[0]: main 6144 MiB of one GPU'],
  Notebook: ['spec.template: lab 4096 MiB of one GPU'],
  InferenceService: [
    'spec.predictor: kserve-container 12288 MiB of one GPU',
    'spec.transformer: kserve-container 1024 MiB of one GPU',
  ],
};

test('the pods of each system are found where its objects have them, and get shares', (t) => {
  t.deepEqual(
    objects.map(({ kind }) => String(kind)),
    Object.keys(EXPECTED),
  );
  for (const object of objects) {
    const { pods } = convertDocument(object, all);
    const said = pods.map(({ place, containers, problems }) =>
      [
        `${place}:`,
        ...containers.map(({ container, share }) => `${container} ${share?.meaning ?? 'none'}`),
        ...problems,
      ].join(' '),
    );
    t.deepEqual(said, EXPECTED[String(object.kind)], String(object.kind));
  }
});

test('a pod written inline is converted in its place, and a single container stays', (t) => {
  const [service] = objects.filter(({ kind }) => kind === 'InferenceService');
  const { after } = convertDocument(service ?? {}, all);
  const { predictor, transformer } = (after as { spec: Record<string, JsonObject> }).spec;
  t.deepEqual(predictor, (service as { spec: JsonObject }).spec.predictor);
  t.like(transformer, { schedulerName: 'cotenant-scheduler', volumes: [{ name: 'cotenant' }] });
  const annotated = { predictor: { annotations: { 'gpu-fraction': '0.5' }, containers: [{ name: 'a', image: 'x' }] } };
  t.like(convertDocument({ kind: 'InferenceService', spec: annotated }, all).pods, {
    0: { place: 'spec.predictor', outcome: 'share' },
  });
});

test('objects that only look like pods are no pods', (t) => {
  const places: string[] = [];
  const look = (spec: object) =>
    mapPods({ kind: 'Some', spec }, (pod, { place }) => {
      places.push(place);
      return pod;
    });
  const objects = [
    { containers: ['main'] },
    { containers: [] },
    { model: { name: 'x' } },
    { container: 'main' },
    { script: {} },
  ];
  for (const inner of objects) t.deepEqual(look({ a: inner }), { kind: 'Some', spec: { a: inner } });
  t.deepEqual(places, []);
});

/** What each system writes on the pods that it makes. */
const MARKS: Record<string, { metadata?: object; spec?: object }> = {
  Kueue: {
    metadata: { labels: { 'kueue.x-k8s.io/queue-name': 'q', 'kueue.x-k8s.io/podset': 'main' } },
    spec: { schedulingGates: [{ name: 'kueue.x-k8s.io/admission' }], nodeSelector: { pool: 'gpu' } },
  },
  JobSet: {
    metadata: { labels: { 'jobset.sigs.k8s.io/jobset-name': 's' }, annotations: { 'jobset.sigs.k8s.io/job-key': 'k' } },
    spec: { subdomain: 's', hostname: 's-workers-0-0' },
  },
  LeaderWorkerSet: {
    metadata: { labels: { 'leaderworkerset.sigs.k8s.io/worker-index': '0' } },
    spec: { affinity: { podAffinity: { requiredDuringSchedulingIgnoredDuringExecution: [] } } },
  },
  KubeRay: {
    metadata: { labels: { 'ray.io/node-type': 'worker' } },
    spec: { initContainers: [{ name: 'wait-gcs-ready', image: 'rayproject/ray' }], serviceAccountName: 'ray' },
  },
  Volcano: {
    metadata: { annotations: { 'scheduling.k8s.io/group-name': 'pg', 'volcano.sh/task-spec': 'worker' } },
    spec: { priorityClassName: 'high' },
  },
  Argo: {
    metadata: { annotations: { 'workflows.argoproj.io/node-name': 'n' } },
    spec: { initContainers: [{ name: 'init', image: 'argoexec' }], shareProcessNamespace: true },
  },
  Kubeflow: { metadata: { labels: { 'notebook-name': 'lab' } }, spec: { serviceAccountName: 'default-editor' } },
  Knative: {
    metadata: { labels: { 'serving.knative.dev/revision': 'llm-1' } },
    spec: { containerConcurrency: undefined, enableServiceLinks: false, readinessGates: [{ conditionType: 'x' }] },
  },
};

for (const [system, { metadata = {}, spec = {} }] of Object.entries(MARKS)) {
  test(`what ${system} writes on its pods stays`, (t) => {
    const pod = JSON.parse(JSON.stringify(sharePod({}, spec, metadata))) as JsonObject;
    const { outcome, pod: after } = answerOf(creation(pod), all);
    t.is(outcome, 'patched');
    const { initContainers, ...kept } = spec as Record<string, unknown>;
    t.like(after.metadata, JSON.parse(JSON.stringify(metadata)));
    t.like(after.spec, JSON.parse(JSON.stringify(kept)));
    const inits = ((after.spec as JsonObject).initContainers ?? []) as { name: string; env?: object[] }[];
    t.deepEqual(
      inits.map(({ name }) => name),
      ((initContainers ?? []) as { name: string }[]).map(({ name }) => name),
    );
    t.true(inits.every(({ env = [] }) => JSON.stringify(env).includes('"value":"void"')));
    t.deepEqual(answerOf(creation(after), all).patch, []);
  });
}

test('a foreign scheduler is kept if allowed, replaced if of a dialect, else refused', (t) => {
  const named = (settings: object, schedulerName = 'volcano') => {
    const { pod, denial } = answerOf(creation(sharePod({}, { schedulerName })), configured(settings));
    return denial ?? (pod.spec as JsonObject).schedulerName;
  };
  t.is(named({ allowedSchedulers: ['volcano'] }), 'volcano');
  t.is(named({ rules: { dialects: ['volcano'] } }), 'cotenant-scheduler');
  t.is(named({ allowedSchedulers: ['volcano'], rules: { dialects: ['volcano'] } }), 'volcano');
  t.regex(String(named({})), /^403 Forbidden: spec\.schedulerName: "volcano" does not grant shares/);
  t.is(named({ replacedSchedulers: ['jhub-user-scheduler'] }, 'jhub-user-scheduler'), 'cotenant-scheduler');
});

// Shapes of public manifests of each system, and what becomes of them: admitted as a share, refused with a code, or left
// alone. The table test/fixtures/manifests/public-shapes.txt names the source of each; its facts were written anew.
import test from 'ava';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import { convertDocument } from '../../../src/cli/commands/planning/convert.ts';
import type { JsonObject } from '../../../src/common/json.ts';
import { answerOf, configured, creation } from '../webhook/reviews.ts';
import { ALLOWED, type Pod, podOf, type Row, rows, sources } from './shapes.ts';

const KINDS: Readonly<Record<string, (pod: Pod) => object>> = {
  pod: (pod) => ({ kind: 'Pod', ...pod }),
  deploy: (template) => ({ kind: 'Deployment', spec: { template } }),
  sts: (template) => ({ kind: 'StatefulSet', spec: { template } }),
  ds: (template) => ({ kind: 'DaemonSet', spec: { template } }),
  job: (template) => ({ kind: 'Job', spec: { template } }),
  cronjob: (template) => ({ kind: 'CronJob', spec: { jobTemplate: { spec: { template } } } }),
  ray: (template) => ({ kind: 'RayCluster', spec: { workerGroupSpecs: [{ template }] } }),
  rayjob: (template) => ({ kind: 'RayJob', spec: { rayClusterSpec: { workerGroupSpecs: [{ template }] } } }),
  pytorch: (template) => ({ kind: 'PyTorchJob', spec: { pytorchReplicaSpecs: { Worker: { template } } } }),
  tfjob: (template) => ({ kind: 'TFJob', spec: { tfReplicaSpecs: { Worker: { template } } } }),
  mpi: (template) => ({ kind: 'MPIJob', spec: { mpiReplicaSpecs: { Worker: { template } } } }),
  vcjob: (template) => ({ kind: 'Job', spec: { tasks: [{ template }] } }),
  jobset: (template) => ({ kind: 'JobSet', spec: { replicatedJobs: [{ template: { spec: { template } } }] } }),
  lws: (workerTemplate) => ({ kind: 'LeaderWorkerSet', spec: { leaderWorkerTemplate: { workerTemplate } } }),
  notebook: (template) => ({ kind: 'Notebook', spec: { template } }),
  isvc: ({ metadata, spec }) => ({ kind: 'InferenceService', spec: { predictor: { ...metadata, ...spec } } }),
  workflow: ({ metadata, spec: { containers, ...spec } }) => ({
    kind: 'Workflow',
    spec: { templates: [{ metadata, ...spec, container: (containers as object[])[0] }] },
  }),
};

/** `4096 MiB of one GPU, warned`, `refused 422: ...`, or `left alone`. */
function becomeOf(row: Row): string {
  const all = configured({ rules: { dialects: row.dialects.split(','), ...ALLOWED } });
  const pod = podOf(row);
  const { pods } = convertDocument((KINDS[row.kind] ?? KINDS.pod)?.(pod) as JsonObject, all);
  const { outcome, denial = '', warnings } = answerOf(creation(pod), all);
  const [only] = pods;
  if (only === undefined || pods.length > 1) return `${pods.length} pods`;
  if (outcome === 'denied') {
    const [code, ...wrong] = denial.split(': ');
    return only.outcome === 'refused' ? `refused ${code?.slice(0, 3)}: ${wrong.slice(1).join(': ')}` : only.outcome;
  }
  if (outcome === 'allowed') return only.outcome === 'untouched' ? 'left alone' : only.outcome;
  const shares = only.containers.map(({ share }) => share?.meaning ?? 'no GPU').join(' + ');
  return `${shares}${warnings.length > 0 ? ', warned' : ''}`;
}

test('each system has its shapes, and each shape a source that is named', (t) => {
  t.true(rows.length >= 300, String(rows.length));
  for (const name of FOREIGN_DIALECT_NAMES) {
    const own = rows.filter(({ dialects }) => dialects.split(',')[0] === name);
    t.true(own.length >= 12, `${name}: ${own.length}`);
  }
  t.deepEqual(
    rows.filter(({ source, kind }) => !sources.has(source) || !(kind in KINDS)),
    [],
  );
  t.is(new Set(rows.map(({ source: _, ...shape }) => JSON.stringify(shape))).size, rows.length);
});

test('what becomes of each shape is what the table says', (t) => {
  for (const row of rows) {
    const become = becomeOf(row);
    // Of a refusal the table has what is wrong; what would be right is behind it.
    const shown = row.becomes.startsWith('refused') ? become.slice(0, row.becomes.length) : become;
    t.is(shown, row.becomes, JSON.stringify(row));
  }
});

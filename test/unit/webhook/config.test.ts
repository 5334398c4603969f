import test from 'ava';
import { formatProblem } from '../../../src/common/problem.ts';
import { DEFAULT_CONFIGURATION, parseConfiguration, rulesOf } from '../../../webhook/config.ts';
import { createMetrics } from '../../../webhook/metrics.ts';
import { PROBLEM_KINDS, REFUSED_FIELDS } from '../../../webhook/refused-field.ts';
import { configured } from './reviews.ts';

test('no settings are the defaults', (t) => {
  t.deepEqual(parseConfiguration(undefined), { ok: true, value: DEFAULT_CONFIGURATION });
  t.deepEqual(parseConfiguration({}), { ok: true, value: DEFAULT_CONFIGURATION });
});

test('a namespace starts from the rules of the cluster', (t) => {
  const configuration = configured({
    rules: { dialects: ['ack'], allowGpuUuid: true },
    namespaces: { research: { dialects: ['metagpu'] } },
  });
  t.like(rulesOf(configuration, 'research'), { dialects: ['metagpu'], allowGpuUuid: true });
  t.like(rulesOf(configuration, 'elsewhere'), { dialects: ['ack'], allowGpuUuid: true });
  t.is(rulesOf(configuration, undefined), configuration.rules);
});

test('all wrong settings are listed at once, each with its path', (t) => {
  const read = parseConfiguration({
    schedulerName: 'Not A Name',
    allowedSchedulers: 'volcano',
    runtimeClass: 'nvidia',
    deviceRoute: 'cdi',
    rules: { dialects: ['gaia'] },
    namespaces: { a: { ack: { unit: 'GB' }, driverCapabilities: ['all'] }, b: { driverCapabilities: [] } },
  });
  t.deepEqual(read.ok ? [] : read.error.map(formatProblem), [
    'rules.dialects[0]: "gaia" is not valid; write one of ack, metagpu, hami, volcano, vgpu-manager, tke, koordinator, kai, kubeshare, nos, nvidia, huawei, volcengine, baidu',
    'namespaces.a.ack.unit: "GB" is not valid; write one of GiB, MiB, 128MiB, 256MiB, 512MiB',
    'namespaces.a.driverCapabilities[0]: "all" is not valid; write one of compute, utility, graphics, video, display, ngx, compat32',
    'namespaces.b.driverCapabilities: a list of 0 is not valid; write a list of at least 1',
    'schedulerName: "Not A Name" is not valid; write a name of a-z, 0-9, "-" and "."',
    'allowedSchedulers: "volcano" is not valid; write a list',
    'deviceRoute: "cdi" is not valid; write one of nri, environment',
    'runtimeClass: "nvidia" is not a known key; write one of rules, namespaces, pools, schedulerName, allowedSchedulers, replacedSchedulers, toleratedTaints, runtimeClassName, allowedRuntimeClasses, deviceRoute, annotationWriters',
  ]);
  t.false(parseConfiguration([]).ok);
  t.false(parseConfiguration({ namespaces: [] }).ok);
});

// A taint as kubectl writes it (kubernetes.io, "Taints and Tolerations"): as the key of a toleration the API server refuses it,
// and with it every pod that has a share.
test('a taint with its value or effect is refused where its key is meant', (t) => {
  const wrongOf = (toleratedTaints: string[]) => {
    const read = parseConfiguration({ toleratedTaints });
    return read.ok ? [] : read.error.map(formatProblem);
  };
  for (const taint of [
    'nvidia.com/gpu=present:NoSchedule',
    'sku=gpu:NoSchedule',
    'nvidia.com/gpu:NoSchedule',
    'a b',
    '',
  ])
    t.deepEqual(wrongOf([taint]), [
      `toleratedTaints[0]: "${taint}" is not valid; write the key of a taint alone, such as nvidia.com/gpu`,
    ]);
  t.deepEqual(wrongOf(['nvidia.com/gpu', 'sku', 'Example.com_1', 'kubernetes.azure.com/scalesetpriority']), []);
});

test('a name that the policies could not have in CEL is refused', (t) => {
  t.false(parseConfiguration({ allowedSchedulers: ["o'neil"] }).ok);
  t.false(parseConfiguration({ replacedSchedulers: ["o'neil"] }).ok);
  t.false(parseConfiguration({ allowedRuntimeClasses: ['a\\'] }).ok);
  t.true(parseConfiguration({ annotationWriters: ['system:serviceaccount:ops:bot', 'jo@example.com'] }).ok);
});

test('a template that makes no share is refused with the setting’s path', (t) => {
  const read = parseConfiguration({
    rules: { templates: { small: { gpuMemory: '4Gi' }, none: { gpu: 0 } } },
    namespaces: { a: { templates: { two: { gpu: 2, gpuMemory: '3Mi' } } }, b: { dialects: ['ack'] } },
  });
  t.deepEqual(read.ok ? [] : read.error.map(formatProblem), [
    'rules.templates["none"].gpu: "0" is less than 1; write a whole number from 1 to 64, or leave cotenant.io/gpu out where the container needs no GPU',
    'namespaces.a.templates["two"].gpuMemory: "3Mi" is not a whole number of MiB on each of 2 GPUs; write "2Mi" or "4Mi"',
  ]);
});

test('the metrics page has every series from the start and counts observations', async (t) => {
  const metrics = createMetrics();
  metrics.observe('mutate', 'patched', 0.0003);
  metrics.observe('validate', 'denied', 2);
  metrics.certificateLoaded(new Date('2027-01-01T00:00:00Z'));
  metrics.certificateRefused();
  const page = await metrics.render();
  const all = page.split('\n').filter((line) => line.startsWith('cotenant_') && !line.includes('_bucket'));
  const [refusals, lines] = [true, false].map((is) => all.filter((line) => line.includes('_refusals_total') === is));
  t.is(refusals?.length, PROBLEM_KINDS.length * REFUSED_FIELDS.length);
  t.true(refusals?.every((line) => line.endsWith(' 0')));
  t.deepEqual(lines, [
    'cotenant_webhook_reviews_total{route="mutate",outcome="allowed"} 0',
    'cotenant_webhook_reviews_total{route="mutate",outcome="patched"} 1',
    'cotenant_webhook_reviews_total{route="mutate",outcome="denied"} 0',
    'cotenant_webhook_reviews_total{route="mutate",outcome="malformed"} 0',
    'cotenant_webhook_reviews_total{route="mutate",outcome="overloaded"} 0',
    'cotenant_webhook_reviews_total{route="mutate",outcome="internal"} 0',
    'cotenant_webhook_reviews_total{route="validate",outcome="allowed"} 0',
    'cotenant_webhook_reviews_total{route="validate",outcome="patched"} 0',
    'cotenant_webhook_reviews_total{route="validate",outcome="denied"} 1',
    'cotenant_webhook_reviews_total{route="validate",outcome="malformed"} 0',
    'cotenant_webhook_reviews_total{route="validate",outcome="overloaded"} 0',
    'cotenant_webhook_reviews_total{route="validate",outcome="internal"} 0',
    'cotenant_webhook_review_duration_seconds_sum{route="mutate"} 0.0003',
    'cotenant_webhook_review_duration_seconds_count{route="mutate"} 1',
    'cotenant_webhook_review_duration_seconds_sum{route="validate"} 2',
    'cotenant_webhook_review_duration_seconds_count{route="validate"} 1',
    'cotenant_webhook_certificate_loads_total{result="ok"} 1',
    'cotenant_webhook_certificate_loads_total{result="refused"} 1',
    'cotenant_webhook_certificate_not_after_timestamp_seconds 1798761600',
    'cotenant_webhook_live_rules_valid 1',
  ]);
  t.regex(page, /review_duration_seconds_bucket\{le="0\.0005",route="mutate"\} 1/);
});

// The line of the log and the reason in the metrics that each decision on a pod leaves.
import test from 'ava';
import { review } from '../../../webhook/admission-review.ts';
import { createMetrics } from '../../../webhook/metrics.ts';
import { PROBLEM_KINDS, REFUSED_FIELDS, refusedField } from '../../../webhook/refused-field.ts';
import { answerOf, configured, creation, sharePod } from './reviews.ts';

const SIZE = 'cotenant.io/gpu-memory';

/** As an API server sends it: a pod of a controller has no name before mutation. */
function decided(pod: object, more: object = {}, route: 'mutate' | 'validate' = 'mutate') {
  const { request, ...body } = creation(pod) as { request: object };
  const reviewed = review(route, { ...body, request: { ...request, namespace: 'team', ...more } }, configured());
  return reviewed.outcome === 'malformed' ? undefined : reviewed;
}

test('a pod that is patched or refused leaves one line with its name, others none', (t) => {
  const patched = decided(sharePod())?.decision;
  t.like(patched, { pod: 'team/p', code: 'patched' });
  t.regex(patched?.message ?? '', /^patched: \{.*"name":"main".*\}$/);
  const refused = decided(sharePod({}, { hostPID: true }))?.decision;
  t.like(refused, { pod: 'team/p', code: 'refused' });
  t.regex(refused?.message ?? '', /^refused: spec\.hostPID: true lets .*; leave it out/);
  t.is(decided({ metadata: { name: 'plain' }, spec: { containers: [{ name: 'main' }] } })?.decision, undefined);
  const again = answerOf(creation(sharePod())).pod;
  t.is(decided(again)?.decision, undefined, 'what was patched before is not patched again');
});

test('a line names pods without a name by their prefix, and says dry runs', (t) => {
  t.is(decided(sharePod({}, {}, { name: undefined, generateName: 'web-7d9-' }))?.decision?.pod, 'team/web-7d9-*');
  t.is(decided(sharePod(), { name: 'of-the-request' })?.decision?.pod, 'team/of-the-request');
  t.regex(decided(sharePod(), { dryRun: true })?.decision?.message ?? '', /^patched, in a dry run: \{/);
  t.regex(
    decided(sharePod({}, { hostPID: true }), { dryRun: true })?.decision?.message ?? '',
    /^refused, in a dry run: spec/,
  );
});

test('refusals are counted by kind and field, once each for one review', async (t) => {
  const metrics = createMetrics();
  const count = async (kind: string, field: string) => {
    const name = `cotenant_webhook_refusals_total{kind="${kind}",field="${field}"}`;
    const [line = ''] = (await metrics.render()).split('\n').filter((one) => one.startsWith(name));
    return Number(line.slice(name.length));
  };
  t.is(await count('forbidden', 'hostPID'), 0, 'there before the first one');
  const volumeMounts = Array.from({ length: 20 }, () => ({ name: 'own', mountPath: '/run/cotenant' }));
  metrics.refused(decided(sharePod({ volumeMounts }, { hostPID: true }))?.problems ?? []);
  metrics.refused(decided(sharePod({ resources: { limits: { [SIZE]: '4G' } } }))?.problems ?? []);
  t.is(await count('forbidden', 'hostPID'), 1);
  t.is((await count('forbidden', 'volumeMounts')) + (await count('invalid', 'volumeMounts')), 1, 'not twenty');
  t.is(await count('invalid', 'resources'), 1);
});

test('no pod makes a series of its own', async (t) => {
  const metrics = createMetrics();
  const series = async () =>
    (await metrics.render()).split('\n').filter((line) => line.startsWith('cotenant_webhook_refusals_total{')).length;
  t.is(await series(), PROBLEM_KINDS.length * REFUSED_FIELDS.length);
  const hostile = (index: number) =>
    sharePod(
      { name: `c.${index}]`, resources: { limits: { [`cotenant.io/x${index}`]: '1' } } },
      {},
      { annotations: { [`gpu-uuids.cotenant.io/c${index}`]: 'x' } },
    );
  for (let index = 0; index < 50; index += 1) metrics.refused(decided(hostile(index))?.problems ?? []);
  metrics.refused([{ kind: 'invalid', path: 'spec.madeUp.by["a pod"]', wrong: 'is wrong', right: 'mend it' }]);
  t.is(await series(), PROBLEM_KINDS.length * REFUSED_FIELDS.length);
});

test('the field of a path is the part of the pod or container that is at fault', (t) => {
  const fields = {
    'spec.containers[1].resources.limits["a.b/containers[0].env"]': 'resources',
    'spec.initContainers[0].env': 'env',
    'spec.ephemeralContainers[2].securityContext.privileged': 'securityContext',
    'spec.initContainers': 'initContainers',
    'spec.containers[0].volumeMounts[3].mountPath': 'volumeMounts',
    'spec.volumes[0]': 'volumes',
    'spec.nodeSelector["kubernetes.io/os"]': 'nodeSelector',
    'spec.schedulerName': 'schedulerName',
    'metadata.annotations["spec.volumes"]': 'annotations',
    'rules.dialects': 'other',
    'request.object': 'other',
    '': 'other',
  };
  t.deepEqual(Object.fromEntries(Object.keys(fields).map((path) => [path, refusedField({ path })])), fields);
});

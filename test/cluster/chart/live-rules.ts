// Live rules on a real API server: a wrong ConfigMap is refused where it is written, a right one holds without a
// rollout, and the settings of the chart hold again once it is deleted.
import type { ExecutionContext } from 'ava';
import { type Bed, BUSYBOX_IMAGE } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { NAMESPACE } from '../bed/product.ts';

const rulesOf = (text: string, name = 'cotenant-webhook-rules') => ({
  apiVersion: 'v1',
  kind: 'ConfigMap',
  metadata: { name, namespace: NAMESPACE },
  data: { 'rules.yaml': text },
});

export async function checkLiveRules(t: ExecutionContext, bed: Bed): Promise<void> {
  const apply = (object: object) => bed.kubectlWith(JSON.stringify(object), 'apply', '-f', '-');
  const wrong = apply(rulesOf('rules: {most: {gpuMemory: 1G}}'));
  t.not(wrong.code, 0);
  t.regex(
    wrong.err,
    /"rules\.cotenant\.io" denied the request: rules\.most\.gpuMemory: "1G" is not valid; write an amount of whole MiB/,
  );
  t.is(apply(rulesOf('rules: {most: {gpuMemory: 1G}}', 'of-others')).code, 0, 'no other ConfigMap is reviewed');

  const pods = (await bed.api.get<{ items: { metadata: { uid: string } }[] }>(`/api/v1/namespaces/${NAMESPACE}/pods`))
    ?.items;
  const pool = 'pools: {small: {nodeSelector: {pool: small}, most: {gpuMemory: 1Gi}}}';
  t.is(apply(rulesOf(pool)).code, 0);
  const limits = { 'cotenant.io/gpu-memory': '2Gi' };
  const refusalOf = (nodeSelector: object) => {
    const containers = [{ name: 'main', image: BUSYBOX_IMAGE, resources: { limits } }];
    const pod = { apiVersion: 'v1', kind: 'Pod', metadata: { name: 'x' }, spec: { nodeSelector, containers } };
    const { code, err } = bed.kubectlWith(JSON.stringify(pod), 'create', '--dry-run=server', '-f', '-');
    return code === 0 ? '' : err;
  };
  const refused = await eventually(() => refusalOf({ pool: 'small' }) || undefined, 'the live rules are in force');
  t.regex(refused, /is 2Gi of cotenant\.io\/gpu-memory; at most 1Gi is allowed/);
  t.is(refusalOf({}), '');
  t.is(apply(rulesOf('pools: {}\nrules: {allowPtrace: true}')).code, 1, 'what policies decide is not for live rules');
  t.is(bed.kubectl('-n', NAMESPACE, 'delete', 'configmap', 'cotenant-webhook-rules', 'of-others').code, 0);
  await eventually(() => refusalOf({ pool: 'small' }) === '' || undefined, 'the settings of the chart are in force');
  const after = (await bed.api.get<{ items: { metadata: { uid: string } }[] }>(`/api/v1/namespaces/${NAMESPACE}/pods`))
    ?.items;
  const uids = (list: typeof after) => list?.map(({ metadata }) => metadata.uid).sort();
  t.deepEqual(uids(after), uids(pods), 'no replica was replaced');
}

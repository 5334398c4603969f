// ResourceQuotas and LimitRanges of a real API server for pods of every dialect: the server counts and limits what the
// webhook makes of them. And pods of a system that is alive, which are left to it.
import type { ExecutionContext } from 'ava';
import { parseQuantity, wholeUnits } from '../../../src/common/quantity.ts';
import { type Asking, DIALECT_AMOUNTS } from '../../unit/webhook/dialect-amounts.ts';
import { type Bed, BUSYBOX_IMAGE } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';

const RESOURCES = ['cotenant.io/gpu', 'cotenant.io/gpu-memory', 'cotenant.io/gpu-cores'];

const podOf = (name: string, namespace: string, { limits, metadata }: Asking) => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, namespace, ...metadata },
  spec: { containers: [{ name: 'main', image: BUSYBOX_IMAGE, ...(limits && { resources: { limits } }) }] },
});

const quotaOf = (namespace: string, amounts: readonly string[]) => ({
  apiVersion: 'v1',
  kind: 'ResourceQuota',
  metadata: { name: 'gpus', namespace },
  spec: { hard: Object.fromEntries(RESOURCES.map((name, index) => [`requests.${name}`, amounts[index]])) },
});

/** A namespace in which pods can be created, with an object that limits them. */
async function open(bed: Bed, name: string, limit: object): Promise<void> {
  bed.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name } }, limit);
  await eventually(() => bed.get('serviceaccount', 'default', name), `the service account of ${name}`);
}

type Quota = { readonly status?: { readonly used?: Readonly<Record<string, string>> } };

function usedIn(bed: Bed, namespace: string): readonly number[] | undefined {
  const used = bed.get<Quota>('resourcequota', 'gpus', namespace)?.status?.used;
  return (
    used &&
    RESOURCES.map((name) => {
      const read = parseQuantity(used[`requests.${name}`] ?? '');
      return Number(read.ok ? wholeUnits(read.value, 1n) : Number.NaN);
    })
  );
}

const create = (bed: Bed, pod: object) => bed.kubectlWith(JSON.stringify(pod), 'create', '-f', '-');

export async function checkQuotas(t: ExecutionContext, bed: Bed): Promise<void> {
  await open(bed, 'counted', quotaOf('counted', ['100', '1Ti', '1k']));
  await open(bed, 'full', quotaOf('full', ['0', '1Ti', '1k']));
  await open(bed, 'ranged', {
    apiVersion: 'v1',
    kind: 'LimitRange',
    metadata: { name: 'gpus', namespace: 'ranged' },
    // Of a container the server would make the maximum the default of each container.
    spec: { limits: [{ type: 'Pod', max: { 'cotenant.io/gpu': '1', 'cotenant.io/gpu-memory': '1Gi' } }] },
  });
  let before = await eventually(() => usedIn(bed, 'counted'), 'the quota is counted');
  await eventually(() => usedIn(bed, 'full'), 'the full quota is counted');
  for (const [name, asking] of Object.entries(DIALECT_AMOUNTS)) {
    const made = create(bed, podOf(name, 'counted', asking));
    t.is(made.code, 0, `${name}: ${made.err}`);
    const [gpu, mebibytes, cores] = asking.counts;
    const wanted = [gpu, mebibytes * 2 ** 20, cores].map((amount, index) => amount + (before[index] ?? 0));
    t.deepEqual(usedIn(bed, 'counted'), wanted, name);
    before = wanted;
    t.regex(
      create(bed, podOf(name, 'full', asking)).err,
      /exceeded quota: gpus, requested: .*cotenant\.io\/gpu=/,
      name,
    );
    t.regex(create(bed, podOf(name, 'ranged', asking)).err, /maximum cotenant\.io\/gpu(-memory)? usage per Pod/, name);
  }
  for (const name of ['counted', 'full', 'ranged']) bed.kubectl('delete', 'namespace', name, '--wait=false');
}

/** A Node with an amount of a device plugin shows that its system is alive. */
export async function checkLiving(t: ExecutionContext, bed: Bed, node: string): Promise<void> {
  const name = 'tencent.com/vcuda-core';
  const amountIs = (amount: string) => {
    const amounts = { [name]: amount };
    const patch = JSON.stringify({ status: { capacity: amounts, allocatable: amounts } });
    const said = bed.kubectl('patch', 'node', node, '--subresource=status', '--type=merge', '-p', patch);
    t.is(said.code, 0, said.err);
  };
  const dryRun = (asking: Asking) => {
    const args = ['create', '--dry-run=server', '-o', 'json', '-f', '-'];
    const { out, err } = bed.kubectlWith(JSON.stringify(podOf('x', 'default', asking)), ...args);
    return { limits: out === '' ? undefined : JSON.parse(out).spec.containers[0].resources.limits, said: err.trim() };
  };
  amountIs('100');
  const { tke, ack } = DIALECT_AMOUNTS;
  const left = await eventually(() => {
    const answer = dryRun(tke);
    return answer.said.includes('left to tke') ? answer : undefined;
  }, 'pods are left to the system');
  t.deepEqual(left.limits, tke.limits);
  t.regex(
    left.said,
    /^Warning: rule foreignSystems: left to tke, which is alive here: node .* has tencent\.com\/vcuda-core$/m,
  );
  t.truthy(dryRun(ack).limits?.['cotenant.io/gpu-memory']);
  amountIs('0');
  await eventually(() => dryRun(tke).limits?.['cotenant.io/gpu-memory'], 'pods are converted again');
}

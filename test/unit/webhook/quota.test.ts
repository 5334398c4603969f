// What a ResourceQuota counts of a pod of each dialect: the patched pod's requests, as Kubernetes' evaluator of pods
// adds them up.
import test from 'ava';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import { parseQuantity, wholeUnits } from '../../../src/common/quantity.ts';
import { DIALECT_AMOUNTS } from './dialect-amounts.ts';
import { answerOf, configured, creation, sharePod } from './reviews.ts';

type Container = { readonly resources?: Readonly<Record<'limits' | 'requests', Record<string, string>>> };

const amountOf = (text = '0'): number => {
  const read = parseQuantity(text);
  return Number(read.ok ? wholeUnits(read.value, 1n) : Number.NaN);
};

for (const name of FOREIGN_DIALECT_NAMES) {
  test(`a quota counts what a pod in the names of ${name} asks for, and no other resource`, (t) => {
    const { limits = {}, metadata = {}, counts } = DIALECT_AMOUNTS[name];
    const pod = sharePod({ resources: { limits, requests: limits } }, {}, metadata);
    const { pod: patched, denial } = answerOf(creation(pod), configured({ rules: { dialects: [name] } }));
    t.is(denial, undefined);
    const [main] = (patched.spec as { containers: Container[] }).containers;
    const requests = main?.resources?.requests ?? {};
    t.deepEqual(requests, main?.resources?.limits);
    const [gpu, memory, cores] = ['gpu', 'gpu-memory', 'gpu-cores'].map((end) =>
      amountOf(requests[`cotenant.io/${end}`]),
    );
    t.deepEqual([gpu, (memory ?? 0) / 2 ** 20, cores], [...counts]);
    t.true(Object.keys(requests).every((key) => key.startsWith('cotenant.io/')));
  });
}

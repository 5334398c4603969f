// A pod gets the size that `cotenant recommend` found, by the lines that its owner would paste.
import { type Amounts, attach, clientOf, MIB, podOf, untilRunning } from '../support/pods.ts';
import { cotenant, type OnCluster, OUT_OF_MEMORY, sampled, seriesWhen, TEAM } from './common.ts';

const GRANULE_MIB = 2;
/** Memory of several kinds, and launches. */
const WORK = [
  'init',
  'context 0',
  `alloc ${301 * MIB + 17}`,
  `pool-alloc ${50 * MIB}`,
  `vmm ${64 * MIB}`,
  'launch 10 500',
  'sync',
  `alloc ${33 * MIB}`,
];
const WORK_BYTES = 448 * MIB;

type Found = {
  readonly pod: string;
  readonly memoryBytes: { readonly amount: number; readonly atLeast: boolean };
  readonly resources: Amounts;
};

export function recommended(onCluster: OnCluster): void {
  onCluster('a pod works at its recommended size and is refused with one granule less', async (t, { bed }) => {
    /** True if nothing was refused. */
    const works = async (name: string, limits: Amounts): Promise<boolean> => {
      bed.apply(podOf(name, [clientOf(limits)], TEAM));
      await untilRunning(bed, name, TEAM);
      const talk = attach(bed, name, TEAM.namespace);
      try {
        for (const step of WORK) {
          const [result] = await talk.ask(step);
          if (result === OUT_OF_MEMORY) return false;
          if (result !== 0) throw new Error(`${name}: ${step}: ${result}`);
        }
        return true;
      } finally {
        await talk.leave();
      }
    };
    const recommend = (name: string): Found => {
      const found = JSON.parse(cotenant(bed, 'recommend', `${TEAM.namespace}/${name}`, '--json')) as Found[];
      if (found.length !== 1 || found[0] === undefined) throw new Error(JSON.stringify(found));
      return found[0];
    };
    t.true(await works('sized-large', { 'cotenant.io/gpu-memory': '4Gi' }));
    await sampled(bed);
    await seriesWhen(bed, 'cotenant_container_memory_used_bytes', 'sized-large', (bytes) => bytes > WORK_BYTES);
    const { memoryBytes, resources } = recommend('sized-large');
    t.false(memoryBytes.atLeast);
    const mib = memoryBytes.amount / MIB;
    t.true(mib > WORK_BYTES / MIB && mib < 1500, String(mib));
    t.deepEqual(resources, { 'cotenant.io/gpu-memory': `${mib}Mi` }, 'the lines to paste');

    t.true(await works('sized-fitting', resources), 'the recommended size');
    t.false(await works('sized-small', { 'cotenant.io/gpu-memory': `${mib - GRANULE_MIB}Mi` }), 'one granule less');
    await seriesWhen(bed, 'cotenant_container_allocations_denied_total', 'sized-small', (count) => count > 0);
    t.true(recommend('sized-small').memoryBytes.atLeast, 'which is known to be too little');
    for (const name of ['sized-large', 'sized-fitting', 'sized-small'])
      t.is(bed.kubectl('-n', TEAM.namespace, 'delete', 'pod', name, '--wait=false').code, 0);
  });
}

// What GPUs have given away, by the grants on a node.
import test from 'ava';
import { grantedOn, heldBy } from '../../../../src/agent/grants/sums.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { grantOf } from '../node.ts';

const ofPod = (id: string, mib: number, kind: 'init' | 'app', podUid = 'pod') => ({
  ...grantOf(id, mib, [0]),
  owner: { podUid, target: '/t', kind },
});

test('containers of one pod are summed together, process grants each by itself', (t) => {
  const grants = [
    ofPod('one', 100, 'init'),
    grantOf('two', 50, [0, 1]),
    ofPod('three', 70, 'app'),
    grantOf('four', 5, [1]),
  ];
  t.deepEqual(
    heldBy(grants).map(({ podUid, containers }) => [podUid, containers.map(({ kind, gpus }) => [kind, gpus.length])]),
    [
      [
        'pod',
        [
          ['init', 1],
          ['app', 1],
        ],
      ],
      [undefined, [['app', 2]]],
      [undefined, [['app', 1]]],
    ],
  );
  t.like(grantedOn(grants, 'GPU-0'), { memoryBytes: 150 * MIB, tenants: 2 });
  t.like(grantedOn(grants, 'GPU-1'), { memoryBytes: 55 * MIB, tenants: 2 });
  t.like(grantedOn(grants, 'GPU-2'), { memoryBytes: 0, tenants: 0 });
});

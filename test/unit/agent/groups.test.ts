// In which group a container is: found by its processes, remembered, and not looked for all the time where it has none.
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { createGroups } from '../../../src/agent/groups.ts';
import { temporaryFolder } from '../../support/node.ts';
import { grantOf } from './node.ts';

const POD_UID = '11111111-1111-1111-1111-111111111111';
const ID = 'a'.repeat(64);
const GROUP = `/kubepods/pod${POD_UID}/${ID}`;
const grant = grantOf('one', 100, [0], { owner: { podUid: POD_UID, target: '/t', kind: 'app' } });

test('a container without a process is looked for less and less often, and found once it has one', (t) => {
  const mount = temporaryFolder(t);
  mkdirSync(join(mount, GROUP), { recursive: true });
  let [second, isThere] = [0, false];
  const looks: number[] = [];
  const groups = createGroups(
    {
      readProcess: () => ({ state: 'R', startTicks: 1, cgroup: isThere ? `0::${GROUP}` : '0::/user.slice' }) as never,
    },
    { newest: () => ({ id: ID }) as never },
    () => second * 1000,
    mount,
    () => {
      looks.push(second);
      return ['self', '77'];
    },
  );
  for (; second <= 20; second += 1) t.is(groups.of([grant], () => []).size, 0);
  t.deepEqual(looks, [0, 1, 3, 7, 15]);
  isThere = true;
  for (; second <= 40; second += 1) groups.of([grant], () => []);
  t.is(groups.of([grant], () => []).get('one'), join(mount, GROUP));
  t.is(looks.at(-1), 31);
  t.is(groups.of([], () => []).size, 0);
});

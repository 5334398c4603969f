// In which group a container is: found by its processes, remembered, and not looked for all the time where it has none.
import { mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { createCgroupFinder } from '../../../../src/agent/attribution/cgroup-finder.ts';
import type { SampledProcess } from '../../../../src/agent/sampling/sample.ts';
import { temporaryFolder } from '../../../support/native/node.ts';
import { grantOf, sampledProcess } from '../node.ts';

const POD_UID = '11111111-1111-1111-1111-111111111111';
const ID = 'a'.repeat(64);
const GROUP = `/kubepods/pod${POD_UID}/${ID}`;
const grant = grantOf('one', 100, [0], { owner: { podUid: POD_UID, target: '/t', kind: 'app' } });

test('a container without a process is looked up less and less often until it has one', (t) => {
  const mount = temporaryFolder(t);
  mkdirSync(join(mount, GROUP), { recursive: true });
  let [second, isThere] = [0, false];
  const looks: number[] = [];
  const groups = createCgroupFinder({
    native: {
      readProcess: () => ({ ended: false, startTicks: 1, cgroup: isThere ? `0::${GROUP}` : '0::/user.slice' }) as never,
    },
    containers: { newest: () => ({ id: ID }) as never, nameOf: () => undefined },
    clock: () => second * 1000,
    mount,
    processes() {
      looks.push(second);
      return ['self', '77'];
    },
  });
  for (; second <= 20; second += 1) t.is(groups.findAll([grant], () => []).size, 0);
  t.deepEqual(looks, [0, 1, 3, 7, 15]);
  isThere = true;
  for (; second <= 40; second += 1) groups.findAll([grant], () => []);
  t.is(groups.findAll([grant], () => []).get('one'), join(mount, GROUP));
  t.is(looks.at(-1), 31);
  t.is(groups.findAll([], () => []).size, 0);
});

test("a process grant's cgroup is found while it exists", (t) => {
  const mount = temporaryFolder(t);
  const plain = grantOf('abc123', 100, [0], { owner: { pid: 1, startTicks: 1, cgroup: '/user.slice' } });
  const folder = join(mount, '/user.slice/cotenant-abc123');
  const groups = createCgroupFinder({
    native: { readProcess: () => undefined },
    containers: { newest: () => undefined, nameOf: () => undefined },
    clock: () => 0,
    mount,
  });
  const found = () => groups.findAll([plain], () => []).get('abc123');
  t.is(found(), undefined);
  mkdirSync(folder, { recursive: true });
  t.is(found(), folder);
  rmSync(folder, { recursive: true });
  t.is(found(), undefined);
});

test('another process or container of a pod is looked up at once', (t) => {
  const mount = temporaryFolder(t);
  const [one, other] = ['a', 'b'].map((digit) => digit.repeat(64)) as [string, string];
  const groupOf = (id: string) => `/kubepods/pod${POD_UID}/${id}`;
  for (const id of [one, other]) mkdirSync(join(mount, groupOf(id)), { recursive: true });
  let newest: string | undefined;
  const groups = createCgroupFinder({
    native: { readProcess: () => undefined },
    containers: { newest: () => (newest === undefined ? undefined : { id: newest }), nameOf: () => undefined },
    clock: () => 0,
    mount,
    processes: () => [],
  });
  const found = (processes: readonly SampledProcess[]) => groups.findAll([grant], () => processes).get('one');
  const inside = (id: string, pid: number) => sampledProcess(pid, [], { cgroup: `0::${groupOf(id)}` });
  const first = [inside(one, 11)];
  t.is(found([]), undefined);
  t.is(found(first), join(mount, groupOf(one)));
  t.is(found(first), join(mount, groupOf(one)));
  const second = [inside(other, 12)];
  t.is(found(second), join(mount, groupOf(other)), 'another container by its process');
  newest = one;
  const both = [...second, ...first];
  t.is(found(both), join(mount, groupOf(one)), 'the newest as the runtime reports it');
  newest = other;
  t.is(found(both), join(mount, groupOf(other)), 'the same processes');
});

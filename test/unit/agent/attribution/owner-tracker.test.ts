// Whose processes are, from sample to sample: what is known is not asked again, what has changed is.
import test from 'ava';
import { createOwnerTracker } from '../../../../src/agent/attribution/owner-tracker.ts';
import type { Grant } from '../../../../src/agent/grants/grant.ts';
import type { LiveGrant } from '../../../../src/agent/grants/live-grant.ts';
import type { SampledProcess } from '../../../../src/agent/sampling/sample.ts';
import { gpu, grantOf, sampledProcess, sampleOf, use } from '../node.ts';
import { NO_PODS } from './no-pods.ts';

function ownersOf(grants: () => readonly Grant[]) {
  const asked: number[] = [];
  let alive = true;
  const list = () => grants().map((grant) => ({ grant }) as LiveGrant);
  const owners = createOwnerTracker({
    registry: { list, get: (id) => list().find(({ grant }) => grant.id === id) },
    pods: NO_PODS,
    isAlive(pid) {
      asked.push(pid);
      return alive;
    },
  });
  return {
    asked,
    die: () => {
      alive = false;
    },
    of(processes: readonly SampledProcess[], gpus = [gpu(0)]) {
      const { ownerOf } = owners.attribute(sampleOf(gpus, processes));
      return processes.map((process) => {
        const owner = ownerOf(process);
        return owner.kind === 'grant' ? owner.id : owner.kind;
      });
    },
  };
}

const child = (pid: number, ancestors: readonly number[], gpus = [use(0)]) => sampledProcess(pid, gpus, { ancestors });
const one = grantOf('one', 100, [0], { owner: { pid: 1000, startTicks: 5, cgroup: '' } });

test('whether a root process runs is checked once per sample, for new processes only', (t) => {
  const { of, asked, die } = ownersOf(() => [one]);
  const processes = [child(11, [1000, 1]), child(12, [1000, 1])];
  t.deepEqual(of(processes), ['one', 'one']);
  t.deepEqual(asked, [1000]);
  t.deepEqual(of(processes), ['one', 'one']);
  t.deepEqual(asked, [1000], 'the same objects as before');
  const busy = [child(11, [1000, 1], [use(0, { smUs: 5 })]), processes[1] as SampledProcess];
  t.deepEqual(of(busy), ['one', 'one']);
  t.deepEqual(asked, [1000], 'other figures of a known process');
  die();
  t.deepEqual(of([...busy, child(13, [1000, 1])]), ['one', 'one', 'host']);
  t.deepEqual(asked, [1000, 1000]);
});

test('the same processes and grants keep their owners; others are looked at again', (t) => {
  const live = [{ grant: one } as LiveGrant];
  let grants: readonly LiveGrant[] = live;
  const registry = { list: () => grants, get: () => grants[0] };
  const owners = createOwnerTracker({ registry, pods: NO_PODS, isAlive: () => true });
  const sample = sampleOf([gpu(0)], [child(11, [1000, 1])]);
  const first = owners.attribute(sample);
  t.is(owners.attribute({ ...sample, round: sample.round + 1 }), first);
  grants = [];
  t.deepEqual(owners.attribute(sample).grantIds, [], 'the grant has ended');
  grants = live;
  t.deepEqual(owners.attribute(sample).grantIds, ['one'], 'a grant has come');
  const mixed = sampleOf([gpu(0)], [...sample.processes, child(12, [1])]);
  t.not(owners.attribute(mixed), owners.attribute(mixed), 'the owner of the other one may become known');
});

test('an ended grant has no processes; a new grant takes those without an owner', (t) => {
  let grants: readonly Grant[] = [];
  const { of } = ownersOf(() => grants);
  const processes = [child(11, [1000, 1])];
  t.deepEqual(of(processes), ['host']);
  grants = [one];
  t.deepEqual(of(processes), ['one']);
  grants = [];
  t.deepEqual(of(processes), ['host']);
});

test('a known process stays known while its GPU is not reported and it runs', (t) => {
  const { of, die } = ownersOf(() => [one]);
  const orphan = { ...child(11, [1]) };
  t.deepEqual(of([child(11, [1000, 1])]), ['one']);
  t.deepEqual(of([], [gpu(0, { processLists: [] })]), []);
  t.deepEqual(of([orphan]), ['one'], 'its parents are gone, and it stays');
  t.deepEqual(of([orphan]), ['one']);
  t.deepEqual(of([], [gpu(0, { processLists: [] })]), []);
  die();
  t.deepEqual(of([], [gpu(0, { processLists: [] })]), []);
  t.deepEqual(of([orphan]), ['host'], 'it had died, and this is another process');
});

test('a pid that comes again is another process', (t) => {
  const { of } = ownersOf(() => [one]);
  t.deepEqual(of([child(11, [1000, 1])]), ['one']);
  t.deepEqual(of([{ ...child(11, [1]), startTicks: 777 }]), ['host']);
});

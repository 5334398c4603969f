// What churn.test.ts looks at, done in a mount namespace of its own: churn-inside.ts churn FOLDER FIRST COUNTED. Pods come
// with their volume, run for some samples and end: FIRST of them, then COUNTED. Prints what the agent's node half has more of
// at the end than after the first.
import { readFileSync } from 'node:fs';
import { unmountVolume } from '../../../../src/agent/kubelet/csi/volume.ts';
import type { SampledProcess } from '../../../../src/agent/sampling/sample.ts';
import { EVENT_QUOTA } from '../../../../src/common/quota.ts';
import { grown, takeCensus } from '../../../support/machine/object-census.ts';
import { containerIdOf, native, processOf, publish, sampleOf, start, targetOf, uidOf } from './pods-node.ts';

const [first = 0, counted = 0] = process.argv.slice(4).map(Number);
/** Each so many pods one is stopped, once all of the first ones were. */
const STOPPED_EVERY = 7;
/**
 * Less than one object kept of each pod, or one mapping of each, but for the quotas of the newest grants that were acted on
 * (src/common/quota.ts).
 */
const quotas = Math.min(EVENT_QUOTA.mostKeys, counted / STOPPED_EVERY);
const most = { objects: first * 0.8 + quotas, mib: 3 };
/** Pods that are there at a time. */
const AT_ONCE = 3;
const WITHIN_MIB = 100;
const OVER_MIB = 400;
const DAY_S = 24 * 3600;

const started = start();
const { node } = started;
let actions = 0;
let refused = 0;
let round = 0;
const running: number[] = [];
let seconds = 0;
let aheadMs = 0;

/** A second after the last one. */
function sample(...processes: readonly SampledProcess[]): void {
  seconds += 1;
  node.onSample({ ...sampleOf(...processes), round: seconds, atMs: Date.now() + aheadMs, bootNs: seconds * 1e9 });
}

function end(pod: number): void {
  // As the CSI driver takes a volume down.
  node.unpublish(uidOf(pod), targetOf(pod));
  unmountVolume(native, targetOf(pod));
  node.containers.remove(containerIdOf(pod, 'a'));
}

function cycle(pods: number, isOver: (pod: number) => boolean): void {
  for (let count = 0; count < pods; count += 1) {
    round += 1;
    const given = publish(started, round, { a: 300 });
    if (given !== 'given') refused += 1;
    running.push(round);
    const used = (pod: number) => (isOver(pod) ? OVER_MIB : WITHIN_MIB);
    // One that has no grant runs beside them.
    const foreign = {
      ...processOf(round + 2 ** 20, 'b', 10),
      cgroup: `0::/kubepods/podx/${containerIdOf(round, 'b')}`,
    };
    for (let count = 0; count < 3; count += 1) sample(...running.map((pod) => processOf(pod, 'a', used(pod))), foreign);
    if (running.length === AT_ONCE) end(running.shift() ?? 0);
    actions += started.actions.splice(0).length;
    started.problems.length = 0;
  }
  for (const pod of running.splice(0)) end(pod);
  sample();
  // Counters of what has ended stay for a while, and the history of ten minutes.
  seconds += DAY_S;
  aheadMs = DAY_S * 1000;
  sample();
  sample();
  aheadMs = 0;
}

async function look() {
  const left = node.snapshot()?.containers.length;
  // Of files: the heap has some without.
  const mappings = readFileSync('/proc/self/maps', 'utf8').match(/ \/.*/g)?.length ?? 0;
  const mounts = readFileSync('/proc/self/mountinfo', 'utf8').split('\n').length;
  return { left, mappings, mounts, census: await takeCensus() };
}

sample();
// Once before, for what is kept of the newest whatever comes: of actions the audit log has some hundred.
cycle(first, () => true);
const before = await look();
cycle(counted, (pod) => pod % STOPPED_EVERY === 0);
const after = await look();
await node.close();
console.log(
  JSON.stringify({
    grown: grown(before.census, after.census, most),
    mappings: after.mappings - before.mappings,
    mounts: after.mounts - before.mounts,
    left: after.left,
    ...{ actions, refused, before: before.census, after: after.census },
  }),
);

// What pods.test.ts looks at, done in a mount namespace of its own: pods-inside.ts SCENARIO FOLDER. The agent's node
// half with real volumes, pages and ledgers, over samples that the scenario makes up. Prints facts as JSON; which of
// them are right is said by the test.
import { fstatSync, mkdirSync, rmSync, statSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import { SLOTS } from '../../../../src/agent/grants/files.ts';
import { podGrantId } from '../../../../src/agent/grants/grant.ts';
import { libraries } from '../../../../src/agent/grants/registry.ts';
import { ledgerPath, mountVolume, pagePath, withWritable } from '../../../../src/agent/kubelet/csi/volume.ts';
import type { Node } from '../../../../src/agent/node-api.ts';
import type { SampledProcess } from '../../../../src/agent/sampling/sample.ts';

import {
  annotationsOf,
  containerIdOf,
  descriptors,
  fill,
  folder,
  granted,
  native,
  processOf,
  publish,
  publishAs,
  type Started,
  sampleOf,
  shown,
  start,
  state,
  stored,
  targetOf,
  uidOf,
} from './pods-node.ts';

const [scenario = ''] = process.argv.slice(2);

const scenarios: Record<string, () => unknown> = {
  starved() {
    const first = start();
    first.node.onSample(sampleOf());
    const given = publish(first, 1, { a: 400, b: 400 });
    first.node.close();
    const [a, b] = [ledgerPath(targetOf(1), 'a'), ledgerPath(targetOf(1), 'b')];
    const { size } = statSync(a);
    truncateSync(b, 0);
    const full = fill(a);
    const second = start();
    second.node.containers.add(containerIdOf(1, 'b'), { podUid: uidOf(1), container: 'b' });
    const started = [...second.problems];
    for (let round = 0; round < 3; round++) second.node.onSample(sampleOf(processOf(1, 'b', 500)));
    const facts = {
      given,
      full,
      started,
      reported: [...second.problems],
      actions: [...second.actions],
      shown: shown(second),
      foreign: second.node.snapshot()?.foreign,
      other: publish(second, 2, { c: 300 }),
    };
    truncateSync(a, size);
    second.node.onSample(sampleOf());
    second.node.onSample(sampleOf());
    return { ...facts, size, after: { shown: shown(second), size: statSync(b).size } };
  },

  restarted() {
    const started = start();
    started.node.onSample(sampleOf());
    publish(started, 1, { a: 400, b: 400 });
    const [a, b] = [ledgerPath(targetOf(1), 'a'), ledgerPath(targetOf(1), 'b')];
    const { size } = statSync(a);
    truncateSync(b, 0);
    fill(a);
    const gpus = started.node.containerStarts(uidOf(1), 'b');
    const problems = [...started.problems];
    started.node.onSample(sampleOf());
    const during = statSync(b).size;
    truncateSync(a, size);
    started.node.onSample(sampleOf());
    return { gpus, problems, during, size, after: statSync(b).size };
  },

  lost() {
    const first = start();
    first.node.onSample(sampleOf());
    publish(first, 1, { a: 300, b: 400 });
    first.node.close();
    rmSync(join(state, 'grants', podGrantId(uidOf(1), 'b')), { recursive: true });
    const second = start();
    second.node.onSample(sampleOf());
    const holds = [second.node.holds(uidOf(1), targetOf(1))];
    const other = publish(second, 2, { c: 600 });
    const again = publish(second, 1, { a: 300, b: 400 }, true);
    holds.push(second.node.holds(uidOf(1), targetOf(1)));
    second.node.onSample(sampleOf());
    second.node.close();
    const third = start();
    third.node.onSample(sampleOf());
    return { holds, other, again, shown: shown(third), granted: granted(third), problems: third.problems };
  },

  half() {
    const started = start();
    started.node.onSample(sampleOf());
    // Something else is mounted where its page belongs.
    mkdirSync(join(folder, 'pods'));
    const target = targetOf(1);
    mountVolume(native, {
      target,
      containers: ['a'],
      ledgerBytes: native.ledgerBytes(SLOTS, 1),
      libraries: libraries(),
    });
    withWritable(native, target, () => mkdirSync(pagePath(target, 'a')));
    native.mountTmpfs(pagePath(target, 'a'), 'size=4k', false);
    const before = descriptors();
    const tries = Array.from({ length: 5 }, () => {
      try {
        return publish(started, 1, { a: 300 });
      } catch (error) {
        return (error as Error).message.replace(folder, '');
      }
    });
    const after = { more: descriptors() - before, stored: stored(), holds: started.node.holds(uidOf(1), targetOf(1)) };
    native.unmount(pagePath(target, 'a'), false);
    return { tries: [...new Set(tries)], after, later: publish(started, 1, { a: 300 }), stored: stored() };
  },

  otherVolume() {
    const started = start();
    started.node.onSample(sampleOf());
    publish(started, 1, { a: 300 });
    started.node.unpublish(uidOf(1), `${targetOf(1)}-of-another`);
    const kept = started.node.holds(uidOf(1), targetOf(1));
    started.node.unpublish(uidOf(1), targetOf(1));
    return { kept, after: started.node.holds(uidOf(1), targetOf(1)), stored: stored() };
  },

  modes() {
    const share = { a: 100 };
    const started = start();
    const { node } = started;
    node.onSample(sampleOf());
    for (const [digit, enforcement] of [undefined, 'report', 'off'].entries())
      publishAs(started, digit + 1, share, annotationsOf(share, enforcement as 'report' | undefined), false);
    const rounds = (from: Started, count: number) => {
      from.actions.length = 0;
      const rogues = [1, 2, 3].map((digit) => processOf(digit, 'a', 300));
      for (let round = 0; round < count; round++) from.node.onSample(sampleOf(...rogues));
      return from.actions.toSorted();
    };
    const reported = (from: Started) =>
      from.node
        .snapshot()
        ?.containers.map(({ pod, enforcement: { mode, by } }) => `${pod} ${mode} ${by}`)
        .toSorted();
    const asRecorded = { done: rounds(started, 3), reported: reported(started) };
    // What a tenant writes into its own pod, were it let through, and what an administrator writes.
    node.onPod(uidOf(1), { ...annotationsOf(share), 'cotenant.io/enforcement': 'off' });
    node.onPod(uidOf(2), { ...annotationsOf(share, 'report'), 'cotenant.io/enforcement': 'enforce' });
    node.onPod(uidOf(3), { ...annotationsOf(share, 'off'), 'cotenant.io/enforcement-override': 'report' });
    const changed = { done: rounds(started, 3), reported: reported(started) };
    node.close();
    const second = start();
    for (const digit of [1, 2, 3])
      second.node.containers.add(containerIdOf(digit, 'a'), { podUid: uidOf(digit), container: 'a' });
    second.node.onSample(sampleOf());
    const after = reported(second);
    second.node.close();
    const third = start('off');
    const off = { done: rounds(third, 4), reported: reported(third) };
    return { asRecorded, changed, after, off, problems: [...started.problems, ...second.problems, ...third.problems] };
  },

  init() {
    const started = start();
    const { node, actions } = started;
    node.onSample(sampleOf());
    const given = publish(started, 1, { init: 700, main: 600 });
    const seen = (process: SampledProcess) => {
      node.onSample(sampleOf(process));
      return shown(started);
    };
    const main = { ...processOf(1, 'main', 550), pid: 2 ** 22 + 100 };
    const phases = [seen(processOf(1, 'init', 650)), seen(main)];
    const grantedMib = granted(started);
    actions.length = 0;
    for (let round = 0; round < 3; round++) node.onSample(sampleOf(processOf(1, 'init', 900)));
    return { given, phases, grantedMib, foreign: node.snapshot()?.foreign, actions };
  },

  withoutGpus() {
    const started = start();
    const { node } = started;
    const tell = (container: string, at = node) =>
      at.containerMissed({
        containerId: containerIdOf(1, container),
        podUid: uidOf(1),
        namespace: 'team',
        pod: 'pod-1',
        container,
      });
    const seen = (of: Node, ...processes: SampledProcess[]) => {
      of.onSample(sampleOf(...processes));
      return of
        .snapshot()
        ?.containers.map((one) => [one.container, one.withoutGpus])
        .toSorted();
    };
    const withoutGpus = (...processes: SampledProcess[]) => seen(node, ...processes);
    node.onSample(sampleOf());
    publish(started, 1, { a: 300, b: 300, d: 300 });
    const before = withoutGpus();
    for (const container of ['a', 'b', 'plain', 'd', 'b']) tell(container);
    const early = started.missing.length;
    const a = processOf(1, 'a', 100);
    const b = { ...processOf(1, 'b', 100), pid: 2 ** 22 + 100 };
    const phases = [withoutGpus(a), withoutGpus(a, b), withoutGpus()];
    for (const container of ['a', 'b', 'd']) tell(container);
    phases.push(withoutGpus());
    node.close();
    // The next one is informed of them, too, and of those that came since.
    const next = start();
    for (const name of ['a', 'b', 'c', 'd'])
      next.node.containers.add(containerIdOf(1, name), { podUid: uidOf(1), container: name });
    for (const name of ['a', 'b', 'd']) tell(name, next.node);
    const after = seen(next.node);
    // It starts anew, with its GPUs and then without them, while the driver still lists a process of the one before it.
    const left = { ...processOf(1, 'd', 100), pid: 2 ** 22 + 200 };
    seen(next.node, left);
    const name = { podUid: uidOf(1), container: 'd' };
    next.node.containers.remove(containerIdOf(1, 'd'));
    next.node.containers.add('f'.repeat(64), name);
    const anew = seen(next.node, left);
    next.node.containers.add('e'.repeat(64), name);
    next.node.containerMissed({ ...name, containerId: 'e'.repeat(64), namespace: 'team', pod: 'pod-1' });
    const leftOver = [seen(next.node, left), seen(next.node)];
    const problems = [...started.problems, ...next.problems];
    return { before, early, phases, after, anew, leftOver, reported: started.missing, again: next.missing, problems };
  },

  anew() {
    const started = start();
    started.node.onSample(sampleOf());
    publish(started, 1, { a: 300 });
    native.unmount(join(targetOf(1), 'ledgers'), true);
    native.unmount(targetOf(1), true);
    const given = publish(started, 1, { a: 300 });
    const now = started.node.grantFiles(podGrantId(uidOf(1), 'a'));
    started.node.onSample(sampleOf());
    const [named, held] = [statSync(ledgerPath(targetOf(1), 'a')), fstatSync(now?.ledgerFd ?? -1)];
    return { given, same: named.ino === held.ino && named.dev === held.dev, shown: shown(started) };
  },
};

console.log(JSON.stringify(scenarios[scenario]?.() ?? null));

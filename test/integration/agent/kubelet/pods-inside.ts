// What pods.test.ts looks at, done in a mount namespace of its own: pods-inside.ts SCENARIO FOLDER. The agent's node
// half with real volumes, pages and ledgers, over samples that the scenario makes up. Prints facts as JSON; which of
// them are right is said by the test.
import {
  closeSync,
  fstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  rmSync,
  statSync,
  truncateSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { DEFAULTS } from '../../../../src/agent/config.ts';
import { SLOTS } from '../../../../src/agent/grants/files.ts';
import { podGrantId } from '../../../../src/agent/grants/grant.ts';
import { libraries } from '../../../../src/agent/grants/registry.ts';
import {
  ledgerPath,
  markPublished,
  mountVolume,
  pagePath,
  podVolumes,
  withWritable,
} from '../../../../src/agent/kubelet/csi/volume.ts';
import { openNode } from '../../../../src/agent/node.ts';
import type { Node } from '../../../../src/agent/node-api.ts';
import { loadNative } from '../../../../src/agent/os/addon.ts';
import { createDriver } from '../../../../src/agent/os/driver-handle.ts';
import type { Sample, SampledProcess } from '../../../../src/agent/sampling/sample.ts';
import { mountsOf, VOLUME } from '../../../../src/api/csi-volume.ts';
import { formatPodGrant } from '../../../../src/api/grant-annotation.ts';
import { GRANT_ANNOTATION, REQUEST_ANNOTATION } from '../../../../src/api/names.ts';
import type { Mode } from '../../../../src/api/request.ts';
import { formatPodRequest } from '../../../../src/api/request-annotation.ts';
import { createLogger } from '../../../../src/common/logger.ts';
import { MIB } from '../../../../src/common/quantity.ts';

const [scenario = '', folder = ''] = process.argv.slice(2);
const native = loadNative();
const state = join(folder, 'state');
const GPU = 'GPU-0a000000-0000-4000-8000-000000000001';
const GPU_MIB = 1000;
const uidOf = (digit: number) => `0f3a9c1e-7d52-4b8e-9a61-3c5d7e9f1b2${digit}`;
const targetOf = (digit: number) => join(folder, `pods/${uidOf(digit)}/mount`);
const containerIdOf = (digit: number, container: string) =>
  `${digit}${container}`.padEnd(64, '0').replace(/[^0-9a-f]/g, 'f');

type Started = {
  readonly node: Node;
  readonly problems: string[];
  readonly actions: string[];
  readonly missing: string[];
};

function start(mode: Mode = 'enforce'): Started {
  const problems: string[] = [];
  const actions: string[] = [];
  const missing: string[] = [];
  const enforcement = { ...DEFAULTS.enforcement, mode, mostStopsPerMinute: 100 };
  const settings = { ...DEFAULTS, stateFolder: state, calibrate: false, canary: false, enforcement };
  const node = openNode(settings, native, {
    log: createLogger({
      component: 'agent',
      format: 'json',
      level: 'warn',
      write: (line) => problems.push((JSON.parse(line) as { msg: string }).msg.replaceAll(folder, '')),
    }),
    driver: createDriver(),
    connections: () => ({}),
    nameOf: () => ({ namespace: '', pod: '', podUid: '', container: '' }),
    volumes: podVolumes(native),
    build: { version: '0', revision: '' },
    clock: () => performance.now(),
  });
  node.events.on('actions', (records) =>
    actions.push(...records.map(({ action, container }) => `${action} ${container}`)),
  );
  node.events.on('gpus-missing', (_, message) => missing.push(message));
  return { node, problems, actions, missing };
}

/** One that is nowhere else to be found, in a container of a pod. */
const processOf = (digit: number, container: string, mib: number): SampledProcess => ({
  pid: 2 ** 22 + digit,
  startTicks: 1,
  command: 'made-up',
  cgroup: `0::/kubepods/pod${uidOf(digit)}/${containerIdOf(digit, container)}`,
  pidNamespace: 1,
  namespacePid: 1,
  ancestors: [],
  gpus: [
    {
      gpu: 0,
      listed: true,
      bytes: mib * MIB,
      types: 1,
      smPercent: 0,
      smUs: 0,
      memoryUs: 0,
      encoderUs: 0,
      decoderUs: 0,
    },
  ],
});

const sampleOf = (...processes: SampledProcess[]): Sample => ({
  round: 1,
  atMs: Date.now(),
  bootNs: 1,
  driverVersion: '1',
  cudaVersion: 13000,
  gpus: [
    {
      index: 0,
      uuid: GPU,
      name: 'a GPU',
      pciBusId: '0',
      totalBytes: GPU_MIB * MIB,
      reservedBytes: 0,
      processLists: ['compute', 'graphics', 'mps'],
      utilizationGaps: 0,
      healthy: true,
    },
  ],
  processes,
  errors: [],
  tookUs: 1,
});

/** The answer to the kubelet: 'given', or why not. */
function publish(started: Started, digit: number, containers: Record<string, number>, mounted = false): string {
  return publishAs(started, digit, containers, annotationsOf(containers), mounted);
}

/** `enforcement`: the mode that its namespace's rules have. A container called `init` is one. */
function annotationsOf(
  containers: Record<string, number>,
  enforcement?: 'off' | 'report',
): Readonly<Record<string, string>> {
  const shares = Object.entries(containers);
  const kindOf = (name: string) => (name === 'init' ? 'init' : 'app');
  return {
    [REQUEST_ANNOTATION]: formatPodRequest({
      priority: 'normal',
      gpuModels: [],
      gpuUuids: [],
      ...(enforcement && { enforcement }),
      containers: shares.map(([name, mib]) => ({
        name,
        kind: kindOf(name),
        dialect: 'cotenant',
        asked: {},
        memoryIsolation: 'on',
        gpus: [{ memory: { kind: 'bytes', bytes: mib * MIB } }],
      })),
    }),
    [GRANT_ANNOTATION]: formatPodGrant({
      epoch: 1,
      containers: shares.map(([name, mib]) => ({
        name,
        kind: kindOf(name),
        memoryIsolation: 'on',
        gpus: [{ gpuUuid: GPU, memoryBytes: mib * MIB, limitBytes: mib * MIB, coresPercent: 0 }],
      })),
    }),
  };
}

function publishAs(
  { node }: Started,
  digit: number,
  containers: Record<string, number>,
  annotations: Readonly<Record<string, string>>,
  mounted: boolean,
): string {
  const target = targetOf(digit);
  const spec = {
    volumes: [VOLUME],
    containers: Object.keys(containers).map((name) => ({ name, volumeMounts: mountsOf(name) })),
  };
  const object = { metadata: { annotations }, spec };
  const ask = { podUid: uidOf(digit), namespace: 'team', pod: `pod-${digit}`, target, object };
  const given = mounted ? node.adopt(ask) : node.publish(ask);
  if (!given.ok) return given.error.refused;
  if (!mounted) markPublished(native, target);
  for (const name of Object.keys(containers)) {
    node.containers.add(containerIdOf(digit, name), { podUid: uidOf(digit), container: name });
  }
  return 'given';
}

const stored = () => readdirSync(join(state, 'grants')).length;
const descriptors = () => readdirSync('/proc/self/fd').length;
const shown = ({ node }: Started) =>
  node.snapshot()?.containers.map(({ pod, container, tampered, usedBytes }) => ({
    who: `${pod}/${container}`,
    tampered,
    usedMib: usedBytes / MIB,
  }));
const granted = ({ node }: Started) => (node.snapshot()?.devices[0]?.grantedBytes ?? 0) / MIB;

/** Takes all free space. Returns the file that occupies it. */
function fill(path: string): string {
  const fd = openSync(path, 'a');
  try {
    for (;;) writeSync(fd, Buffer.alloc(4096));
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? String(error);
  } finally {
    closeSync(fd);
  }
}

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

// The agent's node half with real volumes, pages and ledgers, in the folder that this program is given, and the pods
// and processes of scenarios.
import { closeSync, openSync, readdirSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { DEFAULTS } from '../../../../src/agent/config.ts';
import { markPublished, podVolumes } from '../../../../src/agent/kubelet/csi/volume.ts';
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

export const [, folder = ''] = process.argv.slice(2);
export const native = loadNative();
export const state = join(folder, 'state');
const GPU = 'GPU-0a000000-0000-4000-8000-000000000001';
const GPU_MIB = 1000;
export const uidOf = (digit: number) => `0f3a9c1e-7d52-4b8e-9a61-3c5d${(0x7e9f1b20 + digit).toString(16)}`;
export const targetOf = (digit: number) => join(folder, `pods/${uidOf(digit)}/mount`);
export const containerIdOf = (digit: number, container: string) =>
  `${digit}${container}`.padEnd(64, '0').replace(/[^0-9a-f]/g, 'f');

export type Started = {
  readonly node: Node;
  readonly problems: string[];
  readonly actions: string[];
  readonly missing: string[];
};

export function start(mode: Mode = 'enforce'): Started {
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
export const processOf = (digit: number, container: string, mib: number): SampledProcess => ({
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

export const sampleOf = (...processes: SampledProcess[]): Sample => ({
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
export function publish(started: Started, digit: number, containers: Record<string, number>, mounted = false): string {
  return publishAs(started, digit, containers, annotationsOf(containers), mounted);
}

/** `enforcement`: the mode that its namespace's rules have. A container called `init` is one. */
export function annotationsOf(
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

export function publishAs(
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

export const stored = () => readdirSync(join(state, 'grants')).length;
export const descriptors = () => readdirSync('/proc/self/fd').length;
export const shown = ({ node }: Started) =>
  node.snapshot()?.containers.map(({ pod, container, tampered, usedBytes }) => ({
    who: `${pod}/${container}`,
    tampered,
    usedMib: usedBytes / MIB,
  }));
export const granted = ({ node }: Started) => (node.snapshot()?.devices[0]?.grantedBytes ?? 0) / MIB;

/** Takes all free space. Returns the file that occupies it. */
export function fill(path: string): string {
  const fd = openSync(path, 'a');
  try {
    for (;;) writeSync(fd, Buffer.alloc(4096));
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? String(error);
  } finally {
    closeSync(fd);
  }
}

// Use over the last ten minutes, for the status page: a ring buffer with one point per 5 seconds, of GPUs and
// containers that exist.
import type { Snapshot } from './snapshot.ts';

type Line = {
  /** Peak memory of each step; null: the GPU or container did not exist, or its memory is unknown. */
  readonly usedBytes: readonly (number | null)[];
  /** Mean utilization of each step; null: the GPU or container did not exist, or its utilization is unknown. */
  readonly busyPercent: readonly (number | null)[];
};

export type History = {
  readonly stepMs: number;
  /** Wall clock of the beginning of each step, oldest first. */
  readonly atMs: readonly number[];
  /** By the GPU's UUID. */
  readonly gpus: Readonly<Record<string, Line>>;
  /**
   * Key: the grant's id, a blank and the GPU's UUID. Instead of the grant's id: namespace/pod/container if another
   * device plugin allocated the GPU; without any allocation the container's id, or the pod's UID if the id is unknown.
   */
  readonly containers: Readonly<Record<string, Line>>;
};

type Recorder = { push(snapshot: Snapshot): void; history(): History };

const STEP_MS = 5000;
const KEEP_MS = 10 * 60 * 1000;
export const POINTS = KEEP_MS / STEP_MS;

type Figure = { usedBytes: number | undefined; busySum: number; busyCount: number };
type Point = { readonly atMs: number; readonly gpus: Map<string, Figure>; readonly containers: Map<string, Figure> };

export function createRecorder(stepMs = STEP_MS, keepMs = KEEP_MS): Recorder {
  let points: Point[] = [];
  return {
    push(snapshot) {
      const atMs = snapshot.atMs - (snapshot.atMs % stepMs);
      // After the clock was set back there are points of the future.
      points = points.filter((point) => point.atMs <= atMs && point.atMs > atMs - keepMs);
      let point = points.at(-1);
      if (point?.atMs !== atMs) {
        point = { atMs, gpus: new Map(), containers: new Map() };
        points.push(point);
      }
      for (const { gpu } of snapshot.devices) add(point.gpus, gpu.uuid, gpu.usedBytes, gpu.utilizationPercent);
      for (const { grantId, gpuUuid, usedBytes, memoryKnown, smPercent } of snapshot.containers)
        add(point.containers, `${grantId} ${gpuUuid}`, memoryKnown ? usedBytes : undefined, smPercent);
      for (const { namespace, pod, container, gpuUuid, usedBytes, smPercent } of snapshot.assigned)
        add(point.containers, `${namespace}/${pod}/${container} ${gpuUuid}`, usedBytes, smPercent);
      for (const { containerId, podUid, gpuUuid, usedBytes, smPercent } of snapshot.foreign)
        add(point.containers, `${containerId || podUid} ${gpuUuid}`, usedBytes, smPercent);
    },
    history: () => ({
      stepMs,
      atMs: points.map(({ atMs }) => atMs),
      gpus: lines(points, 'gpus'),
      containers: lines(points, 'containers'),
    }),
  };
}

function add(figures: Map<string, Figure>, key: string, usedBytes: number | undefined, busy: number | undefined): void {
  const before = figures.get(key) ?? { usedBytes: undefined, busySum: 0, busyCount: 0 };
  figures.set(key, {
    usedBytes: usedBytes === undefined ? before.usedBytes : Math.max(before.usedBytes ?? 0, usedBytes),
    busySum: before.busySum + (busy ?? 0),
    busyCount: before.busyCount + (busy === undefined ? 0 : 1),
  });
}

/** Series of the GPUs or containers in the newest point. */
function lines(points: readonly Point[], of: 'gpus' | 'containers'): Readonly<Record<string, Line>> {
  const keys = [...(points.at(-1)?.[of].keys() ?? [])];
  const line = (key: string): Line => {
    const figures = points.map((point) => point[of].get(key));
    return {
      usedBytes: figures.map((figure) => figure?.usedBytes ?? null),
      busyPercent: figures.map((figure) =>
        figure && figure.busyCount > 0 ? Math.round(figure.busySum / figure.busyCount) : null,
      ),
    };
  };
  return Object.fromEntries(keys.map((key) => [key, line(key)]));
}

// The last ten minutes of use, for the status page: a ring in memory with one point per few seconds, of the containers that exist.
import type { Snapshot } from './snapshot.ts';

export type Line = {
  /** Most bytes that were held in each step; null: it did not exist, or is unknown. */
  readonly usedBytes: readonly (number | null)[];
  /** Share of the GPU's time, in percent, as the mean of each step; null: it did not exist, or is unknown. */
  readonly busyPercent: readonly (number | null)[];
};

export type History = {
  readonly stepMs: number;
  /** Wall clock of the beginning of each step, oldest first. */
  readonly atMs: readonly number[];
  /** By the GPU's UUID. */
  readonly gpus: Readonly<Record<string, Line>>;
  /**
   * By the grant's id and the GPU's UUID, with a blank between; of a container on a GPU that others gave it by its names with
   * slashes instead of the id, of one without any allocation by the container's id, or its pod's UID where that is not known.
   */
  readonly containers: Readonly<Record<string, Line>>;
};

export type Recorder = { push(snapshot: Snapshot): void; history(): History };

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
      // A clock that was set back would have points of the future.
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

/** Of what is in the newest point. */
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

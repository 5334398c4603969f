// GPUs that an Xid made unhealthy, across samples and restarts: gpu-faults.json in the state folder, and the log lines
// when a fault begins or ends. src/policy/gpu-health.ts decides which Xids count and what proves a reset.
import { existsSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { readBootId } from '../../common/boot-id.ts';
import { field, isObject } from '../../common/json.ts';
import { openStateFile, type StateFormat } from '../../common/state-file.ts';
import { faultText, type GpuFault, parseXidList, updateFaults } from '../../policy/gpu-health.ts';
import type { Sample } from '../sampling/sample.ts';

export type GpuFaults = {
  see(sample: Sample): void;
  of(gpuUuid: string): GpuFault | undefined;
  /** The reason as a clause; undefined: the GPU has no fault. */
  textOf(gpuUuid: string): string | undefined;
  /** By an operator's command; undefined: the GPU had no fault. */
  clear(gpuUuid: string): GpuFault | undefined;
  list(): readonly GpuFault[];
};

export type GpuFaultsOptions = {
  readonly stateFolder: string;
  /** In the form that `parseXidList` reads. */
  readonly unhealthyXids: string;
  readonly onProblem: (text: string) => void;
  readonly onChange: (text: string) => void;
  /** Identifies the boot of the machine. */
  readonly bootId?: string;
};

/** The file's name in earlier versions. */
const EARLIER_NAME = 'card-faults.json';
/** More than a node can have GPUs. */
const MOST = 256;

const isNumber = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value) && value >= 0;

function parseFault(value: unknown): GpuFault | undefined {
  const [gpuUuid, xid, atMs] = [field(value, 'gpuUuid'), field(value, 'xid'), field(value, 'atMs')];
  const [bootId, driverVersion] = [field(value, 'bootId'), field(value, 'driverVersion')];
  const [lost, counts] = [field(value, 'lost'), field(value, 'counts')];
  if (typeof gpuUuid !== 'string' || typeof bootId !== 'string' || typeof driverVersion !== 'string') return undefined;
  if (!isNumber(xid) || !isNumber(atMs) || atMs > 8.64e15 || typeof lost !== 'boolean') return undefined;
  if (!isObject(counts) || !Object.values(counts).every(isNumber)) return undefined;
  const { energyMj, ...others } = counts;
  const renamed = energyMj === undefined ? counts : { ...others, energyMillijoules: energyMj };
  return { gpuUuid, xid, atMs, bootId, driverVersion, lost, counts: renamed };
}

export const FAULTS_FORMAT: StateFormat<{ readonly faults: readonly GpuFault[] }> = {
  version: 1,
  read(value) {
    const given = field(value, 'faults');
    if (!Array.isArray(given) || given.length > MOST)
      return { wrong: `field "faults" is missing or not a list of at most ${MOST}` };
    const faults = given.map(parseFault);
    const bad = faults.indexOf(undefined);
    if (bad >= 0) return { wrong: `faults[${bad}] is malformed` };
    return { faults: faults.filter((fault) => fault !== undefined) };
  },
};

export function openGpuFaults(options: GpuFaultsOptions): GpuFaults {
  const { stateFolder, unhealthyXids, onProblem, onChange, bootId = readBootId() } = options;
  const xids = parseXidList(unhealthyXids);
  if ('wrong' in xids) throw new Error(`unhealthyXids: ${xids.wrong}`);
  const lost = 'GPUs that an Xid made unhealthy get new containers';
  const path = join(stateFolder, 'gpu-faults.json');
  const earlierPath = join(stateFolder, EARLIER_NAME);
  if (!existsSync(path) && existsSync(earlierPath)) renameSync(earlierPath, path);
  const file = openStateFile(path, FAULTS_FORMAT, { lost, onProblem });
  let faults: readonly GpuFault[] = file.found?.faults ?? [];
  /** Without the counters: their growth is not worth a write, because smaller stored values still show a reset. */
  const keyOf = (list: readonly GpuFault[]) => JSON.stringify(list.map(({ counts: _, ...fault }) => fault));
  let kept = keyOf(faults);

  const keep = () => {
    const key = keyOf(faults);
    if (key === kept) return;
    try {
      file.write({ faults });
      kept = key;
    } catch (error) {
      onProblem(`cannot store GPU faults for the next agent: ${(error as Error).message}`);
    }
  };

  const of = (gpuUuid: string) => faults.find((fault) => fault.gpuUuid === gpuUuid);
  return {
    of,
    textOf(gpuUuid) {
      const fault = of(gpuUuid);
      return fault && faultText(fault);
    },
    see(sample) {
      if (sample.problem !== undefined) return;
      const { driverVersion, gpus } = sample;
      const raised = (sample.xids ?? []).flatMap(({ gpu, xid, atMs }) => {
        const gpuUuid = gpus.find(({ index }) => index === gpu)?.uuid;
        return gpuUuid === undefined ? [] : [{ gpuUuid, xid, atMs }];
      });
      const before = faults;
      const next = updateFaults(before, { bootId, driverVersion, gpus, raised }, xids);
      faults = next.faults;
      for (const { fault, why } of next.ended)
        onChange(`${fault.gpuUuid} gets new containers again after Xid ${fault.xid}: ${why}`);
      for (const fault of faults) {
        if (before.some(({ gpuUuid, atMs }) => gpuUuid === fault.gpuUuid && atMs === fault.atMs)) continue;
        onChange(`${fault.gpuUuid} gets no new containers: ${faultText(fault)}; running containers are left alone`);
      }
      keep();
    },
    clear(gpuUuid) {
      const cleared = of(gpuUuid);
      if (!cleared) return undefined;
      faults = faults.filter((fault) => fault !== cleared);
      onChange(`${gpuUuid} gets new containers again after Xid ${cleared.xid}: cleared by command`);
      keep();
      return cleared;
    },
    list: () => faults,
  };
}

// GPUs that an Xid has taken from those who come next, over samples and restarts: what the file in the state folder says, and what
// is said when one comes or goes. What counts, and what ends it, is decided in quota/gpu-fault.ts.
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
  /** A clause; undefined: nothing is held against it. */
  textOf(gpuUuid: string): string | undefined;
  /** By an operator's word; undefined: nothing was held against it. */
  clear(gpuUuid: string): GpuFault | undefined;
  list(): readonly GpuFault[];
};

export type GpuFaultsOptions = {
  readonly stateFolder: string;
  /** As parseXidList takes it. */
  readonly unhealthyXids: string;
  readonly onProblem: (text: string) => void;
  readonly onChange: (text: string) => void;
  /** Of the machine; another one after each start of it. */
  readonly bootId?: string;
};

/** The file's name in versions that called a GPU a card. */
const EARLIER_NAME = 'card-faults.json';
/** More than GPUs can come; a file beyond that is none of ours. */
const MOST = 256;

const isNumber = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value) && value >= 0;

function parseFault(value: unknown): GpuFault | undefined {
  const [gpuUuid, xid, atMs] = [field(value, 'gpuUuid'), field(value, 'xid'), field(value, 'atMs')];
  const [bootId, driverVersion] = [field(value, 'bootId'), field(value, 'driverVersion')];
  const [lost, counts] = [field(value, 'lost'), field(value, 'counts')];
  if (typeof gpuUuid !== 'string' || typeof bootId !== 'string' || typeof driverVersion !== 'string') return undefined;
  if (!isNumber(xid) || !isNumber(atMs) || atMs > 8.64e15 || typeof lost !== 'boolean') return undefined;
  if (!isObject(counts) || !Object.values(counts).every(isNumber)) return undefined;
  return { gpuUuid, xid, atMs, bootId, driverVersion, lost, counts };
}

export const FAULTS_FORMAT: StateFormat<{ readonly faults: readonly GpuFault[] }> = {
  version: 1,
  read(value) {
    const given = field(value, 'faults');
    if (!Array.isArray(given) || given.length > MOST) return { wrong: 'its faults are no list of them' };
    const faults = given.map(parseFault);
    const bad = faults.indexOf(undefined);
    if (bad >= 0) return { wrong: `its faults[${bad}] is none` };
    return { faults: faults.filter((fault) => fault !== undefined) };
  },
};

export function openGpuFaults(options: GpuFaultsOptions): GpuFaults {
  const { stateFolder, unhealthyXids, onProblem, onChange, bootId = readBootId() } = options;
  const xids = parseXidList(unhealthyXids);
  if ('wrong' in xids) throw new Error(`unhealthyXids: ${xids.wrong}`);
  const lost = 'GPUs that an Xid was held against are offered';
  const path = join(stateFolder, 'gpu-faults.json');
  const earlierPath = join(stateFolder, EARLIER_NAME);
  if (!existsSync(path) && existsSync(earlierPath)) renameSync(earlierPath, path);
  const file = openStateFile(path, FAULTS_FORMAT, { lost, onProblem });
  let faults: readonly GpuFault[] = file.found?.faults ?? [];
  /** What counts grew by is not worth a write: what the file has is less, and a reset is seen all the same. */
  const keyOf = (list: readonly GpuFault[]) => JSON.stringify(list.map(({ counts: _, ...fault }) => fault));
  let kept = keyOf(faults);

  const keep = () => {
    const key = keyOf(faults);
    if (key === kept) return;
    try {
      file.write({ faults });
      kept = key;
    } catch (error) {
      onProblem(`what is held against GPUs is not kept for the next agent: ${(error as Error).message}`);
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
        onChange(`${fault.gpuUuid} is offered again after Xid ${fault.xid}: ${why}`);
      for (const fault of faults) {
        if (before.some(({ gpuUuid, atMs }) => gpuUuid === fault.gpuUuid && atMs === fault.atMs)) continue;
        onChange(`${fault.gpuUuid} takes nobody new: ${faultText(fault)}; who runs on it is left alone`);
      }
      keep();
    },
    clear(gpuUuid) {
      const cleared = of(gpuUuid);
      if (!cleared) return undefined;
      faults = faults.filter((fault) => fault !== cleared);
      onChange(`${gpuUuid} is offered again after Xid ${cleared.xid}: by command`);
      keep();
      return cleared;
    },
    list: () => faults,
  };
}

// Reconciles one container: what the driver reports of its processes, against its grant and its usage ledger. Pure.
import type { GpuGrant } from '../../api/gpu.ts';
import { fenceOf } from '../../policy/isolation.ts';
import type { Tolerance } from '../../policy/memory-verdict.ts';
import { type GpuUse, judge } from '../../policy/memory-verdict.ts';
import { processFinder } from '../grants/driver-feedback.ts';
import type { Grant } from '../grants/grant.ts';
import { allowedBytes } from '../grants/resize.ts';
import type { LedgerReading } from '../os/addon.ts';
import {
  gpuWithProcessData,
  haveProcessData,
  isUtilizationKnown,
  type Sample,
  type SampledProcess,
  sumOrUnknown,
} from '../sampling/sample.ts';
import { type ProcessOnGpu, processesOn, processState } from './gpu-processes.ts';
import type { ContainerGpuState, EngineUse, Observed, ReconciledContainer } from './node-usage.ts';

export type GrantReading = {
  readonly grant: Grant;
  readonly ledger: LedgerReading;
  /** Those in its folder. */
  readonly engines: readonly number[];
  readonly behind: boolean;
  /** The driver's own limits are in force for it. */
  readonly driverHolds?: boolean;
  /** On one of its GPUs a canary got past the interposer. */
  readonly interposerFails?: boolean;
};

type ContainerInputs = {
  readonly sample: Sample;
  readonly reading: GrantReading;
  /** Its processes in the sample. */
  readonly own: readonly SampledProcess[];
  readonly tolerance: Tolerance;
  /** Its state in the sample before. */
  readonly before?: ReconciledContainer | undefined;
};

/** The parts of a reading, and the list of processes, are the same objects again as long as nothing in them changes. */
function basisOf({ sample, reading, own, tolerance }: ContainerInputs): readonly unknown[] {
  const { ledger, ...facts } = reading;
  const { slots, denied, unknown, whole, untouched } = ledger;
  const gpus = facts.grant.gpus.flatMap(({ gpuUuid }) => {
    const gpu = sample.gpus.find(({ uuid }) => uuid === gpuUuid);
    return [gpu?.index, gpuWithProcessData(sample, gpuUuid) !== undefined, isUtilizationKnown(sample, gpu)];
  });
  return [own, tolerance, slots, denied, unknown, whole, untouched, ...Object.values(facts), ...gpus];
}

/** The state of the sample before where all that it follows from is the same, as for most containers most of the time. */
export function containerState(inputs: ContainerInputs): ReconciledContainer {
  const { before } = inputs;
  const basis = basisOf(inputs);
  const isUnchanged = basis.length === before?.basis.length && basis.every((part, at) => part === before.basis[at]);
  return isUnchanged ? before : { ...reconciled(inputs), basis };
}

function reconciled({ sample, reading, own, tolerance, before }: ContainerInputs): Omit<ReconciledContainer, 'basis'> {
  const { grant, ledger, engines, behind, driverHolds = false, interposerFails = false } = reading;
  const processOf = processFinder(own);
  const inLedger = new Set(ledger.slots.map(processOf));
  const seenOn = grant.gpus.map((granted, position): Omit<ContainerGpuState, 'over'> => {
    const gpu = sample.gpus.find((candidate) => candidate.uuid === granted.gpuUuid);
    const using = processesOn(sample, own, gpu);
    const processesKnown = gpuWithProcessData(sample, granted.gpuUuid) !== undefined;
    const sum = (pick: (entry: ProcessOnGpu) => number) => using.reduce((total, entry) => total + pick(entry), 0);
    const rows = ledger.slots.flatMap((slot) => slot.gpus[position] ?? []);
    const column = (pick: (row: (typeof rows)[number]) => number) => rows.reduce((total, row) => total + pick(row), 0);
    const [contextBytes, managedBytes, poolBytes] = [
      column((row) => row.contextBytes),
      column((row) => row.managedBytes),
      column((row) => row.poolBytes),
    ];
    let activeUs = 0;
    for (const { gpus } of own)
      for (const use of gpus) if (use.gpu === gpu?.index) activeUs = Math.max(activeUs, use.activeUs ?? 0);
    return {
      gpuUuid: granted.gpuUuid,
      gpuIndex: gpu?.index,
      limitBytes: granted.limitBytes,
      coresPercent: granted.coresPercent,
      usedBytes: sum(({ use }) => use.bytes ?? 0),
      bypassBytes: sum(({ process, use }) => (inLedger.has(process) ? 0 : (use.bytes ?? 0))),
      processesKnown,
      memoryKnown: processesKnown && using.every(({ use }) => use.bytes !== undefined),
      ledger: {
        contextBytes,
        managedBytes,
        poolBytes,
        bufferBytes: Math.max(0, column((row) => row.heldBytes) - contextBytes - managedBytes - poolBytes),
      },
      denied: ledger.denied[position] ?? 0,
      smPercent: isUtilizationKnown(sample, gpu) ? sumOrUnknown(using.map(({ smPercent }) => smPercent)) : undefined,
      lastActiveMs: activeUs > 0 ? activeUs / 1000 : undefined,
      processes: using.map((entry) => Object.assign(processState(entry), { inLedger: inLedger.has(entry.process) })),
    };
  });
  const uses = grant.isolateMemory ? judgedUses(sample, grant, seenOn) : [];
  const over = new Set(uses.flatMap((use) => (judge([use], tolerance).severity === 'within' ? [] : [use.gpuUuid])));
  const gpus = seenOn.map((gpu) => ({ ...gpu, over: over.has(gpu.gpuUuid) }));
  const allGpusKnown = haveProcessData(sample, grant.gpus) && gpus.every(({ memoryKnown }) => memoryKnown);
  const seen = {
    holdsMemory: gpus.some((gpu) => gpu.usedBytes > 0),
    inLedger: gpus.some(({ processes }) => processes.some((one) => one.inLedger && one.usedBytes !== 0)),
  };
  // Without data, a container that seems to hold nothing holds what it did before.
  const holding = allGpusKnown || seen.holdsMemory ? seen : (before?.holding ?? seen);
  return {
    grant,
    fence: fenceOf({ isolateMemory: grant.isolateMemory, driverHolds, interposerFails, ...holding }),
    holding,
    gpus,
    verdict: judge(uses, tolerance),
    allGpusKnown,
    tampered: !ledger.whole || !ledger.untouched,
    unknownEntryPoints: ledger.unknown,
    engines: { ...enginesUsed(ledger, engines), outdated: behind },
    observed: observedIn(ledger),
  };
}

/** What it is judged by: its use of the GPUs with data. */
export const judgedUses = (
  sample: Sample,
  grant: Grant,
  gpus: readonly Pick<ContainerGpuState, 'gpuUuid' | 'usedBytes' | 'bypassBytes'>[],
): readonly GpuUse[] =>
  gpus.flatMap(({ gpuUuid, usedBytes, bypassBytes }, position) =>
    gpuWithProcessData(sample, gpuUuid)
      ? [{ gpuUuid, limitBytes: allowedBytes(grant.gpus[position] as GpuGrant), usedBytes, bypassBytes }]
      : [],
  );

/** Tenants write the ledger: invented engine numbers must not become series. */
function enginesUsed(ledger: LedgerReading, known: readonly number[]): Omit<EngineUse, 'outdated'> {
  const living = ledger.slots.filter((slot) => slot.locked);
  const byEngine = Map.groupBy(living, ({ engine }) => (known.includes(engine) ? String(engine) : 'other'));
  return {
    processes: [...byEngine].map(([engine, slots]) => ({ engine, count: slots.length })),
    refused: living.filter(({ engineRefused }) => engineRefused !== 0).length,
  };
}

function observedIn({ slots }: LedgerReading): Observed {
  const living = slots.filter((slot) => slot.locked);
  return {
    debugger: living.filter(({ debugged }) => debugged).length,
    profiler: living.filter(({ profiled }) => profiled).length,
  };
}

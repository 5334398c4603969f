// The state of a node as one sample shows it: the driver's truth held against grants and ledgers. Plain values; compare.ts makes them.
import type { Fence, FenceFacts } from '../../policy/isolation.ts';
import type { MemoryVerdict, Verdict } from '../../policy/memory-verdict.ts';
import type { ShareMode } from '../attribution/device-ids.ts';
import type { Grant } from '../grants/grant.ts';
import type { Sample, SampledGpu } from '../sampling/sample.ts';
import type { ProcessState } from './gpu-processes.ts';
import type { AssignedState, ForeignState } from './ungranted-usage.ts';

/** `inLedger`: its memory is in the container's ledger. */
export type GrantedProcess = ProcessState & { readonly inLedger: boolean };

export type ContainerGpuState = {
  readonly gpuUuid: string;
  /** Undefined: the sample has no such GPU. */
  readonly gpuIndex: number | undefined;
  readonly limitBytes: number;
  readonly coresPercent: number;
  /** As far as the driver tells. */
  readonly usedBytes: number;
  /** Held by processes that the ledger does not know. */
  readonly bypassBytes: number;
  /** The driver tells who uses the GPU. */
  readonly processesKnown: boolean;
  /** And of each of its processes what it holds. */
  readonly memoryKnown: boolean;
  /** More than its grant on this GPU and the tolerance, as far as is told; never without isolation. */
  readonly over: boolean;
  readonly ledger: {
    readonly contextBytes: number;
    readonly managedBytes: number;
    readonly poolBytes: number;
    readonly bufferBytes: number;
  };
  readonly denied: number;
  /** Undefined: the driver did not tell. */
  readonly smPercent: number | undefined;
  readonly lastActiveMs: number | undefined;
  readonly processes: readonly GrantedProcess[];
};

/** Which engine of the interposer its living processes run. */
export type EngineUse = {
  /** By number; `other`: processes that tell none, or one that the agent did not put there. */
  readonly processes: readonly { readonly engine: string; readonly count: number }[];
  /** Processes that could not change to the one that was wanted. */
  readonly refused: number;
  /** It was not told of the engine that is wanted. */
  readonly outdated: boolean;
};

/** Its living processes that somebody watched when they began with CUDA: their times are longer than they would be. */
export type Observed = { readonly debugger: number; readonly profiler: number };

export type Holding = Pick<FenceFacts, 'holdsMemory' | 'inLedger'>;

/** A container with a grant, after its processes and its ledger were reconciled. */
export type ReconciledContainer = {
  readonly grant: Grant;
  readonly fence: Fence;
  /** What that was told by: of the last sample that told. */
  readonly holding: Holding;
  readonly gpus: readonly ContainerGpuState[];
  readonly verdict: MemoryVerdict;
  /** The sample says of each of its GPUs who uses it: only then is memory that is not there memory given back. */
  readonly allGpusKnown: boolean;
  /** Its ledger was shortened, overwritten or replaced. */
  readonly tampered: boolean;
  /** Entry points that its processes looked up and the interposer does not know. */
  readonly unknownEntryPoints: number;
  readonly engines: EngineUse;
  readonly observed: Observed;
};

/** The same after its compute was judged, too. */
export type ContainerState = Omit<ReconciledContainer, 'verdict'> & {
  /** The harder one of memory and compute. */
  readonly verdict: Verdict;
  /** GPUs on which its compute cannot be distinguished from that of other MPS clients, so it is not judged; absent: none. */
  readonly undecidableGpus?: readonly string[];
};

/** By the lists that they are in; `both`: in those of compute and of graphics. `mps`: whatever other list they are in, too. */
export type ProcessCounts = Readonly<Record<'compute' | 'graphics' | 'both' | 'mps', number>>;

export type DeviceState = {
  readonly gpu: SampledGpu;
  readonly grantedBytes: number;
  readonly grantedCoresPercent: number;
  /** That hold memory of it; undefined: the driver does not tell who uses it. */
  readonly containers: number | undefined;
  /** Each counted once. */
  readonly processes: ProcessCounts;
  /** How it is given out. `shared` also where somebody has the whole of it by another's word. */
  readonly mode: ShareMode | 'none';
  /** Used, but not by any process that could be told: managed memory, ghosts, processes out of sight. Undefined: it cannot
   * be told, for the driver does not tell who uses the GPU, or says of some process only that it is there. */
  readonly unattributedBytes: number | undefined;
};

/** A node after the sample was reconciled with grants and ledgers. */
export type ReconciledNode = {
  readonly sample: Sample;
  readonly devices: readonly DeviceState[];
  readonly containers: readonly ReconciledContainer[];
  readonly assigned: readonly AssignedState[];
  readonly foreign: readonly ForeignState[];
  /** Devices of GPUs that others gave out, and whose GPU cannot be told. */
  readonly unknownDevices: number;
  readonly failures: Readonly<Record<string, number>>;
};

/** A node after compute was judged, too: what is published, shown and enforced is read from this value. */
export type NodeState = Omit<ReconciledNode, 'containers'> & { readonly containers: readonly ContainerState[] };

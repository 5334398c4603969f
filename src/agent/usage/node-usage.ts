// Types of the state of a node after one sample: what the driver reports, against grants and ledgers. process-sample.ts
// builds it.
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
  /** As far as the driver reports it. */
  readonly usedBytes: number;
  /** Held by processes that the ledger does not know. */
  readonly bypassBytes: number;
  /** The driver reports the GPU's processes. */
  readonly processesKnown: boolean;
  /** And the memory of each of them. */
  readonly memoryKnown: boolean;
  /** More than its grant on this GPU and the tolerance, as far as is known; never without isolation. */
  readonly over: boolean;
  readonly ledger: {
    readonly contextBytes: number;
    readonly managedBytes: number;
    readonly poolBytes: number;
    readonly bufferBytes: number;
  };
  readonly denied: number;
  /** Undefined: the driver did not report it. */
  readonly smPercent: number | undefined;
  readonly lastActiveMs: number | undefined;
  readonly processes: readonly GrantedProcess[];
};

/** Which engine of the interposer its living processes run. */
export type EngineUse = {
  /** By number; `other`: none, or one that the agent did not put there. */
  readonly processes: readonly { readonly engine: string; readonly count: number }[];
  /** Processes that could not change to the one that was wanted. */
  readonly refused: number;
  /** Its limits page does not name the wanted engine. */
  readonly outdated: boolean;
};

/** Its living processes that ran under a debugger or profiler when they initialized CUDA, which makes them slower. */
export type Observed = { readonly debugger: number; readonly profiler: number };

type Holding = Pick<FenceFacts, 'holdsMemory' | 'inLedger'>;

/** A container with a grant, after its processes and its ledger were reconciled. */
export type ReconciledContainer = {
  readonly grant: Grant;
  readonly fence: Fence;
  /** The facts behind `fence`, from the last sample with data. */
  readonly holding: Holding;
  readonly gpus: readonly ContainerGpuState[];
  readonly verdict: MemoryVerdict;
  /** The sample has data of all of its GPUs: only then does missing memory mean released memory. */
  readonly allGpusKnown: boolean;
  /** Its ledger was shortened, overwritten or replaced. */
  readonly tampered: boolean;
  /** Entry points that its processes looked up and the interposer does not know. */
  readonly unknownEntryPoints: number;
  readonly engines: EngineUse;
  readonly observed: Observed;
  /** All that this state follows from, beside that of the sample before. */
  readonly basis: readonly unknown[];
};

/** The same after its compute was judged, too. */
export type ContainerState = Omit<ReconciledContainer, 'verdict'> & {
  /** The harder one of memory and compute. */
  readonly verdict: Verdict;
  /** GPUs on which its compute cannot be distinguished from that of other MPS clients, so it is not judged; absent:
   * none. */
  readonly undecidableGpus?: readonly string[];
};

/** By the driver's process list; `both`: in the lists of compute and of graphics. `mps`: MPS clients, in whatever other
 * list too. */
export type ProcessCounts = Readonly<Record<'compute' | 'graphics' | 'both' | 'mps', number>>;

export type DeviceState = {
  readonly gpu: SampledGpu;
  readonly grantedBytes: number;
  readonly grantedCoresPercent: number;
  /** Containers that hold memory of it; undefined: its processes are unknown. */
  readonly containers: number | undefined;
  /** Each counted once. */
  readonly processes: ProcessCounts;
  /** How it is allocated. `shared` also where another device plugin allocated the whole of it. */
  readonly mode: ShareMode | 'none';
  /** In use but of no listed process: managed memory, memory of ended processes, processes that the driver does not
   * list. Undefined: the driver does not list the GPU's processes, or lists one without its memory. */
  readonly unattributedBytes: number | undefined;
};

/** A node after the sample was reconciled with grants and ledgers. */
export type ReconciledNode = {
  readonly sample: Sample;
  readonly devices: readonly DeviceState[];
  readonly containers: readonly ReconciledContainer[];
  readonly assigned: readonly AssignedState[];
  readonly foreign: readonly ForeignState[];
  /** Devices that other plugins allocated and whose GPU is unknown. */
  readonly unknownDevices: number;
  readonly failures: Readonly<Record<string, number>>;
};

/** A node after compute was judged, too: what is published, shown and enforced is read from this value. */
export type NodeState = Omit<ReconciledNode, 'containers'> & { readonly containers: readonly ContainerState[] };

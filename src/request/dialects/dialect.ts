// The interface of a dialect: its resource names, and how one container's amounts in them become shares of GPUs. A
// dialect never sees a pod: read-container.ts collects the amounts and knows their field paths.

import type { GPU_UUID_ANNOTATION, PLACEMENT_ANNOTATION } from '../../api/names.ts';
import type { ContainerRequest, DialectName, GpuShare, MemoryIsolation, Priority } from '../../api/request.ts';
import type { JsonObject } from '../../common/json.ts';
import type { Checked } from '../../common/problem.ts';
import type { Rules } from '../rules/namespace-rules.ts';

/** One container's amounts in one dialect. */
export type Asked = {
  /** Resource name, or key of the pod -> text; never empty, only names of this dialect. */
  readonly amounts: ReadonlyMap<string, string>;
  /** Field path of one of those amounts. */
  readonly amountPath: (resource: string) => string;
  /** Environment variables that this dialect reads, with literal values. */
  readonly environment: ReadonlyMap<string, string>;
  readonly labels: JsonObject;
  readonly annotations: JsonObject;
  /** That the pod requires of its node. */
  readonly nodeLabels: JsonObject;
};

export type Answer = {
  readonly gpus: readonly GpuShare[];
  /** Only where the dialect decides it; else the pod's annotation does. */
  readonly memoryIsolation?: MemoryIsolation;
  /** For the whole pod, where the namespace allows it and the pod's own annotation says nothing. */
  readonly priority?: Priority;
  readonly warnings: readonly string[];
};

/** Amounts that a pod's annotations or labels hold for one of its containers. */
export type PodAmounts = {
  /** Its name, or its place among the pod's containers. Undefined: the first; init containers aside. */
  readonly container?: string | number;
  readonly amounts: ReadonlyMap<string, string>;
  /** Field path of what names the container; for a name that no container has. */
  readonly path: string;
};

/** An annotation of a pod, or a label, that chooses GPUs or how they are chosen. */
export type ForeignChoice = {
  readonly annotation: string;
  readonly isLabel?: true;
  /** A value that asks for what is so anyway. */
  readonly usual?: string;
  /** Ours, which takes the same values; absent: there is none. */
  readonly own?: typeof GPU_UUID_ANNOTATION | typeof PLACEMENT_ANNOTATION;
  /** Its value as ours has it. */
  readonly translate?: (value: string) => string;
  /** What to write in its place where it is not read; absent: nothing does what it asks for. */
  readonly instead?: string;
};

export type Dialect = {
  readonly name: DialectName;
  /** One that ends with `-` stands for all names that begin with it, and a `*` in one for any text. */
  readonly resources: readonly string[];
  /** Beside amounts with such a name the dialect's own are for a device of another make, and are not read. */
  readonly notBeside?: RegExp;
  /** Annotations and labels of pods that are read as amounts; one that ends with `.` stands for all that begin so. */
  readonly podKeys?: readonly string[];
  /** Annotations and labels of pods that change what amounts mean. */
  readonly podNotes?: readonly string[];
  readonly readPod?: (annotations: JsonObject, labels: JsonObject) => readonly PodAmounts[];
  /** Variables that it reads; the first is the one that switches isolation off. */
  readonly environment: readonly string[];
  /** Scheduler names in manifests of this dialect, which our own replaces. */
  readonly schedulers: readonly string[];
  /** All containers of a pod get their shares of one GPU each on the same one. */
  readonly sameGpu?: boolean;
  /** Labels of nodes that say what its amounts mean. In a pod that requires one it is read before the others. */
  readonly nodeLabels?: readonly string[];
  /** An amount of 0 means that the container asks for nothing (`cotenant.io/*` refuses it). */
  readonly zeroIsNothing: boolean;
  readonly read: (asked: Asked, rules: Rules) => Checked<Answer>;
  readonly choices?: readonly ForeignChoice[];
  /** What shows that its system is alive in a cluster, besides a Node with one of `resources`. Only objects that tenants
   * cannot write: webhooks by name, and Deployments as `namespace/name` in a namespace of the system's own. */
  readonly signs?: { readonly webhooks?: readonly string[]; readonly deployments?: readonly string[] };
  /** Variables that its workloads read, with their values. Those of the pod itself stay. */
  readonly variables?: (request: ContainerRequest) => Readonly<Record<string, string>>;
};

/** Whether a name of a dialect stands for others: `*` for any text in it, `-` and `.` at its end for any after it. */
export const isPattern = (own: string): boolean => /\*|[-.]$/.test(own);

export function isNamed(own: string, name: string): boolean {
  const star = own.indexOf('*');
  if (star < 0) return own === name || (isPattern(own) && name.startsWith(own));
  return name.length >= own.length && name.startsWith(own.slice(0, star)) && name.endsWith(own.slice(star + 1));
}

export const ownsResource = ({ resources }: Dialect, name: string): boolean =>
  resources.some((own) => isNamed(own, name));

/** Of a pod's annotation or label. */
export const ownsKey = ({ podKeys = [] }: Dialect, name: string): boolean => podKeys.some((own) => isNamed(own, name));

// The interface of a dialect: its resource names, and how one container's amounts in them become shares of GPUs. A
// dialect never sees a pod: read-container.ts collects the amounts and knows their field paths.

import type { DialectName, GpuShare, MemoryIsolation } from '../../api/request.ts';
import type { JsonObject } from '../../common/json.ts';
import type { Checked } from '../../common/problem.ts';
import type { Rules } from '../rules/namespace-rules.ts';

/** One container's amounts in one dialect. */
export type Asked = {
  /** Resource name -> text of the limit; never empty, only resources of this dialect. */
  readonly amounts: ReadonlyMap<string, string>;
  /** Field path of one of those amounts. */
  readonly amountPath: (resource: string) => string;
  /** Environment variables that this dialect reads, with literal values. */
  readonly environment: ReadonlyMap<string, string>;
  readonly labels: JsonObject;
  readonly annotations: JsonObject;
};

export type Answer = {
  readonly gpus: readonly GpuShare[];
  /** Only where the dialect decides it; else the pod's annotation does. */
  readonly memoryIsolation?: MemoryIsolation;
  readonly warnings: readonly string[];
};

export type Dialect = {
  readonly name: DialectName;
  readonly resources: readonly string[];
  readonly environment: readonly string[];
  /** Scheduler names in manifests of this dialect, which our own replaces. */
  readonly schedulers: readonly string[];
  /** An amount of 0 means that the container asks for nothing (`cotenant.io/*` refuses it). */
  readonly zeroIsNothing: boolean;
  readonly read: (asked: Asked, rules: Rules) => Checked<Answer>;
};

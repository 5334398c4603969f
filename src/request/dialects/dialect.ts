// What every dialect gives: its names, and how the amounts that one container wrote become shares of GPUs.
// Owns the contract only. A dialect never sees a pod: read.ts collects what was written and says where it stood.

import type { DialectName, GpuShare, MemoryIsolation } from '../../api/request.ts';
import type { JsonObject } from '../../common/json.ts';
import type { Checked } from '../../common/problem.ts';
import type { Rules } from '../rules/namespace-rules.ts';

/** What one container wrote in the names of one dialect. */
export type Asked = {
  /** Resource name -> text of the limit; never empty, and only names that this dialect owns. */
  readonly amounts: ReadonlyMap<string, string>;
  /** Field path of one of those amounts. */
  readonly amountPath: (resource: string) => string;
  /** Environment variables that this dialect reads and the container gives literally. */
  readonly environment: ReadonlyMap<string, string>;
  readonly labels: JsonObject;
  readonly annotations: JsonObject;
};

export type Answer = {
  readonly gpus: readonly GpuShare[];
  /** Given where the dialect itself says so; else the pod's annotation decides. */
  readonly memoryIsolation?: MemoryIsolation;
  readonly warnings: readonly string[];
};

export type Dialect = {
  readonly name: DialectName;
  readonly resources: readonly string[];
  readonly environment: readonly string[];
  /** Scheduler names that manifests of this dialect carry, and that our own replaces. */
  readonly schedulers: readonly string[];
  /** An amount of 0 means here that the container asks for nothing (our own names refuse it: leave them out). */
  readonly zeroIsNothing: boolean;
  readonly read: (asked: Asked, rules: Rules) => Checked<Answer>;
};

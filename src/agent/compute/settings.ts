// Settings of compute: how the node's GPUs divide it among containers.
import * as v from 'valibot';
import { COMPUTE_POLICIES, type ComputePolicy, parseComputePolicy } from '../../api/request.ts';
import { isObject } from '../../common/json.ts';
import { type SettingsOf, whole } from '../../common/schema.ts';

const POLICY_WANTED = `one of ${COMPUTE_POLICIES.join(', ')}, or its number, 0 to 5`;

/** A name, or cGPU's number, which YAML reads as a number. */
const Policy = v.pipe(
  v.picklist([...COMPUTE_POLICIES, ...COMPUTE_POLICIES.keys(), ...Object.keys(COMPUTE_POLICIES)], POLICY_WANTED),
  v.transform((policy) => parseComputePolicy(String(policy)) as ComputePolicy),
);

/** valibot accepts a list as a record; `isObject` does not. */
const Policies = v.pipe(
  v.custom<Record<string, unknown>>(isObject, 'a map from the UUID of a GPU to its policy'),
  v.record(v.string(), Policy),
);

export const COMPUTE_ENTRIES = {
  computePolicy: v.optional(Policy, 'fixed'),
  /** Policies of single GPUs, by UUID. */
  computePolicies: v.optional(Policies, {}),
  /** Upper limit for a container of high priority, in percent of a GPU. */
  highCapPercent: v.optional(whole(1, 100), 100),
};

export type ComputeSettings = SettingsOf<typeof COMPUTE_ENTRIES> & {
  readonly stateFolder: string;
  readonly mostTenantsPerGpu: number;
};

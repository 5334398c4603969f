// The driver's own limits as one of a node's fences: for which grants they are wanted, by which group each is known, and whether
// they are in force. Owns what was last known of the groups; the calls are driver-limits.ts'.

import { createCgroupFinder } from '../../attribution/cgroup-finder.ts';
import type { ContainerIndex } from '../../attribution/container-index.ts';
import type { Grant } from '../../grants/grant.ts';
import type { Native } from '../../os/addon.ts';
import type { Sample, SampledProcess } from '../../sampling/sample.ts';
import { type DriverLimitsOptions, openDriverLimits } from './sync.ts';

export type GrantLimits = {
  /** In force for this grant, as was last read. */
  holds(grant: Grant): boolean;
  /** Brings the limits to what is granted. `isEnforced`: other grants are to have none. Never throws. */
  after(
    sample: Sample,
    grants: readonly Grant[],
    isEnforced: (grant: Grant) => boolean,
    processesOf: (grantId: string) => readonly SampledProcess[],
  ): void;
};

export function createDriverLimits(
  configuration: Pick<DriverLimitsOptions, 'stateFolder' | 'nvmlLibrary'> & { readonly driverLimits: boolean },
  options: Omit<DriverLimitsOptions, 'stateFolder' | 'nvmlLibrary'> & {
    readonly native: Native;
    readonly containers: ContainerIndex;
  },
): GrantLimits {
  const { driverLimits, stateFolder, nvmlLibrary } = configuration;
  const groups = createCgroupFinder(options.native, options.containers, options.clock);
  const limits = openDriverLimits({ ...options, stateFolder, nvmlLibrary });
  let folders: ReadonlyMap<string, string> = new Map();
  return {
    holds: (grant) => limits.hold(grant, folders.get(grant.id)),
    after({ driverVersion, problem }, grants, isEnforced, processesOf) {
      if (!driverLimits || !limits.mayBeOf(driverVersion)) return;
      folders = groups.findAll(grants, processesOf);
      // Who is only reported is not refused either by what the interposer in him does not know of.
      if (problem === undefined) void limits.follow(grants.filter(isEnforced), folders, driverVersion);
    },
  };
}

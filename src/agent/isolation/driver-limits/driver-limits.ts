// The driver's memory limits as isolation of grants: finds the cgroup of each grant that gets one, and reports whether
// its limit is set. sync.ts sets and reads the limits.

import { createCgroupFinder } from '../../attribution/cgroup-finder.ts';
import type { ContainerIndex } from '../../attribution/container-index.ts';
import type { Grant } from '../../grants/grant.ts';
import type { Native } from '../../os/addon.ts';
import type { Sample, SampledProcess } from '../../sampling/sample.ts';
import { type DriverLimitsOptions, openDriverLimits } from './sync.ts';

type GrantLimits = {
  /** Are the limits of this grant set, as last read? */
  holds(grant: Grant): boolean;
  /** Updates the limits to the grants. `isEnforced`: other grants get none. Never throws. */
  after(
    sample: Sample,
    grants: readonly Grant[],
    isEnforced: (grant: Grant) => boolean,
    processesOf: (grantId: string) => readonly SampledProcess[],
  ): void;
};

export function createDriverLimits(
  isOn: boolean,
  options: DriverLimitsOptions & { readonly native: Native; readonly containers: ContainerIndex },
): GrantLimits {
  const groups = createCgroupFinder(options);
  const limits = openDriverLimits(options);
  let folders: ReadonlyMap<string, string> = new Map();
  return {
    holds: (grant) => limits.hold(grant, folders.get(grant.id)),
    after({ driverVersion, problem }, grants, isEnforced, processesOf) {
      if (!isOn || !limits.mayBeOf(driverVersion)) return;
      folders = groups.findAll(grants, processesOf);
      // In mode `report` or `off` no driver limit is set.
      if (problem === undefined) void limits.follow(grants.filter(isEnforced), folders, driverVersion);
    },
  };
}

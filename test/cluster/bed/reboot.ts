// What a power failure does to a node: every process ends at once, and what lies in memory is gone, with all mounts. The
// kernel is this machine's: its boot id and its clock go on, and the simulated driver keeps its counters.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Bed } from './bed.ts';
import { programsOf } from './cgroups.ts';

/** Watches over containers; killed before them, or it would report to containerd how they ended. */
const SHIM = 'containerd-shim';

const commandOf = (pid: number): string => {
  try {
    return readFileSync(`/proc/${pid}/comm`, 'utf8');
  } catch {
    return ''; // it has ended
  }
};

const killAll = (pids: readonly number[]): void => {
  for (const pid of pids) {
    try {
      process.kill(pid, 'SIGKILL');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
    }
  }
};

/** Resolves when the kubelet is ready again; nothing is said of the pods. */
export async function reboot(bed: Bed): Promise<void> {
  for (const part of ['kubelet', 'containerd'] as const) await bed.stop(part, 'SIGKILL');
  const { system, containers } = programsOf(bed.cgroup);
  killAll(system.filter((pid) => commandOf(pid).startsWith(SHIM)));
  killAll(containers);
  const state = join(bed.folder, 'containerd/state');
  bed.namespaces.script(
    [
      `awk '$2 ~ "^(/var/lib/kubelet|/run/netns|${state})/" { print $2 }' /proc/mounts | sort -r | xargs -r umount -l`,
      `ls ${state}/io.containerd.runtime.v2.task/k8s.io | while read -r id; do rm -rf "/run/containerd/runc/k8s.io/$id"; done`,
      `rm -rf ${state}/* /run/netns/* /run/nri/* /run/cdi/*`,
    ].join('\n'),
  );
  await bed.start('containerd');
  await bed.start('kubelet');
}

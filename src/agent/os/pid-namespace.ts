// Whether the agent sees all processes on the GPUs: NVML lists only processes of the caller's PID namespace and of
// those below it.
/** PROC_PID_INIT_INO: the number of the machine's first PID namespace, the same on every Linux. */
const FIRST_NAMESPACE = 0xef_ff_ff_fc;

/** `inode`: of /proc/self/ns/pid. Returns the problem as a text; undefined: none. */
export const unseenProcesses = (inode: number): string | undefined =>
  inode === FIRST_NAMESPACE
    ? undefined
    : `the agent runs in a PID namespace of its own (${inode}): NVML does not list processes outside of it, so their use is not seen and their containers are not held to their grants; in a pod set hostPID: true, in a container of Docker or podman --pid=host`;

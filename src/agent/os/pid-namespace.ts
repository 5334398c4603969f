// Whether the driver names everybody to this agent: it names processes of the asker's PID namespace and of those below it, and is
// silent of all others, as if nobody used the GPU.
/** PROC_PID_INIT_INO: the number of the machine's first PID namespace, the same on every Linux. */
const FIRST_NAMESPACE = 0xef_ff_ff_fc;

/** `inode`: of /proc/self/ns/pid. What is wrong, in words; undefined: nothing. */
export const unseenProcesses = (inode: number): string | undefined =>
  inode === FIRST_NAMESPACE
    ? undefined
    : `the agent runs in a PID namespace of its own (${inode}): the driver names nobody outside of it to the agent, so use from there is not seen, and nobody there is over a grant or stopped; in a pod set hostPID: true, in a container of Docker or podman --pid=host`;

// Start times of processes: together with the PID they identify one.

/**
 * What /proc may show the agent for a process that wrote its own start time, in ticks, into the usage ledger. In a time
 * namespace the kernel shows it with an offset, which need not be whole ticks: without it, the start time may be a tick
 * too early.
 */
export const possibleStarts = (writtenTicks: number): readonly number[] => [writtenTicks, writtenTicks + 1];

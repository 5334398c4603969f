"""What NVML reports: what a call costs, lists of processes, memory, rights, and utilization."""

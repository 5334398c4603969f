// Processes as /proc shows them. A pid and its start time together name a process for good.
#pragma once

#include <cstdint>
#include <string>
#include <sys/types.h>
#include <vector>

namespace proc {

struct Process {
    uint64_t start_ticks = 0; // field 22 of stat
    pid_t parent = 0;
    char state = '?';
    std::string command; // comm, at most 15 bytes
    std::string cgroup;  // the file's text as it is, shortened to 64 KiB
    uint64_t pid_namespace = 0;
    pid_t namespace_pid = 0; // as the process itself sees it; 0: it could not be read
};

// A handle that never comes to mean another process; negative: errno says why not.
int open_pidfd(pid_t pid);
// Only what stat tells: start time, parent, state, command. False: no such process, or unreadable.
bool read_stat(pid_t pid, Process &out);
// Everything; false when the process was gone before all of it could be read as one process's.
bool read_process(pid_t pid, Process &out);
// Parent, its parent and so on, nearest first, at most `most`; ends before pid 1.
std::vector<pid_t> ancestors(pid_t pid, size_t most);

} // namespace proc

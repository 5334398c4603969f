// Reads processes from /proc. A PID and its start time together identify a process.
#pragma once

#include <cstdint>
#include <string>
#include <sys/types.h>
#include <unordered_map>
#include <utility>
#include <vector>

namespace proc {

struct Process {
    uint64_t start_ticks = 0; // field 22 of stat
    pid_t parent = 0;
    // A process whose first thread has ended shows as a zombie, even while other threads run and keep its memory.
    bool ended = false;
    bool leaderless = false;
    std::string command; // comm, at most 15 bytes
    // The file's text, cut to 64 KiB. For a process whose first thread has ended, that of another thread: under cgroup
    // v1 a dead thread shows only the root.
    std::string cgroup;
    uint64_t pid_namespace = 0;
    pid_t namespace_pid = 0; // inside its own PID namespace; 0: could not be read
};

// Whether a process can have this PID: not 0, which drivers report for processes that the caller cannot see, and at
// most the kernel's limit.
bool is_pid(uint32_t number);

// A descriptor that always refers to this process (pidfd); negative: errno says why.
int open_pidfd(pid_t pid);

// Owns a pidfd; empty where none can be had (Linux before 5.3, no descriptor left, no such process).
class Handle {
  public:
    Handle() = default;
    explicit Handle(pid_t pid) : descriptor_(open_pidfd(pid)) {}
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;
    Handle(Handle &&other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
    Handle &operator=(Handle &&other) noexcept {
        std::swap(descriptor_, other.descriptor_);
        return *this;
    }
    ~Handle();
    explicit operator bool() const { return descriptor_ >= 0; }
    int descriptor() const { return descriptor_; }
    // The process has not exited, so it has had its PID ever since the pidfd was opened. False also when empty.
    bool lives() const;
    // Moves the descriptor to `least` or above; empty if there is none.
    void move_up(int least);

  private:
    int descriptor_ = -1;
};

// Reads only /proc/PID/stat: start time, parent, whether it has ended, command. False: no such process, or unreadable.
bool read_stat(pid_t pid, Process &out);
// Now, in the unit of start times.
uint64_t now_ticks();
// Ticks in microseconds since boot.
uint64_t micros(uint64_t ticks);
// Reads everything; false when the process ended before all of it could be read. Its PID namespace and its PID in there
// never change, so they are not read if `out` has them: the caller compares the start time with the earlier one. An
// empty `handle` gets a pidfd of the process.
bool read_process(pid_t pid, Process &out, Handle &handle);
bool read_process(pid_t pid, Process &out);
// Reads only the command and the cgroup, a small part of the work. `known` has the earlier values and gets the new
// ones; `changed`: they differ. False when the process has ended or something could not be read: then nothing is
// changed.
bool read_changes(pid_t pid, Process &known, const Handle &handle, bool &changed);
// Parent by PID, as far as read; 0: none.
using Parents = std::unordered_map<pid_t, pid_t>;
// Parent, its parent and so on, nearest first, at most `most`, without PID 1. Reads only processes that are not in
// `parents`.
std::vector<pid_t> ancestors(pid_t pid, size_t most, Parents &parents);

} // namespace proc

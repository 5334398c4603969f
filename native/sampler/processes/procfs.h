// Processes as /proc shows them. A pid and its start time together name a process for good.
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
    // A first thread that has ended shows as a zombie, also while others go on and hold all that the process has.
    bool ended = false;
    bool leaderless = false;
    std::string command; // comm, at most 15 bytes
    // The file's text as it is, shortened to 64 KiB; of a process whose first thread has ended that of another one, for
    // version 1 tells of a dead thread no more than the root.
    std::string cgroup;
    uint64_t pid_namespace = 0;
    pid_t namespace_pid = 0; // as the process itself sees it; 0: it could not be read
};

// Whether a process can have it: not 0, which drivers say of whom the asker cannot see, and no more than the kernel
// gives.
bool is_pid(uint32_t number);

// A handle that never comes to mean another process; negative: errno says why not.
int open_pidfd(pid_t pid);

// Such a handle with its end; none where none is to be had (Linux before 5.3, no descriptor left, no such process).
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
    // Its process has not exited: the pid has been its own ever since the handle was opened. False also without a
    // handle.
    bool lives() const;
    // Leaves descriptors below `least` to others; none where there is none from there on.
    void move_up(int least);

  private:
    int descriptor_ = -1;
};

// Only what stat tells: start time, parent, whether it has ended, command. False: no such process, or unreadable.
bool read_stat(pid_t pid, Process &out);
// The time as start times are told.
uint64_t now_ticks();
// In microseconds since boot.
uint64_t micros(uint64_t ticks);
// Everything; false when the process was gone before all of it could be read as one process's. What cannot change in a
// process's life, its pid namespace and its pid there, is not read where `out` has it: whoever fills it in compares the
// start time with the one before. `handle` gets a handle on the process where it is none.
bool read_process(pid_t pid, Process &out, Handle &handle);
bool read_process(pid_t pid, Process &out);
// Of what may change in its life only what tells whose it is and what runs in it, command and cgroup: a small part of
// the work. `known`: as it was read before; `changed`: it is not so any more, and `known` is what it is now. False when
// the process of the handle has ended, or something could not be read: then nothing is changed.
bool read_changes(pid_t pid, Process &known, const Handle &handle, bool &changed);
// Who is whose parent, as far as it was read; 0: nobody's.
using Parents = std::unordered_map<pid_t, pid_t>;
// Parent, its parent and so on, nearest first, at most `most`; ends before pid 1. Reads only who is not in `parents`.
std::vector<pid_t> ancestors(pid_t pid, size_t most, Parents &parents);

} // namespace proc

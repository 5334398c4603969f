// Tracks the processes that the driver names, from round to round: their identity, their use of each GPU, and what of
// that has changed since the last line. A pidfd of a running process proves that its PID was not reused, so an
// unchanged process costs neither reads nor output.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "procfs.h"

struct Usage { // by one process on one GPU, since the sampler first saw it
    uint64_t sm_us = 0, memory_us = 0, encoder_us = 0, decoder_us = 0;
    uint32_t sm_percent = 0; // over the last window
    uint64_t active_us = 0;  // wall clock of its last sample with SM use
    uint64_t bytes = 0;
    uint32_t types = 0; // 1 compute, 2 graphics, 4 MPS
    bool bytes_known = false, listed = false;
    bool operator==(const Usage &) const = default;
};

class Processes {
  public:
    Processes();
    Processes(const Processes &) = delete;
    Processes &operator=(const Processes &) = delete;
    ~Processes();
    // Starts a round: no process is listed before the driver says so, nor busy in a round with `utilization`.
    void begin(uint64_t round, bool utilization);
    // Asks the kernel in one call which processes have ended. To be called after the driver has answered: a process
    // that runs now was running then.
    void poll_exits();
    // When the process that has this PID now started, in ticks since boot; 0: no process has it; nothing: unknown.
    std::optional<uint64_t> start_of(pid_t pid) const;
    // The use of this GPU by this process, valid until the next call. Reads the process's identity if it is not known
    // yet.
    Usage &use(pid_t pid, size_t gpu);
    // The same for a process in a list that was asked for at `asked_ticks`. Null: it started since or in the same tick,
    // so the list may mean an earlier process with that PID.
    Usage *listed(pid_t pid, size_t gpu, uint64_t asked_ticks);
    // Appends the members "processes", "removedPids" and "processCount" of the line, and forgets processes that nothing
    // named in this round, if it is one with utilization: that of a process that has ended comes with the next one, for
    // which its identity is needed.
    void write_changes(std::string &out);

  private:
    struct Use {
        size_t gpu;
        Usage now, reported;
    };
    struct Tracked {
        proc::Process process;
        proc::Handle handle;
        std::vector<pid_t> ancestors;
        std::vector<Use> uses;        // ordered by GPU
        uint64_t seen_round = 0;      // named by the driver
        uint64_t read_round = 0;      // when command and cgroup are due to be read again; 0: nothing could be read yet
        uint64_t full_read_round = 0; // when everything is
        uint64_t known = 0;           // value of poll_ when its identity was last checked
        bool watched = false;         // exits_ reports its end
        bool gone = false;            // named by the driver, but not in /proc
        bool identity_changed = true, uses_changed = true;
    };

    Tracked &identify(pid_t pid);
    void watch(pid_t pid, Tracked &known);
    void read_first(pid_t pid, Tracked &known);
    void read_changes(pid_t pid, Tracked &known);
    void read_again(pid_t pid, Tracked &known);
    static bool is_reported(const Tracked &known);
    static void write(pid_t pid, const Tracked &known, std::string &out);
    void forget_unseen();

    std::map<pid_t, Tracked> tracked_;
    mutable std::map<pid_t, std::optional<uint64_t>> starts_; // of processes without a pidfd, for this value of poll_
    std::vector<pid_t> removed_;                              // forgotten at the end of the last round
    proc::Parents parents_;                                   // of this round
    int exits_;                                               // epoll set of pidfds; negative: each is polled by itself
    uint64_t round_ = 0, poll_ = 0;
    bool utilization_ = false; // is read in this round
    int lowest_handle_;
};

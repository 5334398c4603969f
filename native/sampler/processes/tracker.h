// The processes that the driver names, from round to round: who each of them is, what it uses of each GPU, and what of
// that the agent has not been told yet. A handle on a process that has not exited proves that it is the one that it
// was, so of one that goes on as before nothing is read and nothing is told.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "procfs.h"

struct Usage { // of one process on one GPU, since the sampler first saw it
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
    // The next round: nobody is listed and nobody is busy before the driver says so.
    void begin(uint64_t round);
    // The driver has answered. Asks the kernel in one call who has ended, so after the answer: who lives now did so
    // when it was given.
    void poll_exits();
    // When the process that has this pid now began, in ticks since boot; 0: none has it. Nothing: it cannot be told.
    std::optional<uint64_t> start_of(pid_t pid) const;
    // The place for what this process uses of this GPU, good until the next call. Who it is is read where it is not
    // known.
    Usage &use(pid_t pid, size_t gpu);
    // The same of whom the driver listed, for which it was asked at `asked_ticks`, as start times are told. Null: this
    // one began since, or in that moment, so another one of that pid may have been meant.
    Usage *listed(pid_t pid, size_t gpu, uint64_t asked_ticks);
    // Appends the members "processes", "left" and "total" of the line, and forgets whom nothing named in this round: a
    // process is told once after its end, so that its last use is not lost.
    void tell(std::string &out);

  private:
    struct Use {
        size_t gpu;
        Usage now, reported;
    };
    struct Tracked {
        proc::Process process;
        proc::Handle handle;
        std::vector<pid_t> ancestors;
        std::vector<Use> uses;        // by GPU
        uint64_t seen_round = 0;      // named by the driver
        uint64_t read_round = 0;      // when what can change is to be read again; 0: nothing could be read yet
        uint64_t full_read_round = 0; // the same of all of it
        uint64_t known = 0;           // the question after which it was settled who it is
        bool watched = false;         // its end is told by ends_
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
    mutable std::map<pid_t, std::optional<uint64_t>> starts_; // of those without a handle, of this question
    std::vector<pid_t> removed_;                              // forgotten at the end of the last round
    proc::Parents parents_;                                   // of this round
    int exits_; // an epoll set of handles; negative: each is asked by itself
    uint64_t round_ = 0, poll_ = 0;
    int lowest_handle_;
};

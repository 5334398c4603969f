// Detects entries of a GPU's process lists whose PID was reused. A driver lists the process that opened the GPU for as
// long as any process has it open, for example a child of one that has ended: by then the PID may belong to another
// process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <sys/types.h>

#include "procfs.h"

class PidReuse {
  public:
    // When the process that has a PID now started, in ticks since boot; 0: no process has it; nothing: unknown.
    using StartOf = std::function<std::optional<uint64_t>(pid_t)>;

    // A round begins. Lists (bits, as in types) that have answered name their processes anew; of others the last answer
    // stays.
    void begin(uint32_t answered);
    // An entry of a list that was asked for at `asked_ticks`; all lists had answered by `answered_us` (since boot).
    // `start_ticks`: as StartOf says of the entry's PID.
    void add(pid_t pid, std::optional<uint64_t> bytes, unsigned list, std::optional<uint64_t> start_ticks,
             uint64_t asked_ticks, uint64_t answered_us);
    // All entries of this round were added.
    void finish(const StartOf &start_of, uint64_t now_us);
    // The process that has the PID now is not the one that the driver lists.
    bool is_reused(pid_t pid, std::optional<uint64_t> start_ticks) const;
    void clear() { listed_.clear(); }

  private:
    struct Listed {
        std::optional<uint64_t> start_ticks; // of the process that the driver means; 0: it had ended already
        uint32_t types = 0;                  // lists that named the PID when they last answered
        uint64_t own_bytes = 0;              // that were listed when its own process, or none, last had the PID
        uint64_t bytes = 0;                  // that are listed now
        uint64_t other_since_us = 0;         // since when another process has the PID; 0: none has
    };
    static constexpr uint64_t DOUBT_US = 2000000;
    static void check(Listed &listed, std::optional<uint64_t> now, uint64_t now_us);

    std::map<pid_t, Listed> listed_;
};

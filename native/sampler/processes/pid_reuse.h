// Whose each pid in a GPU's process lists is. A driver lists who opened the GPU for as long as anybody has it open,
// children of one that has ended, too: who has its pid by then is another.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <sys/types.h>

#include "../nvml/nvml.h"
#include "tracker.h"

class Holders {
  public:
    // A round begins. Lists (bits, as in types) that have answered tell anew who is in them; of others it stays.
    void begin(uint32_t answered);
    // In a list that was asked at `asked_ticks`, all of which had answered by `answered_us` (since boot).
    void listed(const nvml::Entry &entry, unsigned list, const Processes &processes, uint64_t asked_ticks,
                uint64_t answered_us);
    // All that were listed in this round are known.
    void settle(const Processes &processes, uint64_t now_us);
    // Whoever has the pid is not the process that the driver lists.
    bool is_nobodys(pid_t pid, const Processes &processes) const;
    void clear() { holders_.clear(); }

  private:
    // Of a pid: whose it was when it came into the lists, by the start of its process (0: it was gone already), and
    // the lists that named it when they last answered.
    struct Holder {
        std::optional<uint64_t> start_ticks;
        uint32_t types = 0;
        bool seen_gone = false;      // it was listed while nobody had the pid
        uint64_t own_bytes = 0;      // that were listed when its own process was last there
        uint64_t bytes = 0;          // that are listed now
        uint64_t other_since_us = 0; // since when somebody else has it; 0: nobody has
    };
    static constexpr uint64_t DOUBT_US = 2000000;
    static void doubt(Holder &holder, std::optional<uint64_t> now, uint64_t now_us);

    std::map<pid_t, Holder> holders_;
};

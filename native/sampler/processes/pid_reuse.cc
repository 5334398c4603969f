#include "pid_reuse.h"

#include <algorithm>

void PidReuse::begin(uint32_t answered) {
    for (auto &[pid, listed] : listed_) {
        listed.types &= ~answered;
        listed.bytes = 0;
    }
}

void PidReuse::add(pid_t pid, std::optional<uint64_t> bytes, unsigned list, std::optional<uint64_t> start_ticks,
                   uint64_t asked_ticks, uint64_t answered_us) {
    Listed &listed = listed_[pid];
    listed.types |= 1u << list;
    if (bytes) listed.bytes = std::max(listed.bytes, *bytes);
    if (start_ticks && *start_ticks == 0) listed.own_bytes = listed.bytes;
    if (listed.start_ticks) return;
    // A process that started after the answer is not the listed one.
    if (start_ticks && proc::micros(*start_ticks) > answered_us) listed.start_ticks = 0;
    else if (!start_ticks || *start_ticks < asked_ticks) listed.start_ticks = start_ticks;
}

void PidReuse::finish(const StartOf &start_of, uint64_t now_us) {
    std::erase_if(listed_, [](const auto &entry) { return entry.second.types == 0; });
    for (auto &[pid, listed] : listed_) check(listed, start_of(pid), now_us);
}

// Where a PID was reused, the new process may itself use the GPU by now. The entry still means the old process where
// its bytes are as when that one was last there, or had ended and no process had the PID: an ended process neither
// allocates nor frees. Otherwise the entry counts as the new process's after DOUBT_US.
void PidReuse::check(Listed &listed, std::optional<uint64_t> now, uint64_t now_us) {
    if (listed.start_ticks && now == listed.start_ticks) listed.own_bytes = listed.bytes;
    if (!listed.start_ticks || !now || *now == 0 || *now == *listed.start_ticks) {
        listed.other_since_us = 0;
    } else if (listed.other_since_us == 0) {
        listed.other_since_us = now_us;
    } else if (listed.bytes != listed.own_bytes && now_us - listed.other_since_us >= DOUBT_US) {
        listed.start_ticks = now;
        listed.other_since_us = 0;
    }
}

bool PidReuse::is_reused(pid_t pid, std::optional<uint64_t> start_ticks) const {
    const auto listed = listed_.find(pid);
    if (listed == listed_.end()) return false;
    const std::optional<uint64_t> first = listed->second.start_ticks;
    return first && start_ticks && *start_ticks != 0 && *start_ticks != *first;
}

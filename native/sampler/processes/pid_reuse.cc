#include "pid_reuse.h"

#include <algorithm>

void Holders::begin(uint32_t answered) {
    for (auto &[pid, holder] : holders_) {
        holder.types &= ~answered;
        holder.bytes = 0;
    }
}

void Holders::listed(const nvml::Entry &entry, unsigned list, const Processes &processes, uint64_t asked_ticks,
                     uint64_t answered_us) {
    const auto pid = static_cast<pid_t>(entry.pid);
    Holder &holder = holders_[pid];
    holder.types |= 1u << list;
    if (entry.known) holder.bytes = std::max(holder.bytes, entry.bytes);
    const std::optional<uint64_t> start_ticks = processes.start_of(pid);
    if (start_ticks && *start_ticks == 0) holder.seen_gone = true;
    if (holder.start_ticks) return;
    // It came after the answer: another one was listed.
    if (start_ticks && proc::micros(*start_ticks) > answered_us) holder.start_ticks = 0;
    else if (!start_ticks || *start_ticks < asked_ticks) holder.start_ticks = start_ticks;
}

void Holders::settle(const Processes &processes, uint64_t now_us) {
    std::erase_if(holders_, [](const auto &entry) { return entry.second.types == 0; });
    for (auto &[pid, holder] : holders_) doubt(holder, processes.start_of(pid), now_us);
}

// Where the pid has changed hands between two rounds the second one may be on the GPU itself by now. Where a list
// named it while nobody had it, what is listed is the first one's, and so it is where it is what it was: who is dead
// takes no more and gives nothing back. Else it is taken for the second one's after a while.
void Holders::doubt(Holder &holder, std::optional<uint64_t> now, uint64_t now_us) {
    if (holder.start_ticks && now == holder.start_ticks) holder.own_bytes = holder.bytes;
    if (!holder.start_ticks || !now || *now == 0 || *now == *holder.start_ticks) {
        holder.other_since_us = 0;
    } else if (holder.other_since_us == 0) {
        holder.other_since_us = now_us;
    } else if (!holder.seen_gone && holder.bytes != holder.own_bytes && now_us - holder.other_since_us >= DOUBT_US) {
        holder.start_ticks = now;
        holder.other_since_us = 0;
    }
}

bool Holders::is_nobodys(pid_t pid, const Processes &processes) const {
    const auto holder = holders_.find(pid);
    if (holder == holders_.end()) return false;
    const std::optional<uint64_t> first = holder->second.start_ticks, now = processes.start_of(pid);
    return first && now && *now != 0 && *now != *first;
}

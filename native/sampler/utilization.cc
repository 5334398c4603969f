// Use of each process over time, from the samples that the driver keeps of it, and how far they were read.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "common/json.h"
#include "sampler.h"

using json::add_field;
using json::open;

namespace {

constexpr uint64_t RING_US = 10000000; // the driver keeps 10 s of utilization samples
constexpr uint64_t LATE_US = 300000;   // a sample may become readable this late
constexpr int64_t STEP_US = 500000;    // slewing a clock by this much takes minutes

} // namespace

void Sampler::start_from_resume_point(Gpu &gpu, uint64_t steady_us) {
    const auto reported = resume_points_.find(gpu.uuid);
    if (reported == resume_points_.end()) return;
    const auto [day_us, boot_us, set_us] = reported->second;
    resume_points_.erase(reported);
    if (gpu.last_seen_us || boot_us > steady_us || day_us < boot_us || day_us > INT64_MAX / 2) return;
    gpu.last_seen_us = day_us;
    gpu.last_poll_us = boot_us;
    gpu.stepped_us = set_us;
    gpu.clock_us = static_cast<int64_t>(day_us - boot_us);
}

void Sampler::write_resume_points(std::string &out) {
    open(out, "utilizationCursors", '[');
    const auto add = [&](const std::string &uuid, const ResumePoint &until) {
        open(out, '{');
        add_field(out, "uuid", uuid);
        add_field(out, "dayUs", until.day_us);
        add_field(out, "bootUs", until.boot_us);
        add_field(out, "setUs", until.set_us);
        out += '}';
    };
    for (const Gpu &gpu : gpus_) {
        const int64_t boot_us = static_cast<int64_t>(gpu.last_seen_us) - gpu.clock_us;
        if (gpu.gone || gpu.last_seen_us == 0 || boot_us < 0) continue;
        add(gpu.uuid, {gpu.last_seen_us, static_cast<uint64_t>(boot_us), gpu.stepped_us});
    }
    // GPUs not read yet: the next sampler can still resume them.
    for (const auto &[uuid, until] : resume_points_) add(uuid, until);
    out += ']';
}

// Adds the use of each process since the last round: percent of a window, times the window. Rows with a time in the
// future or the past, with an invalid PID, or from before the process with that PID started are dropped. All ones mean
// that the driver does not know: that figure is left out, and where SM use is unknown, has_process_utilization is
// false. Rows carry wall clock times. After a step of the wall clock, earlier times cannot be compared with new ones,
// and until the ring has turned over rows may still carry the old time. The use of a process is capped at the time
// since it started.
void Sampler::integrate(size_t index, uint64_t now_us, uint64_t steady_us) {
    Gpu &gpu = gpus_[index];
    start_from_resume_point(gpu, steady_us);
    const int64_t clock_us = static_cast<int64_t>(now_us) - static_cast<int64_t>(steady_us);
    if (gpu.last_seen_us && std::llabs(clock_us - gpu.clock_us) > STEP_US) {
        gpu.gaps++;
        gpu.last_seen_us = now_us - LATE_US;
        gpu.last_poll_us = gpu.stepped_us = steady_us;
        gpu.clock_us = clock_us;
        return;
    }
    gpu.clock_us = clock_us;
    const uint64_t since = gpu.last_seen_us;
    std::vector<nvml::Utilization> rows;
    if (!library_.process_utilization(gpu.device, since, rows)) return; // the next answer covers this time too
    if (gpu.last_poll_us && steady_us - gpu.last_poll_us > RING_US) gpu.gaps++;
    gpu.last_poll_us = steady_us;
    const bool clock_changed = gpu.stepped_us && steady_us - gpu.stepped_us <= RING_US + LATE_US;
    // Rows with the old time may be only slightly ahead.
    const uint64_t ahead_us = clock_changed ? 100000 : 1000000;
    const auto of_the_future = [&](const nvml::Utilization &row) { return row.at_us > now_us + ahead_us; };
    const bool has_other_clock = clock_changed && std::any_of(rows.begin(), rows.end(), of_the_future);
    uint64_t newest = 0;
    processes_.poll_exits();
    const auto of_other_process = [&](const nvml::Utilization &row) {
        const auto pid = static_cast<pid_t>(row.pid);
        const std::optional<uint64_t> start_ticks = processes_.start_of(pid);
        return static_cast<int64_t>(row.at_us) - clock_us <
                   static_cast<int64_t>(proc::micros(start_ticks.value_or(0))) ||
               gpu.pid_reuse.is_reused(pid, start_ticks);
    };
    std::erase_if(rows, [&](const nvml::Utilization &row) {
        return !proc::is_pid(row.pid) || row.at_us <= since || of_the_future(row) || of_other_process(row);
    });
    const bool all_known = std::erase_if(rows, [](const nvml::Utilization &row) { return row.sm > 100; }) == 0;
    for (const nvml::Utilization &row : rows) newest = std::max(newest, row.at_us);
    gpu.has_process_utilization = (since != 0 || newest == 0) && !has_other_clock && all_known;
    if (since == 0) { // the first answer averages a time before this sampler
        gpu.last_seen_us = newest ? newest : now_us - LATE_US;
        return;
    }
    if (newest == 0) { // no process ran: that time is accounted for
        if (all_known) gpu.last_seen_us = std::max(since, now_us - LATE_US);
        return;
    }
    const uint64_t window = std::min(newest - since, RING_US);
    for (const nvml::Utilization &row : rows) {
        // A mean over a time in which another process had the PID includes the use of that process.
        const uint64_t start_ticks = processes_.start_of(static_cast<pid_t>(row.pid)).value_or(0);
        const int64_t lived =
            static_cast<int64_t>(row.at_us) - clock_us - static_cast<int64_t>(proc::micros(start_ticks));
        const uint64_t lived_us = start_ticks ? static_cast<uint64_t>(std::max<int64_t>(lived, 0)) : UINT64_MAX;
        const auto part_of = [window, lived_us](uint32_t percent) {
            return percent <= 100 ? std::min(percent * window / 100, lived_us) : 0;
        };
        Usage &usage = processes_.use(static_cast<pid_t>(row.pid), index);
        usage.sm_us += part_of(row.sm);
        usage.memory_us += part_of(row.memory);
        usage.encoder_us += part_of(row.encoder);
        usage.decoder_us += part_of(row.decoder);
        usage.sm_percent = row.sm;
        if (row.sm) usage.active_us = row.at_us;
    }
    gpu.last_seen_us = newest;
}

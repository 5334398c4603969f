// cotenant-sampler: reads NVML and /proc in a process of its own and prints one sample a line, as JSON. A driver call
// that hangs can only hang this process, which its parent then abandons.
//
//   cotenant-sampler [--interval-ms 1000] [--library libnvidia-ml.so.1] [--utilization-ms 1000] [--readings-ms 5000]
//   [--utilization-cursor DAY_US:BOOT_US:SET_US:UUID]...
//
// Every interval memory and process lists are read; utilization by process and the readings of GPUs at most as often as
// their options say, for these calls cost the driver milliseconds, in which other processes' allocations wait.
//
// The first line has every process, each later one only the processes that changed: src/agent/sampling/delta-decoder.ts
// puts them together. A sampler that is started with `utilizationCursors` of an earlier sampler's line continues where
// that line ended: what GPUs did in between is in its first line.
//
// Standard input takes one command a line: "interval MS" (from now on), "stop" (releases NVML and exits). The sampler
// exits when standard input ends, and with code 3 when the driver that it opened is gone. src/agent/sampling/sample.ts
// says what each field means.
#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include "common/clock.h"
#include "sampler.h"

namespace {

constexpr int DRIVER_GONE = 3; // the parent starts another sampler, which opens the current driver

// Writes all of it; false: the reader has closed its end.
bool write_all(const std::string &text) {
    for (size_t at = 0; at < text.size();) {
        const ssize_t length = write(STDOUT_FILENO, text.data() + at, text.size() - at);
        if (length < 0 && errno == EINTR) continue;
        if (length <= 0) return false;
        at += static_cast<size_t>(length);
    }
    return true;
}

// Handles commands until `deadline_ns`; false: exit.
bool listen(uint64_t deadline_ns, uint64_t &interval_ms) {
    static std::string pending;
    for (;;) {
        const uint64_t now = clock_ns(CLOCK_MONOTONIC);
        const uint64_t left_ms = deadline_ns > now ? (deadline_ns - now) / 1000000 : 0;
        pollfd input{};
        input.fd = STDIN_FILENO;
        input.events = POLLIN;
        const int ready = poll(&input, 1, static_cast<int>(left_ms));
        if (ready == 0) return true;
        if (ready < 0) {
            if (errno == EINTR) continue;
            return false;
        }
        char buffer[512];
        const ssize_t length = read(STDIN_FILENO, buffer, sizeof buffer);
        if (length <= 0) return false;
        pending.append(buffer, static_cast<size_t>(length));
        size_t end;
        while ((end = pending.find('\n')) != std::string::npos) {
            const std::string line = pending.substr(0, end);
            pending.erase(0, end + 1);
            uint64_t value = 0;
            if (line == "stop") return false;
            if (std::sscanf(line.c_str(), "interval %" SCNu64, &value) == 1 && value >= 50 && value <= 60000) {
                if (value < interval_ms) deadline_ns = 0; // the new interval is shorter: sample at once
                interval_ms = value;
            }
        }
        if (pending.size() > 4096) pending.clear();
        if (deadline_ns == 0) return true;
    }
}

// Each tracked process needs a descriptor. The limit is not raised further: some programs close every descriptor that
// they may have, and a driver's library may start one.
void allow_descriptors() {
    constexpr rlim_t MOST = 65536;
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, MOST));
    setrlimit(RLIMIT_NOFILE, &limit); // where this fails, fewer processes are tracked by a descriptor
}

// DAY_US:BOOT_US:SET_US:UUID, as in `utilizationCursors`. The text holds a UUID that a driver chose, so a malformed one
// must not stop the sampler.
bool resume(Sampler &sampler, const char *text) {
    Sampler::ResumePoint until;
    int length = 0;
    const int found = std::sscanf(text, "%" SCNu64 ":%" SCNu64 ":%" SCNu64 ":%n", &until.day_us, &until.boot_us,
                                  &until.set_us, &length);
    if (found != 3 || length == 0 || !text[length]) return false;
    sampler.resume(text + length, until);
    return true;
}

int usage() {
    std::fputs("usage: cotenant-sampler [--interval-ms 50..60000] [--library PATH] "
               "[--utilization-ms 0..5000] [--readings-ms 0..60000] "
               "[--utilization-cursor DAY_US:BOOT_US:SET_US:UUID]...\n",
               stderr);
    return 2;
}

} // namespace

int main(int argc, char **argv) {
    uint64_t interval_ms = 1000;
    Sampler::Pace pace;
    std::string library = "libnvidia-ml.so.1";
    std::vector<const char *> cursors;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 >= argc) return usage();
        if (!std::strcmp(argv[i], "--interval-ms")) interval_ms = std::strtoull(argv[i + 1], nullptr, 10);
        else if (!std::strcmp(argv[i], "--library")) library = argv[i + 1];
        else if (!std::strcmp(argv[i], "--utilization-ms"))
            pace.utilization_ms = std::strtoull(argv[i + 1], nullptr, 10);
        else if (!std::strcmp(argv[i], "--readings-ms")) pace.readings_ms = std::strtoull(argv[i + 1], nullptr, 10);
        else if (!std::strcmp(argv[i], "--utilization-cursor")) cursors.push_back(argv[i + 1]);
        else return usage();
    }
    if (interval_ms < 50 || interval_ms > 60000 || pace.utilization_ms > 5000 || pace.readings_ms > 60000)
        return usage();
    prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    std::signal(SIGPIPE, SIG_IGN);
    allow_descriptors();
    Sampler sampler(library, pace);
    for (size_t i = 0; i < cursors.size(); i++)
        if (!resume(sampler, cursors[i]))
            std::fprintf(stderr,
                         "cotenant-sampler: --utilization-cursor, number %zu: want DAY_US:BOOT_US:SET_US:UUID; "
                         "its GPU starts without it\n",
                         i + 1);
    uint64_t next = clock_ns(CLOCK_MONOTONIC);
    for (;;) {
        const std::string line = sampler.take();
        if (!write_all(line)) return 0;
        if (sampler.driver_gone()) return DRIVER_GONE;
        next += interval_ms * 1000000;
        const uint64_t now = clock_ns(CLOCK_MONOTONIC);
        if (next < now) next = now; // rounds that were missed are skipped
        const uint64_t before = interval_ms;
        if (!listen(next, interval_ms)) return 0;
        if (interval_ms != before) next = clock_ns(CLOCK_MONOTONIC);
    }
}

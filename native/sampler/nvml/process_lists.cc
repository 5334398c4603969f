// Process lists, whose entries have had 16, 24 and 32 bytes. A name's own length is not trusted: one name has had all
// of them. The array goes to the driver filled, so its answer shows where it ends; where that does not tell, entries
// do, and where neither does, the list counts as not told: read at a wrong length, it names processes that hold what
// others do.
#include "nvml.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "../processes/procfs.h"

namespace nvml {

namespace {

constexpr unsigned char FILLER = 0xaa;
constexpr unsigned MAX_PROCESSES = 1024; // the kernel answers at most 950
constexpr size_t LENGTHS[] = {16, 24, 32};
constexpr size_t LONGEST = 32, NEEDED = 16; // of an entry, what is read of each
constexpr uint64_t MAX_BYTES = 1ull << 48;  // no GPU has a part of that

struct Answer {
    const unsigned char *bytes;
    size_t size;
    unsigned count;

    Entry entry(unsigned i, size_t length) const {
        Entry out;
        std::memcpy(&out.pid, bytes + i * length, sizeof out.pid);
        std::memcpy(&out.bytes, bytes + i * length + 8, sizeof out.bytes);
        out.known = out.bytes != NVML_ABI_NOT_AVAILABLE_U64;
        if (!out.known) out.bytes = 0;
        return out;
    }
    // Behind the last byte that is not as it was.
    size_t end() const {
        size_t at = size;
        // Mostly nearly all of it is as it was: half by half, then byte by byte.
        while (at > LONGEST && bytes[at / 2] == FILLER &&
               !std::memcmp(bytes + at / 2, bytes + at / 2 + 1, at - at / 2 - 1))
            at /= 2;
        while (at > 0 && bytes[at - 1] == FILLER) at--;
        return at;
    }
};

// The driver says 0 of whom the asker cannot see.
bool is_plausible(const Entry &entry) {
    return (entry.pid == 0 || proc::is_pid(entry.pid)) && entry.bytes < MAX_BYTES;
}

bool all_plausible(const Answer &answer, size_t length) {
    for (unsigned i = 0; i < answer.count; i++) {
        if (!is_plausible(answer.entry(i, length))) return false;
    }
    return true;
}

bool lives(const Entry &entry) {
    return entry.pid != 0 && (kill(static_cast<pid_t>(entry.pid), 0) == 0 || errno == EPERM);
}

bool all_live(const Answer &answer, size_t length) {
    for (unsigned i = 0; i < answer.count; i++) {
        const Entry entry = answer.entry(i, length);
        if (!is_plausible(entry) || !lives(entry)) return false;
    }
    return true;
}

// Whoever is likely lives, and few are not.
bool most_live(const Answer &answer, size_t length) {
    unsigned unlikely = 0;
    for (unsigned i = 0; i < answer.count; i++) {
        const Entry entry = answer.entry(i, length);
        if (!is_plausible(entry)) unlikely++;
        else if (entry.pid != 0 && !lives(entry)) return false;
    }
    return unlikely * 2 < answer.count;
}

bool all_written(const Answer &answer, size_t length) {
    unsigned char untouched[NEEDED];
    std::memset(untouched, FILLER, sizeof untouched);
    for (unsigned i = 0; i < answer.count; i++) {
        const unsigned char *at = answer.bytes + i * length;
        if (!std::memcmp(at, untouched, 4) || !std::memcmp(at + 8, untouched, 8)) return false;
    }
    return true;
}

// The list ends in its last entry, of which a driver need not write more than what is read of each.
bool ends_so(const Answer &answer, size_t end, size_t length) {
    return end <= answer.count * length && end >= (answer.count - 1) * length + NEEDED && all_written(answer, length);
}

// 0: nobody can tell.
size_t length_of(const Answer &answer, size_t nominal) {
    const size_t end = answer.end();
    if (answer.count <= 1) return answer.count == 0 || end >= NEEDED ? nominal : 0;
    const bool as_named = ends_so(answer, end, nominal);
    if (as_named && all_plausible(answer, nominal)) return nominal;
    size_t found = 0;
    // Where it wrote behind its last entry, who lives says more than where it ends.
    const bool beyond = end > answer.count * LONGEST;
    for (const size_t length : LENGTHS) {
        const bool fits =
            beyond ? all_live(answer, length) : ends_so(answer, end, length) && all_plausible(answer, length);
        if (!fits) continue;
        if (found) return 0;
        found = length;
    }
    // Some of its entries are nobody's.
    if (!found && as_named && most_live(answer, nominal)) return nominal;
    return found;
}

} // namespace

bool Library::processes(Device device, List list, std::vector<Entry> &out) {
    static const char *const NAMES[3][3] = {
        {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2",
         "nvmlDeviceGetComputeRunningProcesses"},
        {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2",
         "nvmlDeviceGetGraphicsRunningProcesses"},
        {"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2",
         "nvmlDeviceGetMPSComputeRunningProcesses"},
    };
    static const size_t NOMINAL[3] = {24, 24, 16};
    static unsigned char buffer[MAX_PROCESSES * LONGEST];
    using Call = int (*)(Device, unsigned *, void *);
    out.clear();
    for (int form = 0; form < 3; form++) {
        const char *name = NAMES[static_cast<int>(list)][form];
        auto get = reinterpret_cast<Call>(find(name));
        if (!get) continue;
        unsigned count = MAX_PROCESSES;
        if (!may_call(device, name)) return false;
        std::memset(buffer, FILLER, sizeof buffer);
        const int code = get(device, &count, buffer);
        if (!record(device, name, code)) {
            // A library may have the name of what its driver has not.
            if (code != NVML_ABI_FUNCTION_NOT_FOUND) return false;
            functions_[name] = nullptr;
            continue;
        }
        if (count > MAX_PROCESSES) return answered(name, NVML_ABI_INSUFFICIENT_SIZE);
        const Answer answer{buffer, sizeof buffer, count};
        const size_t length = length_of(answer, NOMINAL[form]);
        if (!length) return answered(name, NVML_ABI_ARGUMENT_VERSION_MISMATCH);
        out.reserve(count);
        for (unsigned i = 0; i < count; i++) out.push_back(answer.entry(i, length));
        return true;
    }
    last_code_ = NVML_ABI_FUNCTION_NOT_FOUND;
    absent_.try_emplace(NAMES[static_cast<int>(list)][2], false);
    return false;
}

} // namespace nvml

// Process lists of NVML, whose entries have had 16, 24 and 32 bytes. The function's name does not determine the size:
// one name has had all three. The array is filled with a pattern first, so the answer shows where it ends; if that is
// not conclusive, the plausibility of entries decides, and else the list counts as failed: read with the wrong size, it
// would name wrong processes and sizes.
#include "nvml.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "../processes/procfs.h"

namespace nvml {

namespace {

constexpr unsigned char FILLER = 0xaa;
constexpr unsigned MAX_PROCESSES = 1024; // the kernel driver returns at most 950
constexpr size_t LENGTHS[] = {16, 24, 32};
constexpr size_t LONGEST = 32, NEEDED = 16; // bytes of an entry that are read
constexpr uint64_t MAX_BYTES = 1ull << 48;  // more than any GPU has

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
    // The end of the last byte that differs from the filler.
    size_t end() const {
        size_t at = size;
        // Most of the array is untouched: bisect, then byte by byte.
        while (at > LONGEST && bytes[at / 2] == FILLER &&
               !std::memcmp(bytes + at / 2, bytes + at / 2 + 1, at - at / 2 - 1))
            at /= 2;
        while (at > 0 && bytes[at - 1] == FILLER) at--;
        return at;
    }
};

// PID 0 is what the driver reports for a process that the caller cannot see.
bool is_plausible(const Entry &entry) {
    return (entry.pid == 0 || proc::is_pid(entry.pid)) && entry.bytes < MAX_BYTES;
}

bool lives(const Entry &entry) {
    return entry.pid != 0 && (kill(static_cast<pid_t>(entry.pid), 0) == 0 || errno == EPERM);
}

template <typename Test> bool all(const Answer &answer, size_t length, Test test) {
    for (unsigned i = 0; i < answer.count; i++) {
        if (!test(answer.entry(i, length))) return false;
    }
    return true;
}

bool is_plausible_and_lives(const Entry &entry) {
    return is_plausible(entry) && lives(entry);
}

// Every plausible entry names a running process, and most entries are plausible.
bool most_live(const Answer &answer, size_t length) {
    unsigned unlikely = 0;
    return all(answer, length,
               [&](const Entry &entry) {
                   if (!is_plausible(entry)) unlikely++;
                   return !is_plausible(entry) || entry.pid == 0 || lives(entry);
               }) &&
           unlikely * 2 < answer.count;
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

// The list ends inside its last entry, of which a driver need not write more than NEEDED bytes.
bool ends_so(const Answer &answer, size_t end, size_t length) {
    return end <= answer.count * length && end >= (answer.count - 1) * length + NEEDED && all_written(answer, length);
}

// Size of an entry; 0: cannot be determined.
size_t length_of(const Answer &answer, size_t nominal) {
    const size_t end = answer.end();
    if (answer.count <= 1) return answer.count == 0 || end >= NEEDED ? nominal : 0;
    const bool as_named = ends_so(answer, end, nominal);
    if (as_named && all(answer, nominal, is_plausible)) return nominal;
    size_t found = 0;
    // If the driver wrote beyond its last entry, running processes are better evidence than the end.
    const bool beyond = end > answer.count * LONGEST;
    for (const size_t length : LENGTHS) {
        const bool fits = beyond ? all(answer, length, is_plausible_and_lives)
                                 : ends_so(answer, end, length) && all(answer, length, is_plausible);
        if (!fits) continue;
        if (found) return 0;
        found = length;
    }
    // Some entries have no process.
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
    out.clear();
    for (int form = 0; form < 3; form++) {
        const char *name = NAMES[static_cast<int>(list)][form];
        auto get = reinterpret_cast<int (*)(Device, unsigned *, void *)>(find(name));
        if (!get) continue;
        unsigned count = MAX_PROCESSES;
        if (!may_call(device, name)) return false;
        std::memset(buffer, FILLER, sizeof buffer);
        const int code = get(device, &count, buffer);
        if (!record(device, name, code)) {
            // A library may export a function that its driver does not implement.
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
    absent_.try_emplace(NAMES[static_cast<int>(list)][2], false);
    return absent();
}

} // namespace nvml

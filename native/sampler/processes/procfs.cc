#include "procfs.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <string_view>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../common/clock.h"

namespace proc {

namespace {
uint32_t most_pid() {
    unsigned value = 0;
    FILE *file = std::fopen("/proc/sys/kernel/pid_max", "re");
    const bool reported = file && std::fscanf(file, "%u", &value) == 1 && value > 0 && value <= INT32_MAX;
    if (file) std::fclose(file);
    return reported ? value : uint32_t{INT32_MAX};
}
} // namespace

// The limit may be raised while this runs, so a larger PID is checked against the current limit.
bool is_pid(uint32_t number) {
    static uint32_t most = most_pid();
    if (number > most && number <= INT32_MAX) most = most_pid();
    return number > 0 && number <= most;
}

int open_pidfd(pid_t pid) {
    return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

Handle::~Handle() {
    if (descriptor_ >= 0) close(descriptor_);
}

bool Handle::lives() const {
    pollfd wait{};
    wait.fd = descriptor_;
    wait.events = POLLIN;
    return descriptor_ >= 0 && poll(&wait, 1, 0) == 0;
}

void Handle::move_up(int least) {
    if (descriptor_ < 0 || descriptor_ >= least) return;
    const int above = fcntl(descriptor_, F_DUPFD_CLOEXEC, least);
    close(descriptor_);
    descriptor_ = above;
}

namespace {

constexpr size_t MAX_CGROUP_BYTES = 64 << 10; // a path of 4 KiB in each of a dozen hierarchies
constexpr size_t MAX_STATUS_BYTES = 1 << 20;  // 65536 supplementary groups come before the line that is needed

bool read_file(const char *path, std::string &text, size_t most) {
    text.clear();
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    char piece[4096];
    ssize_t got;
    while (text.size() < most && (got = read(fd, piece, std::min(sizeof piece, most - text.size()))) > 0)
        text.append(piece, static_cast<size_t>(got));
    close(fd);
    return !text.empty();
}

// The kernel returns a file of one record in one read if the buffer is large enough.
bool read_record(const char *path, char *text, size_t room) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const ssize_t got = read(fd, text, room - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

struct Path {
    char text[48];
    Path(pid_t pid, const char *name) { std::snprintf(text, sizeof text, "/proc/%d/%s", static_cast<int>(pid), name); }
};

// The last number of "NSpid:", the PID in the innermost namespace; 0: missing.
pid_t last_namespace_pid(const std::string &text) {
    const size_t line = text.find("\nNSpid:");
    const size_t end = line == std::string::npos ? line : text.find('\n', line + 1);
    if (end == std::string::npos) return 0;
    const size_t tab = text.rfind('\t', end);
    if (tab == std::string::npos) return 0;
    const long pid = std::strtol(text.c_str() + tab, nullptr, 10);
    return pid > 0 ? static_cast<pid_t>(pid) : 0;
}

// fdinfo of the pidfd has it. Linux before 5.5 has it only in `status`, which a tenant can make 17 ms long to read.
pid_t namespace_pid(pid_t pid, const Handle &handle) {
    std::string text;
    pid_t found = 0;
    const std::string own = "/proc/self/fdinfo/" + std::to_string(handle.descriptor());
    if (handle && read_file(own.c_str(), text, MAX_STATUS_BYTES)) found = last_namespace_pid(text);
    if (found == 0 && read_file(Path(pid, "status").text, text, MAX_STATUS_BYTES)) found = last_namespace_pid(text);
    return found;
}

} // namespace

uint64_t now_ticks() {
    static const uint64_t ns_per_tick = 1000000000u / static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
    return clock_ns(CLOCK_BOOTTIME) / ns_per_tick;
}

uint64_t micros(uint64_t ticks) {
    static const uint64_t us_per_tick = 1000000u / static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
    return ticks * us_per_tick;
}

bool read_stat(pid_t pid, Process &out) {
    char text[1024];
    if (!read_record(Path(pid, "stat").text, text, sizeof text)) return false;
    // "pid (command) state ppid ...": the command may contain brackets and spaces, so it ends at the last bracket.
    const char *open_bracket = std::strchr(text, '('), *close_bracket = std::strrchr(text, ')');
    if (!open_bracket || !close_bracket || close_bracket < open_bracket) return false;
    out.command.assign(open_bracket + 1, close_bracket);
    int parent = 0;
    char state = '?';
    if (std::sscanf(close_bracket + 1, " %c %d", &state, &parent) != 2) return false;
    out.parent = parent;
    const char *field = close_bracket + 2;
    unsigned long long threads = 0;
    for (int number = 3; number < 22 && field; number++) {
        if (number == 20) threads = std::strtoull(field, nullptr, 10);
        field = std::strchr(field, ' ');
        if (field) field++;
    }
    if (!field) return false;
    const bool first_ended = state == 'Z' || state == 'X';
    out.leaderless = first_ended && threads > 1;
    out.ended = first_ended && threads <= 1;
    out.start_ticks = std::strtoull(field, nullptr, 10);
    return true;
}

namespace {
// A thread that has not ended; 0: none found.
pid_t living_thread(pid_t pid) {
    DIR *folder = opendir(Path(pid, "task").text);
    pid_t found = 0;
    for (dirent *entry; folder && !found && (entry = readdir(folder));) {
        const pid_t thread = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
        Process of;
        if (thread > 0 && thread != pid && read_stat(thread, of) && !of.ended && !of.leaderless) found = thread;
    }
    if (folder) closedir(folder);
    return found;
}

bool read_cgroup(pid_t pid, const Process &of, std::string &text) {
    const pid_t thread = of.leaderless ? living_thread(pid) : 0;
    return read_file(Path(thread ? thread : pid, "cgroup").text, text, MAX_CGROUP_BYTES);
}
} // namespace

bool read_process(pid_t pid, Process &out, Handle &handle) {
    if (!handle) handle = Handle(pid);
    if (!read_stat(pid, out)) return false;
    read_cgroup(pid, out, out.cgroup);
    if (out.namespace_pid == 0) out.namespace_pid = namespace_pid(pid, handle);
    struct stat info;
    if (out.pid_namespace == 0 && stat(Path(pid, "ns/pid").text, &info) == 0) out.pid_namespace = info.st_ino;
    if (handle.lives()) return true; // so everything was read from the same process
    Process again;
    return read_stat(pid, again) && again.start_ticks == out.start_ticks;
}

bool read_changes(pid_t pid, Process &known, const Handle &handle, bool &changed) {
    char comm[128], cgroup[4096];
    if (!read_record(Path(pid, "comm").text, comm, sizeof comm)) return false;
    if (const size_t length = std::strlen(comm); length > 0 && comm[length - 1] == '\n') comm[length - 1] = '\0';
    // Most files are short, and then this is all of it.
    const Path path(pid, "cgroup");
    std::string longer;
    if (!read_record(path.text, cgroup, sizeof cgroup)) return false;
    if (std::strlen(cgroup) == sizeof cgroup - 1 && !read_file(path.text, longer, MAX_CGROUP_BYTES)) return false;
    Process now_so;
    if (known.cgroup != (longer.empty() ? cgroup : longer) && read_stat(pid, now_so) && now_so.leaderless &&
        !read_cgroup(pid, now_so, longer))
        return false;
    if (!handle.lives()) return false;
    const std::string_view now = longer.empty() ? std::string_view(cgroup) : longer;
    changed = known.command != comm || known.cgroup != now;
    if (!changed) return true;
    known.command = comm;
    known.cgroup = now;
    return true;
}

bool read_process(pid_t pid, Process &out) {
    Handle handle;
    return read_process(pid, out, handle);
}

std::vector<pid_t> ancestors(pid_t pid, size_t most, Parents &parents) {
    std::vector<pid_t> chain;
    while (chain.size() < most) {
        const auto [known, is_new] = parents.try_emplace(pid, 0);
        Process process;
        if (is_new && read_stat(pid, process)) known->second = process.parent;
        pid = known->second;
        if (pid <= 1) break;
        chain.push_back(pid);
    }
    return chain;
}

} // namespace proc

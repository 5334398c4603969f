#include "proc.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace proc {

namespace {

bool read_file(const char *path, char *text, size_t size, size_t &length) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    length = 0;
    while (length < size - 1) {
        const ssize_t got = read(fd, text + length, size - 1 - length);
        if (got <= 0) break;
        length += static_cast<size_t>(got);
    }
    close(fd);
    text[length] = 0;
    return length > 0;
}

// The last number of "NSpid:", the pid in the innermost namespace.
pid_t last_namespace_pid(const char *status) {
    const char *line = std::strstr(status, "\nNSpid:");
    if (!line) return 0;
    const char *end = std::strchr(line + 1, '\n');
    const char *last = line + 7;
    for (const char *at = last; at && (!end || at < end); at = std::strchr(at + 1, '\t')) last = at;
    return static_cast<pid_t>(std::strtol(last, nullptr, 10));
}

} // namespace

bool read_stat(pid_t pid, Process &out) {
    char path[64], text[1024];
    size_t length;
    std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
    if (!read_file(path, text, sizeof text, length)) return false;
    // "pid (command) state ppid ...": the command may hold brackets and spaces, so it ends at the last bracket.
    const char *open_bracket = std::strchr(text, '('), *close_bracket = std::strrchr(text, ')');
    if (!open_bracket || !close_bracket || close_bracket < open_bracket) return false;
    out.command.assign(open_bracket + 1, close_bracket);
    int parent = 0;
    if (std::sscanf(close_bracket + 1, " %c %d", &out.state, &parent) != 2) return false;
    out.parent = parent;
    const char *field = close_bracket + 2;
    for (int number = 3; number < 22 && field; number++) {
        field = std::strchr(field, ' ');
        if (field) field++;
    }
    if (!field) return false;
    out.start_ticks = std::strtoull(field, nullptr, 10);
    return true;
}

bool read_process(pid_t pid, Process &out) {
    char path[64], text[4096];
    size_t length;
    if (!read_stat(pid, out)) return false;
    std::snprintf(path, sizeof path, "/proc/%d/cgroup", static_cast<int>(pid));
    out.cgroup.clear();
    if (read_file(path, text, sizeof text, length)) out.cgroup.assign(text, length);
    std::snprintf(path, sizeof path, "/proc/%d/status", static_cast<int>(pid));
    if (read_file(path, text, sizeof text, length)) out.namespace_pid = last_namespace_pid(text);
    struct stat info;
    std::snprintf(path, sizeof path, "/proc/%d/ns/pid", static_cast<int>(pid));
    if (stat(path, &info) == 0) out.pid_namespace = info.st_ino;
    Process again;
    return read_stat(pid, again) && again.start_ticks == out.start_ticks;
}

std::vector<pid_t> ancestors(pid_t pid, size_t most) {
    std::vector<pid_t> chain;
    Process process;
    while (chain.size() < most && read_stat(pid, process) && process.parent > 1) {
        pid = process.parent;
        chain.push_back(pid);
    }
    return chain;
}

} // namespace proc

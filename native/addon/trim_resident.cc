// What of the program's own file is mapped, and needed no more: what a program runs and reads at its start is more than
// half of what node takes, and stays resident although nobody looks at it again.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "addon.h"

namespace {

struct Mapping {
    uintptr_t begin = 0, end = 0;
    bool is_ours = false; // of the program's file, private, not to be written to
    bool is_changed = false;
    uint64_t resident_kb = 0;
};

std::string program() {
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    return length > 0 && static_cast<size_t>(length) < sizeof path ? std::string(path, static_cast<size_t>(length))
                                                                   : "";
}

// The first line of a mapping: BEGIN-END rwxp OFFSET DEVICE INODE PATH. False: another line.
bool read_head(const char *line, const std::string &path, Mapping &mapping) {
    unsigned long begin, end;
    char rights[5] = "";
    int length = 0;
    if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %n", &begin, &end, rights, &length) != 3 || length == 0) return false;
    mapping = {begin, end, false, false, 0};
    const size_t path_length = strcspn(line + length, "\n");
    mapping.is_ours = rights[1] != 'w' && rights[3] == 'p' && path == std::string(line + length, path_length);
    return true;
}

} // namespace

// letGoOfProgram(): bytes that were resident of the program's file and no longer are. They are the file's, as they
// were, and come back from the page cache when they are looked at again; a mapping of which any page was changed is
// left alone.
static Napi::Value LetGoOfProgram(const Napi::CallbackInfo &info) {
    const std::string path = program();
    const std::unique_ptr<FILE, int (*)(FILE *)> maps(path.empty() ? nullptr : fopen("/proc/self/smaps", "re"), fclose);
    uint64_t let_go_kb = 0;
    Mapping mapping;
    char line[8192];
    while (maps && fgets(line, sizeof line, maps.get())) {
        if (read_head(line, path, mapping) || !mapping.is_ours) continue;
        const uint64_t kb = strtoull(line + strcspn(line, " "), nullptr, 10);
        if (!strncmp(line, "Rss:", 4)) mapping.resident_kb = kb;
        // What the loader wrote before it took the right to write away, also where the kernel has swapped it out.
        if (!strncmp(line, "Anonymous:", 10) || !strncmp(line, "Swap:", 5)) mapping.is_changed |= kb > 0;
        if (strncmp(line, "VmFlags:", 8) != 0) continue; // the last one
        const size_t bytes = mapping.end - mapping.begin;
        if (!mapping.is_changed && madvise(reinterpret_cast<void *>(mapping.begin), bytes, MADV_DONTNEED) == 0)
            let_go_kb += mapping.resident_kb;
    }
    return Napi::Number::New(info.Env(), static_cast<double>(let_go_kb * 1024));
}

void InitResident(Napi::Env env, Napi::Object exports) {
    exports.Set("letGoOfProgram", Napi::Function::New(env, LetGoOfProgram));
}

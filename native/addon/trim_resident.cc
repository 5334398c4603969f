// Releases resident pages of the program's own file: what Node executes and reads only at its start is more than half
// of its resident memory.
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
    bool is_own = false; // of the program's file, private, not writable
    bool is_changed = false;
    uint64_t resident_kb = 0;
};

std::string program() {
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    return length > 0 && static_cast<size_t>(length) < sizeof path ? std::string(path, static_cast<size_t>(length))
                                                                   : "";
}

// Parses the first line of a mapping: BEGIN-END rwxp OFFSET DEVICE INODE PATH. False: another line.
bool read_head(const char *line, const std::string &path, Mapping &mapping) {
    unsigned long begin, end;
    char rights[5] = "";
    int length = 0;
    if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %n", &begin, &end, rights, &length) != 3 || length == 0) return false;
    mapping = {begin, end, false, false, 0};
    const size_t path_length = strcspn(line + length, "\n");
    mapping.is_own = rights[1] != 'w' && rights[3] == 'p' && path == std::string(line + length, path_length);
    return true;
}

} // namespace

// trimProgramMemory(): releases resident pages of the program's file and returns their bytes. Their contents are
// unchanged and come back from the page cache on the next access; a mapping with a changed page is left alone.
static Napi::Value TrimProgramMemory(const Napi::CallbackInfo &info) {
    const std::string path = program();
    const std::unique_ptr<FILE, int (*)(FILE *)> maps(path.empty() ? nullptr : fopen("/proc/self/smaps", "re"), fclose);
    uint64_t released_kb = 0;
    Mapping mapping;
    char line[8192];
    while (maps && fgets(line, sizeof line, maps.get())) {
        if (read_head(line, path, mapping) || !mapping.is_own) continue;
        const uint64_t kb = strtoull(line + strcspn(line, " "), nullptr, 10);
        if (!strncmp(line, "Rss:", 4)) mapping.resident_kb = kb;
        // Pages that the loader wrote before it made them read-only, even if the kernel has swapped them out.
        if (!strncmp(line, "Anonymous:", 10) || !strncmp(line, "Swap:", 5)) mapping.is_changed |= kb > 0;
        if (strncmp(line, "VmFlags:", 8) != 0) continue; // last line of a mapping
        const size_t bytes = mapping.end - mapping.begin;
        if (!mapping.is_changed && madvise(reinterpret_cast<void *>(mapping.begin), bytes, MADV_DONTNEED) == 0)
            released_kb += mapping.resident_kb;
    }
    return Napi::Number::New(info.Env(), static_cast<double>(released_kb * 1024));
}

void InitResident(Napi::Env env, Napi::Object exports) {
    exports.Set("trimProgramMemory", Napi::Function::New(env, TrimProgramMemory));
}

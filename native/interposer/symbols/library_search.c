/* Searches for a library file: in the folders that the loader searches for the caller and for the program (library
 * path, RPATH, RUNPATH), in the loader's cache, in its default folders, then where vendors install drivers. The
 * caller decides whether a file is the right one. Nothing is read from the environment, as the loader reports its
 * folders. */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../libc.h"
#include "library_search.h"

#if defined(__x86_64__)
#define MULTIARCH "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define MULTIARCH "aarch64-linux-gnu"
#else
#error "no folder names for this architecture"
#endif

/* The loader's default folders, searched after its cache. */
static const char *const DEFAULT_FOLDERS[] = {
    "/lib/" MULTIARCH, "/usr/lib/" MULTIARCH, "/lib64", "/usr/lib64", "/lib", "/usr/lib",
};
#define DEFAULT_COUNT (sizeof DEFAULT_FOLDERS / sizeof *DEFAULT_FOLDERS)

/* Where container runtimes, distributions and WSL install the driver without configuring the loader. */
static const char *const VENDOR_FOLDERS[] = {
    "/usr/local/nvidia/lib64",       "/usr/local/nvidia/lib", "/usr/lib/" MULTIARCH "/nvidia/current",
    "/usr/lib/" MULTIARCH "/nvidia", "/usr/lib64/nvidia",     "/usr/lib/nvidia",
    "/run/opengl-driver/lib",        "/usr/lib/wsl/lib",
};

struct search {
    const char *name;
    shim_try_file *try_file;
};

static void *try_folder(const struct search *search, const char *folder) {
    char path[PATH_MAX];
    if (!folder || !*folder || !cot_join(path, sizeof path, folder, "/")) return NULL;
    size_t length = strlen(path);
    return cot_join(path + length, sizeof path - length, search->name, "") ? search->try_file(path) : NULL;
}

static int default_folder(const char *folder) {
    for (size_t i = 0; i < DEFAULT_COUNT; i++) {
        if (!strcmp(folder, DEFAULT_FOLDERS[i])) return (int)i;
    }
    return -1;
}

/* How many folders come before the loader's default ones, which are at the end, each once. */
static unsigned before_defaults(const Dl_serinfo *paths) {
    bool met[DEFAULT_COUNT] = {false};
    unsigned count = paths->dls_cnt;
    for (; count > 0; count--) {
        int index = default_folder(paths->dls_serpath[count - 1].dls_name);
        if (index < 0 || met[index]) break;
        met[index] = true;
    }
    return count;
}

/* The folders that the loader would search for an object, without its default ones. */
static void *try_object(const struct search *search, void *object) {
    Dl_serinfo size;
    void *handle = NULL;
    if (!object || cot_dlinfo(object, RTLD_DI_SERINFOSIZE, &size) != 0 || size.dls_size > 1 << 20) return NULL;
    /* An object linked with -z nodefaultlib may need less than the structure. */
    Dl_serinfo *paths = malloc(size.dls_size < sizeof size ? sizeof size : size.dls_size);
    if (!paths) return NULL;
    *paths = size;
    if (cot_dlinfo(object, RTLD_DI_SERINFOSIZE, paths) == 0 && cot_dlinfo(object, RTLD_DI_SERINFO, paths) == 0) {
        unsigned count = before_defaults(paths);
        for (unsigned i = 0; i < count && !handle; i++) handle = try_folder(search, paths->dls_serpath[i].dls_name);
    }
    free(paths);
    return handle;
}

static void *try_caller(const struct search *search, const void *caller) {
    Dl_info info;
    void *object = NULL;
    if (!caller || !dladdr1 || !dladdr1(caller, &info, &object, RTLD_DL_LINKMAP)) return NULL;
    return try_object(search, object);
}

/* The format of glibc's cache: a magic text, entry count and string size, then entries of flags, key offset, value
 * offset, OS version and hardware capabilities. Offsets count from the start of this header. */
struct cache_header {
    char magic[17], version[3];
    uint32_t count, strings;
    uint8_t flags, padding[3];
    uint32_t extensions, unused[3];
};
struct cache_entry {
    int32_t flags;
    uint32_t key, value, os_version;
    uint64_t capabilities;
};

static void *search_cache(const struct search *search, const char *text, size_t size) {
    static const char MAGIC[] = "glibc-ld.so.cache1.1";
    const char *at = size >= sizeof(struct cache_header) ? memmem(text, size, MAGIC, sizeof MAGIC - 1) : NULL;
    if (!at || (size_t)(text + size - at) < sizeof(struct cache_header)) return NULL;
    struct cache_header header;
    memcpy(&header, at, sizeof header);
    size_t left = (size_t)(text + size - at);
    if (header.count > (left - sizeof header) / sizeof(struct cache_entry)) return NULL;
    for (uint32_t i = 0; i < header.count; i++) {
        struct cache_entry entry;
        memcpy(&entry, at + sizeof header + i * sizeof entry, sizeof entry);
        if (entry.key >= left || entry.value >= left) continue;
        size_t most = left - entry.value, length = strnlen(at + entry.value, most);
        if (left - entry.key <= strlen(search->name) || strcmp(at + entry.key, search->name) != 0 || length == most ||
            length >= PATH_MAX)
            continue;
        void *handle = search->try_file(at + entry.value);
        if (handle) return handle;
    }
    return NULL;
}

static void *try_cache(const struct search *search) {
    int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
    struct stat info;
    void *handle = NULL;
    if (fd < 0) return NULL;
    if (cot_fstat(fd, &info) == 0 && info.st_size > 0) {
        char *text = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (text != MAP_FAILED) {
            handle = search_cache(search, text, (size_t)info.st_size);
            munmap(text, (size_t)info.st_size);
        }
    }
    close(fd);
    return handle;
}

/* /usr/local/cuda*, the newest version first: CUDA's forward-compatibility packages. They come last, as they serve
 * a kernel driver older than themselves. */
static void *try_compatibility(const struct search *search) {
    char last[NAME_MAX + 1] = "", best[NAME_MAX + 1], path[PATH_MAX];
    void *handle = try_folder(search, "/usr/local/cuda/compat");
    DIR *folder = handle ? NULL : opendir("/usr/local");
    while (folder && !handle) {
        best[0] = 0;
        rewinddir(folder);
        for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
            if (strncmp(entry->d_name, "cuda-", 5) != 0 || strverscmp(entry->d_name, best) <= 0) continue;
            if (!*last || strverscmp(entry->d_name, last) < 0) snprintf(best, sizeof best, "%s", entry->d_name);
        }
        if (!best[0]) break;
        memcpy(last, best, sizeof last);
        if (snprintf(path, sizeof path, "/usr/local/%s/compat", best) < (int)sizeof path)
            handle = try_folder(search, path);
    }
    if (folder) closedir(folder);
    return handle;
}

void *shim_search(const char *name, const void *caller, shim_try_file *try_file) {
    struct search search = {.name = name, .try_file = try_file};
    void *handle = try_caller(&search, caller);
    if (!handle) handle = try_object(&search, cot_dlopen(NULL, RTLD_LAZY));
    if (!handle) handle = try_cache(&search);
    for (size_t i = 0; !handle && i < DEFAULT_COUNT; i++) handle = try_folder(&search, DEFAULT_FOLDERS[i]);
    for (size_t i = 0; !handle && i < sizeof VENDOR_FOLDERS / sizeof *VENDOR_FOLDERS; i++)
        handle = try_folder(&search, VENDOR_FOLDERS[i]);
    return handle ? handle : try_compatibility(&search);
}

/* Finding the library that we stand in for, as the loader would have found it had we not been there: the folders that
 * the loader itself searches for the program (library path, RUNPATH), its cache, its default folders, then places where
 * vendors put drivers. Ourselves are rejected by identity: device and inode, and our marker symbol. */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim.h"

static const char *const VENDOR_FOLDERS[] = {
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64/nvidia",
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
};

static struct stat own_file;
static _Atomic(void *) known; /* the handle; (void *)-1: looked for in vain */
static _Atomic uintptr_t code_first, code_last, library_base;

static bool own_path(char *path, size_t size) {
    Dl_info info;
    if (!dladdr((const void *)&shim_entry_count, &info) || !info.dli_fname) return false;
    return (size_t)snprintf(path, size, "%s", info.dli_fname) < size;
}

bool shim_own_folder(char *path, size_t size) {
    if (!own_path(path, size)) return false;
    char *slash = strrchr(path, '/');
    if (!slash) return (size_t)snprintf(path, size, ".") < size;
    *slash = 0;
    return true;
}

static int remember_code(struct dl_phdr_info *info, size_t size, void *data) {
    uintptr_t first = UINTPTR_MAX, last = 0;
    if (info->dlpi_addr != *(ElfW(Addr) *)data) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        uintptr_t start = info->dlpi_addr + part->p_vaddr, end = start + part->p_memsz;
        if (start < first) first = start;
        if (end > last) last = end;
    }
    atomic_store(&library_base, info->dlpi_addr);
    atomic_store(&code_first, first);
    atomic_store(&code_last, last);
    return 1;
}

bool shim_is_real_object(ElfW(Addr) base) {
    return base && base == atomic_load_explicit(&library_base, memory_order_relaxed);
}

bool shim_is_real_code(const void *address) {
    uintptr_t at = (uintptr_t)address;
    return at >= atomic_load_explicit(&code_first, memory_order_relaxed) &&
           at < atomic_load_explicit(&code_last, memory_order_relaxed);
}

static void *try_file(const char *path) {
    struct stat info;
    if (cot_stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return NULL;
    if (info.st_dev == own_file.st_dev && info.st_ino == own_file.st_ino) return NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return NULL;
    if (libc_dlsym(handle, shim_marker)) { /* another copy of us */
        dlclose(handle);
        return NULL;
    }
    struct link_map *map = handle;
    ElfW(Addr) base = map->l_addr;
    dl_iterate_phdr(remember_code, &base);
    return handle;
}

static void *try_folder(const char *folder) {
    char path[PATH_MAX];
    if (!folder || !*folder || snprintf(path, sizeof path, "%s/%s", folder, shim_soname) >= (int)sizeof path)
        return NULL;
    return try_file(path);
}

/* The folders that the loader would search for the program itself; default ones only in the second round. */
static void *try_loader_paths(bool defaults) {
    void *program = dlopen(NULL, RTLD_LAZY), *handle = NULL;
    Dl_serinfo size;
    if (!program || dlinfo(program, RTLD_DI_SERINFOSIZE, &size) != 0 || size.dls_size > 1 << 20) return NULL;
    Dl_serinfo *paths = malloc(size.dls_size);
    if (!paths) return NULL;
    *paths = size;
    if (dlinfo(program, RTLD_DI_SERINFOSIZE, paths) == 0 && dlinfo(program, RTLD_DI_SERINFO, paths) == 0) {
        for (unsigned i = 0; i < paths->dls_cnt && !handle; i++) {
            const char *folder = paths->dls_serpath[i].dls_name;
            bool is_default = !strncmp(folder, "/lib", 4) || !strncmp(folder, "/usr/lib", 8);
            if (is_default == defaults) handle = try_folder(folder);
        }
    }
    free(paths);
    return handle;
}

/* glibc's cache, in its own format: after a magic text, entry count and string size, then entries of flags, key offset,
 * value offset, os version and hardware capabilities; offsets count from the start of that header. */
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

static void *search_cache(const char *text, size_t size) {
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
        if (strncmp(at + entry.key, shim_soname, left - entry.key) != 0 ||
            strnlen(at + entry.value, left - entry.value) >= PATH_MAX)
            continue;
        void *handle = try_file(at + entry.value);
        if (handle) return handle;
    }
    return NULL;
}

static void *try_cache(void) {
    int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
    struct stat info;
    void *handle = NULL;
    if (fd < 0) return NULL;
    if (cot_fstat(fd, &info) == 0 && info.st_size > 0) {
        char *text = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (text != MAP_FAILED) {
            handle = search_cache(text, (size_t)info.st_size);
            munmap(text, (size_t)info.st_size);
        }
    }
    close(fd);
    return handle;
}

static void *find_library(void) {
    char path[PATH_MAX];
    if (!own_path(path, sizeof path) || cot_stat(path, &own_file) != 0) memset(&own_file, 0, sizeof own_file);
    void *handle = try_loader_paths(false);
    if (!handle) handle = try_cache();
    if (!handle) handle = try_loader_paths(true);
    for (size_t i = 0; !handle && i < sizeof VENDOR_FOLDERS / sizeof *VENDOR_FOLDERS; i++)
        handle = try_folder(VENDOR_FOLDERS[i]);
    return handle;
}

void *shim_real_library(void) {
    void *handle = atomic_load_explicit(&known, memory_order_acquire);
    if (!handle) {
        void *found = find_library();
        /* Racing threads open the same file and get the same handle; one reference more does no harm. */
        handle = found ? found : (void *)-1;
        atomic_store_explicit(&known, handle, memory_order_release);
    }
    return handle == (void *)-1 ? NULL : handle;
}

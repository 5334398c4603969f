/* The real library that this object stands in for: found once, as the loader would have found it without this
 * object, or at the path that was written into an object bind-mounted over it. This object itself is recognized by
 * the loader's handle for its file, another copy of it by the marker symbol. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include "library_search.h"
#include "symbols.h"

static _Atomic(void *) known; /* the handle; (void *)-1: not found */
static _Atomic bool defers;
static _Atomic uintptr_t code_first, code_last, library_base;

/* By this object's handle, which is found once: dladdr searches all exported names each time. */
static bool own_path(char *path, size_t size) {
    const struct link_map *own = shim_own_handle();
    Dl_info info;
    if (own && *own->l_name) return cot_join(path, size, own->l_name, "");
    if (!cot_dladdr((const void *)&shim_entry_count, &info) || !info.dli_fname) return false;
    return cot_join(path, size, info.dli_fname, "");
}

bool shim_own_folder(char *path, size_t size) {
    if (shim_form.files[0]) return cot_join(path, size, shim_form.files, "");
    if (!own_path(path, size)) return false;
    char *slash = strrchr(path, '/');
    if (!slash) return cot_join(path, size, ".", "");
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

static void *open_unless_self(const char *path) {
    struct stat info;
    if (cot_stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return NULL;
    void *handle = cot_dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle || handle != shim_own_handle()) return handle;
    cot_dlclose(handle);
    return NULL;
}

/* A copy made for this host (src/agent/containers/mounted-object.ts) knows the path of the real library. */
static void *try_file(const char *path) {
    void *handle = open_unless_self(path);
    const struct shim_form *copy = handle ? libc_dlsym(handle, shim_marker) : NULL;
    if (copy) {
        void *behind = copy->library[0] ? open_unless_self(copy->library) : NULL;
        cot_dlclose(handle);
        handle = behind;
        if (handle && libc_dlsym(handle, shim_marker)) {
            cot_dlclose(handle);
            handle = NULL;
        }
    }
    if (!handle) return NULL;
    struct link_map *map = handle;
    ElfW(Addr) base = map->l_addr;
    dl_iterate_phdr(remember_code, &base);
    return handle;
}

/* Finds another copy of this object that was loaded earlier into the same namespace. */
static int find_older_copy(struct dl_phdr_info *object, size_t size, void *data) {
    const void **older = data;
    if (shim_object_contains(object, &shim_entry_count)) return 1;
    for (int i = 0; i < object->dlpi_phnum && !*older; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_DYNAMIC)
            *older =
                shim_find_in_object(object->dlpi_addr, (const void *)(object->dlpi_addr + part->p_vaddr), shim_marker);
    }
    return *older != NULL;
}

/* Of two copies the older one does the accounting and this one calls it, so that nothing is charged twice. It is
 * opened by its path, as dlsym works on opened objects only and a preloaded one was not opened. */
static void *open_older_copy(void) {
    const void *older = NULL;
    Dl_info info;
    dl_iterate_phdr(find_older_copy, &older);
    return older && cot_dladdr(older, &info) ? cot_dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
}

/* Defined by layout.ld, which not every object with this file is linked with. */
#define GIVEN __attribute__((weak, visibility("hidden")))
extern char shim_start_begin[] GIVEN, shim_start_end[] GIVEN;

static void populate_tables(void) {
    const int populate_write =
        23; /* MADV_POPULATE_WRITE, from Linux 5.14 on; without it pages are populated one by one */
    int error = errno;
    uintptr_t begin = (uintptr_t)shim_start_begin, end = (uintptr_t)shim_start_end;
    if (end) syscall(SYS_madvise, begin, end - begin, populate_write);
    errno = error;
}

static void *find_library(const void *caller) {
    populate_tables();
    void *handle = open_older_copy();
    if (handle) {
        atomic_store(&defers, true);
        return handle;
    }
    if (shim_form.library[0]) handle = try_file(shim_form.library);
    return handle ? handle : shim_search(shim_soname, caller, try_file);
}

void *shim_real_library_for(const void *caller) {
    void *handle = atomic_load_explicit(&known, memory_order_acquire);
    if (!handle) {
        void *found = find_library(caller);
        /* Threads that do this at once get the same handle; one more reference to it is harmless. */
        handle = found ? found : (void *)-1;
        atomic_store_explicit(&known, handle, memory_order_release);
    }
    return handle == (void *)-1 ? NULL : handle;
}

void *shim_real_library(void) {
    return shim_real_library_for(NULL);
}

bool shim_defers_to_older_copy(void) {
    shim_real_library();
    return atomic_load_explicit(&defers, memory_order_relaxed);
}

int shim_missing(void) {
    return shim_real_library() ? shim_no_function : shim_no_library;
}

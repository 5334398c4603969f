/* libc's own dlsym and dlvsym, although this object exports both names: read from libc's symbol table, which needs
 * no version string, no private symbol, no memory and no constructor, and cannot find this object's. Calls nothing
 * of libc but dladdr1 (musl: dl_iterate_phdr), as a sanitizer's runtime looks up by dlsym the very functions that
 * it replaces (strcmp and dl_iterate_phdr among them). */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>

#include "symbols.h"

typedef void *(*dlsym_function)(void *, const char *);
typedef void *(*dlvsym_function)(void *, const char *, const char *);

struct found {
    void *dlsym, *dlvsym;
    struct link_map *object; /* libc itself; unknown with musl */
};

SHIM_EARLY static bool begins(const char *text, const char *start) {
    for (; *start; text++, start++) {
        if (*text != *start) return false;
    }
    return true;
}

/* dlsym is in libc.so.6 from glibc 2.34 on, in libdl.so.2 before, and in the loader with musl. */
SHIM_EARLY static bool is_libc(const char *path) {
    const char *name = path;
    if (!path) return false;
    for (; *path; path++) {
        if (*path == '/') name = path + 1;
    }
    return begins(name, "libc.so") || begins(name, "libc-") || begins(name, "libdl.so") || begins(name, "libdl-") ||
           begins(name, "libc.musl") || begins(name, "ld-musl");
}

/* One loaded object, where libc has no dladdr1. */
static int look_into(struct dl_phdr_info *info, size_t size, void *data) {
    struct found *found = data;
    for (int i = 0; i < info->dlpi_phnum && is_libc(info->dlpi_name); i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_DYNAMIC) continue;
        found->dlsym =
            shim_find_in_object(info->dlpi_addr, (const ElfW(Dyn) *)(info->dlpi_addr + part->p_vaddr), "dlsym");
    }
    return found->dlsym != NULL;
}

static _Atomic(void *) known_dlsym, known_dlvsym;
static _Atomic(struct link_map *) known_object;

/* Searches the namespace that this object was loaded into: a copy in another one has a libc of its own. Threads
 * that do this at once find the same. */
SHIM_EARLY static struct found found_symbols(void) {
    struct found found = {atomic_load_explicit(&known_dlsym, memory_order_acquire),
                          atomic_load_explicit(&known_dlvsym, memory_order_acquire),
                          atomic_load_explicit(&known_object, memory_order_acquire)};
    if (found.dlsym) return found;
    struct link_map *map = NULL;
    if (!dladdr1) dl_iterate_phdr(look_into, &found);
    else if (!(map = shim_own_handle())) return found;
    while (map && map->l_prev) map = map->l_prev;
    for (; map && !(found.dlsym && found.dlvsym); map = map->l_next) {
        if (!is_libc(map->l_name)) continue;
        found.object = map;
        if (!found.dlsym) found.dlsym = shim_find_in_object(map->l_addr, map->l_ld, "dlsym");
        if (!found.dlvsym) found.dlvsym = shim_find_in_object(map->l_addr, map->l_ld, "dlvsym");
    }
    atomic_store_explicit(&known_object, found.object, memory_order_release);
    atomic_store_explicit(&known_dlvsym, found.dlvsym, memory_order_release);
    atomic_store_explicit(&known_dlsym, found.dlsym, memory_order_release);
    return found;
}

SHIM_EARLY static __attribute__((noinline)) void *found_dlsym(void) {
    return found_symbols().dlsym;
}

SHIM_EARLY void *libc_dlsym_address(void) {
    void *known = atomic_load_explicit(&known_dlsym, memory_order_acquire);
    return known ? known : found_dlsym();
}

SHIM_EARLY void *libc_dlsym(void *handle, const char *name) {
    dlsym_function function = (dlsym_function)libc_dlsym_address();
    return function ? function(handle, name) : NULL;
}

SHIM_EARLY void *libc_dlvsym(void *handle, const char *name, const char *version) {
    dlvsym_function function = (dlvsym_function)found_symbols().dlvsym;
    return function ? function(handle, name, version) : NULL;
}

void *libc_dlsym_fail(const char *name) {
    const struct link_map *libc = found_symbols().object;
    void *handle = libc ? cot_dlopen(libc->l_name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    return handle ? libc_dlsym(handle, name) : NULL;
}

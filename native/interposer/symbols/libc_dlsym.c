/* libc's dlsym and dlvsym, although this object exports both names: found in libc's own symbol table, which needs no
 * version string, no private symbol, no memory and no constructor, and cannot find ourselves. Calls nothing of libc's
 * but dladdr1 (musl: dl_iterate_phdr): a sanitizer's runtime looks up, by dlsym, the very functions that it stands in
 * for (strcmp and dl_iterate_phdr among them). */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>

#include "symbols.h"

typedef void *(*dlsym_function)(void *, const char *);
typedef void *(*dlvsym_function)(void *, const char *, const char *);

struct found {
    void *dlsym, *dlvsym;
    struct link_map *object; /* libc itself; musl's is not known */
};

SHIM_EARLY static bool begins(const char *text, const char *start) {
    for (; *start; text++, start++) {
        if (*text != *start) return false;
    }
    return true;
}

SHIM_EARLY static bool same(const char *one, const char *other) {
    for (; *one && *one == *other; one++, other++) {
    }
    return *one == *other;
}

SHIM_EARLY static uint32_t gnu_hash(const char *name) {
    uint32_t hash = 5381;
    for (; *name; name++) hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* One look-up in an object's GNU hash table; only definitions count. */
SHIM_EARLY static void *table_lookup(ElfW(Addr) base, const ElfW(Sym) * symbols, const char *strings,
                                     const uint32_t *table, const char *name) {
    uint32_t bucket_count = table[0], first = table[1], bloom_words = table[2];
    const uint32_t *buckets = table + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
    const uint32_t *chain = buckets + bucket_count;
    uint32_t hash = gnu_hash(name);
    if (bucket_count == 0) return NULL;
    for (uint32_t index = buckets[hash % bucket_count]; index >= first && index != 0; index++) {
        uint32_t entry = chain[index - first];
        const ElfW(Sym) *symbol = &symbols[index];
        if ((entry | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 &&
            same(strings + symbol->st_name, name)) {
            return (void *)(base + symbol->st_value);
        }
        if (entry & 1) break;
    }
    return NULL;
}

/* dlsym lives in libc.so.6 from glibc 2.34 on, in libdl.so.2 before; in musl it is the loader's own. */
SHIM_EARLY static bool is_libc(const char *path) {
    const char *name = path;
    if (!path) return false;
    for (; *path; path++) {
        if (*path == '/') name = path + 1;
    }
    return begins(name, "libc.so") || begins(name, "libc-") || begins(name, "libdl.so") || begins(name, "libdl-") ||
           begins(name, "libc.musl") || begins(name, "ld-musl");
}

SHIM_EARLY void *shim_symbol_in(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name) {
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *table = NULL;
    for (const ElfW(Dyn) *entry = dynamic; entry && entry->d_tag != DT_NULL; entry++) {
        ElfW(Addr) pointer = entry->d_un.d_ptr;
        if (pointer < base) pointer += base; /* some loaders leave these unrelocated */
        if (entry->d_tag == DT_SYMTAB) symbols = (const void *)pointer;
        if (entry->d_tag == DT_STRTAB) strings = (const void *)pointer;
        if (entry->d_tag == DT_GNU_HASH) table = (const void *)pointer;
    }
    return symbols && strings && table ? table_lookup(base, symbols, strings, table, name) : NULL;
}

/* One loaded object of a libc that has no dladdr1. */
static int look_into(struct dl_phdr_info *info, size_t size, void *data) {
    struct found *found = data;
    for (int i = 0; i < info->dlpi_phnum && is_libc(info->dlpi_name); i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_DYNAMIC) continue;
        found->dlsym = shim_symbol_in(info->dlpi_addr, (const ElfW(Dyn) *)(info->dlpi_addr + part->p_vaddr), "dlsym");
    }
    return found->dlsym != NULL;
}

static _Atomic(void *) known_dlsym, known_dlvsym;
static _Atomic(struct link_map *) known_object;

/* Looks where this object itself was loaded: a copy in a namespace of its own has a libc of its own. Racing first
 * callers find the same answer. */
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
        if (!found.dlsym) found.dlsym = shim_symbol_in(map->l_addr, map->l_ld, "dlsym");
        if (!found.dlvsym) found.dlvsym = shim_symbol_in(map->l_addr, map->l_ld, "dlvsym");
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

void *libc_dlsym_nothing(const char *name) {
    const struct link_map *libc = found_symbols().object;
    void *handle = libc ? cot_dlopen(libc->l_name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    return handle ? libc_dlsym(handle, name) : NULL;
}

/* Loaded objects, read from the loader's own tables without calling it: which symbols one defines, which addresses it
 * holds, and which of them this object is. Runs while a sanitizer's runtime starts, so it calls nothing of libc but
 * dladdr1. */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include "symbols.h"

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

/* Looks a name up in an object's GNU hash table; only definitions count. */
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

SHIM_EARLY void *shim_find_in_object(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name) {
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

_Atomic(void *) shim_known_handle;

#pragma weak _r_debug /* musl has none */

/* A program starts with at least so many objects, which are never unloaded: itself, the kernel's vDSO, our two,
 * libc, the loader. */
#define FIRST_OBJECTS 6

/* From the loader's list for debuggers, whose first objects are those a program starts with, this one among them if
 * it is preloaded. Otherwise by dladdr1, which searches all exported names. Further down the list are objects that
 * another thread may be unloading. */
SHIM_EARLY void *shim_find_own_handle(void) {
    Dl_info info;
    void *handle = NULL;
    struct link_map *map = &_r_debug ? _r_debug.r_map : NULL;
    for (int i = 1; map && map->l_ld != _DYNAMIC; i++) map = i < FIRST_OBJECTS ? map->l_next : NULL;
    if (map) handle = map;
    else if (!dladdr1 || !dladdr1((const void *)&shim_entry_count, &info, &handle, RTLD_DL_LINKMAP)) return NULL;
    atomic_store_explicit(&shim_known_handle, handle, memory_order_release);
    return handle;
}

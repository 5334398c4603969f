/* libc's dlsym and dlvsym, although this object exports both names: found in libc's own symbol table, which needs no
 * version string, no private symbol, no memory and no constructor, and cannot find ourselves. */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

#include "shim.h"

typedef void *(*dlsym_function)(void *, const char *);
typedef void *(*dlvsym_function)(void *, const char *, const char *);

struct found {
    void *dlsym, *dlvsym;
};

static uint32_t gnu_hash(const char *name) {
    uint32_t hash = 5381;
    for (; *name; name++) hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* One look-up in an object's GNU hash table; only definitions count. */
static void *table_lookup(ElfW(Addr) base, const ElfW(Sym) * symbols, const char *strings, const uint32_t *table,
                          const char *name) {
    uint32_t bucket_count = table[0], first = table[1], bloom_words = table[2];
    const uint32_t *buckets = table + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
    const uint32_t *chain = buckets + bucket_count;
    uint32_t hash = gnu_hash(name);
    if (bucket_count == 0) return NULL;
    for (uint32_t index = buckets[hash % bucket_count]; index >= first && index != 0; index++) {
        uint32_t entry = chain[index - first];
        const ElfW(Sym) *symbol = &symbols[index];
        if ((entry | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 &&
            strcmp(strings + symbol->st_name, name) == 0) {
            return (void *)(base + symbol->st_value);
        }
        if (entry & 1) break;
    }
    return NULL;
}

/* dlsym lives in libc.so.6 from glibc 2.34 on, in libdl.so.2 before; in musl it is the loader's own. */
static bool is_libc(const char *path) {
    const char *name = path ? strrchr(path, '/') : NULL;
    name = name ? name + 1 : path;
    if (!name) return false;
    return !strncmp(name, "libc.so", 7) || !strncmp(name, "libc-", 5) || !strncmp(name, "libdl.so", 8) ||
           !strncmp(name, "libdl-", 6) || !strncmp(name, "libc.musl", 9) || !strncmp(name, "ld-musl", 7);
}

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    struct found *found = data;
    if (!is_libc(info->dlpi_name)) return 0;
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    }
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *table = NULL;
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        ElfW(Addr) pointer = dynamic->d_un.d_ptr;
        if (pointer < info->dlpi_addr) pointer += info->dlpi_addr; /* some loaders leave these unrelocated */
        if (dynamic->d_tag == DT_SYMTAB) symbols = (const void *)pointer;
        if (dynamic->d_tag == DT_STRTAB) strings = (const void *)pointer;
        if (dynamic->d_tag == DT_GNU_HASH) table = (const void *)pointer;
    }
    if (!symbols || !strings || !table) return 0;
    if (!found->dlsym) found->dlsym = table_lookup(info->dlpi_addr, symbols, strings, table, "dlsym");
    if (!found->dlvsym) found->dlvsym = table_lookup(info->dlpi_addr, symbols, strings, table, "dlvsym");
    return found->dlsym && found->dlvsym;
}

/* Racing first callers find the same answer. */
static struct found found_symbols(void) {
    static _Atomic(void *) known_dlsym, known_dlvsym;
    struct found found = {atomic_load_explicit(&known_dlsym, memory_order_acquire),
                          atomic_load_explicit(&known_dlvsym, memory_order_acquire)};
    if (found.dlsym) return found;
    dl_iterate_phdr(visit, &found);
    atomic_store_explicit(&known_dlvsym, found.dlvsym, memory_order_release);
    atomic_store_explicit(&known_dlsym, found.dlsym, memory_order_release);
    return found;
}

void *libc_dlsym_address(void) {
    return found_symbols().dlsym;
}

void *libc_dlsym(void *handle, const char *name) {
    dlsym_function function = (dlsym_function)found_symbols().dlsym;
    return function ? function(handle, name) : NULL;
}

void *libc_dlvsym(void *handle, const char *name, const char *version) {
    dlvsym_function function = (dlvsym_function)found_symbols().dlvsym;
    return function ? function(handle, name, version) : NULL;
}

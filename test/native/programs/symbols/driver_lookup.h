/* Uncommon ways to look up a function of the driver. */
#pragma once

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

/* A look-up of one's own in an object's symbol table, as some trampolines and tools do it. */
static void *walk(void *handle, const char *name) {
    const struct link_map *map = handle;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *table = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbols = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) strings = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_GNU_HASH) table = (const void *)entry->d_un.d_ptr;
    }
    if (!symbols || !strings || !table) return NULL;
    uint32_t hash = 5381;
    for (const char *c = name; *c; c++) hash = hash * 33 + (unsigned char)*c;
    const uint32_t *buckets = table + 4 + (size_t)table[2] * 2, *chain = buckets + table[0];
    for (uint32_t i = buckets[hash % table[0]]; i >= table[1] && i; i++) {
        uint32_t entry = chain[i - table[1]];
        if ((entry | 1) == (hash | 1) && !strcmp(strings + symbols[i].st_name, name))
            return (char *)map->l_addr + symbols[i].st_value;
        if (entry & 1) break;
    }
    return NULL;
}

/* The driver as a program names it, and what finds names in it:
 *   LIBRARY            dlopen, dlsym
 *   deepbind:LIBRARY   the same with RTLD_DEEPBIND
 *   namespace:PLUGIN   in a namespace of its own, with that one's libc and loader (../plugins/plugin.c)
 *   walk:PATH          dlopen("libcuda.so.1"); once the object of that path is in the process, its symbol table, read
 *                      without libc */
struct way {
    void *driver;
    void *(*find_in_namespace)(const char *);
    const char *walked;
};

static inline struct way way_to(const char *name) {
    struct way way = {0};
    if (!strncmp(name, "namespace:", 10)) {
        void *plugin = dlmopen(LM_ID_NEWLM, name + 10, RTLD_NOW);
        if (plugin) way.find_in_namespace = (void *(*)(const char *))dlsym(plugin, "plugin_find_in_driver");
        way.driver = plugin;
    } else if (!strncmp(name, "deepbind:", 9)) {
        way.driver = dlopen(name + 9, RTLD_NOW | RTLD_DEEPBIND);
    } else if (!strncmp(name, "walk:", 5)) {
        way.walked = name + 5;
        way.driver = dlopen("libcuda.so.1", RTLD_NOW);
    } else {
        way.driver = dlopen(name, RTLD_NOW);
    }
    return way;
}

static inline void *find_by(const struct way *way, const char *name) {
    if (way->find_in_namespace) return way->find_in_namespace(name);
    const struct link_map *map = way->walked ? dlopen(NULL, RTLD_NOW) : NULL;
    for (; map; map = map->l_next) {
        void *found = strcmp(map->l_name, way->walked) ? NULL : walk((void *)(uintptr_t)map, name);
        if (found) return found;
    }
    return dlsym(way->driver, name);
}

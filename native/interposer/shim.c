/* Names to real entry points, on first use. */
#include "shim.h"

#include <dlfcn.h>
#include <link.h>

#include <stdatomic.h>
#include <string.h>

#define MOST_ENTRIES 1024
static _Atomic(void *) addresses[MOST_ENTRIES];

int shim_find(const char *name) {
    int low = 0, high = (int)shim_entry_count - 1;
    while (low <= high) {
        int middle = (low + high) / 2, order = strcmp(name, shim_entries[middle].name);
        if (order == 0) return middle;
        if (order < 0) high = middle - 1;
        else low = middle + 1;
    }
    return -1;
}

void *shim_real(uint32_t index) {
    void *address = atomic_load_explicit(&addresses[index], memory_order_acquire);
    if (address) return address;
    void *library = shim_real_library();
    address = library ? libc_dlsym(library, shim_entries[index].name) : NULL;
    if (address) atomic_store_explicit(&addresses[index], address, memory_order_release);
    return address;
}

void *shim_resolve(uint64_t index) {
    const struct shim_entry *entry = &shim_entries[index];
    void *address = entry->wrapper; /* wrappers know what to say without a real library */
    if (!address) address = shim_real((uint32_t)index);
    if (!address) address = (void *)shim_missing;
    __atomic_store_n(&shim_target[index], address, __ATOMIC_RELEASE);
    return address;
}

/* The loaded object of an address, as dlopen's handles name it. */
static void *handle_of(const void *address) {
    Dl_info info;
    struct link_map *map = NULL;
    return dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
}

static void *own_handle(void) {
    static _Atomic(void *) handle;
    void *known = atomic_load_explicit(&handle, memory_order_acquire);
    if (!known) {
        known = handle_of(&shim_entry_count);
        atomic_store_explicit(&handle, known, memory_order_release);
    }
    return known;
}

/* Rules, each from a defect seen elsewhere: wrap only what the real look-up found; the driver's own look-ups are the
 * driver's; the pseudo handles mean something relative to the caller, so what is not ours goes to libc untouched. */
bool shim_look_up(void *handle, const char *name, const void *caller, void **answer) {
    bool relative = handle == RTLD_NEXT || handle == RTLD_DEFAULT;
    if (shim_is_real_code(caller)) return false;
    int index = shim_find(name);
    if (index < 0) {
        /* A name that only a newer library has: our object stands in for it, so it must not seem to be missing. */
        if (relative || handle != own_handle()) return false;
        void *library = shim_real_library();
        *answer = library ? libc_dlsym(library, name) : NULL;
        return true;
    }
    const struct shim_entry *entry = &shim_entries[index];
    void *real = shim_real((uint32_t)index), *found = real;
    if (!relative) found = libc_dlsym(handle, name);
    if (!real || !found) {
        /* "No such symbol" where the real library says so; asking it sets dlerror. A program that has opened our object
         * by the library's name, where there is none, gets entry points that say that there is no device. */
        void *library = shim_real_library();
        if (library) *answer = libc_dlsym(library, name);
        else *answer = relative ? NULL : found;
        return true;
    }
    if (found != real && found != entry->trampoline) *answer = found; /* somebody else's function of that name */
    else *answer = entry->wrapper || entry->gated ? entry->trampoline : real;
    return true;
}

/* From a name or an index to the real entry point, looked up on first use, and where each trampoline jumps. */
#include "symbols.h"

#include <stdatomic.h>
#include <string.h>

SHIM_TABLE _Atomic(void *) shim_addresses[SHIM_MAX_ENTRIES];

/* Names that an engine has diverted to itself. */
#define MAX_DIVERSIONS 4
static struct {
    _Atomic uint32_t entry; /* its index plus one; 0: free */
    _Atomic(void *) function;
} diversions[MAX_DIVERSIONS];

int shim_index_of(const char *name) {
    size_t length = strlen(name);
    uint32_t hash = shim_hash(name, length), at = shim_first_slot(hash);
    int index;
    do {
        index = shim_candidate(shim_slots, hash, &at);
    } while (index >= 0 && strcmp(name, shim_name((uint32_t)index)) != 0);
    return index;
}

void *shim_real(uint32_t index) {
    void *address = atomic_load_explicit(&shim_addresses[index], memory_order_acquire);
    if (address) return address;
    void *library = shim_real_library();
    address = library ? libc_dlsym(library, shim_name(index)) : NULL;
    if (address) atomic_store_explicit(&shim_addresses[index], address, memory_order_release);
    return address;
}

void *shim_real_by_name(const char *name) {
    int index = shim_index_of(name);
    return index < 0 ? NULL : shim_real((uint32_t)index);
}

/* A spare trampoline jumps to the real library's function of the name that was written into this object. */
static void *resolve_spare(uint32_t spare) {
    if (spare >= shim_form.spares_used) return NULL;
    const char *name = (const char *)&shim_form + shim_form.tables + shim_form.spare_names[spare];
    void *library = shim_real_library(), *address = library ? libc_dlsym(library, name) : NULL;
    if (address) shim_count_unknown();
    return address;
}

static void *resolve(uint64_t index, const void *caller) {
    shim_real_library_for(caller);
    bool spare = index >= shim_entry_count;
    /* Wrappers also work without a real library. */
    void *address = spare || shim_defers_to_older_copy() ? NULL : shim_wrapper((uint32_t)index);
    if (!address) address = spare ? resolve_spare((uint32_t)index - shim_entry_count) : shim_real((uint32_t)index);
    if (!address) address = (void *)shim_missing;
    __atomic_store_n(&shim_target[index], address, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < MAX_DIVERSIONS; i++) { /* it may have been diverted meanwhile */
        void *diverted = atomic_load(&diversions[i].entry) == index + 1 ? atomic_load(&diversions[i].function) : NULL;
        if (diverted) __atomic_store_n(&shim_target[index], address = diverted, __ATOMIC_SEQ_CST);
    }
    return address;
}

void *shim_resolve(uint64_t index, const uint64_t *registers, const uint64_t *stack) {
    return resolve(index, shim_caller(registers, stack));
}

void *shim_resolved_target(uint32_t index) {
    void *target = __atomic_load_n(&shim_target[index], __ATOMIC_ACQUIRE);
    return target ? target : resolve(index, NULL);
}

void shim_divert(const char *name, void *function) {
    int index = shim_index_of(name);
    if (index < 0) return;
    for (unsigned i = 0; i < MAX_DIVERSIONS; i++) {
        uint32_t entry = 0, own = (uint32_t)index + 1;
        if (!atomic_compare_exchange_strong(&diversions[i].entry, &entry, own) && entry != own) continue;
        atomic_store(&diversions[i].function, function);
        __atomic_store_n(&shim_target[index], function, __ATOMIC_SEQ_CST);
        return;
    }
}

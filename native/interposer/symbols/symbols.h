/* What libcotenant.so and libcotenant-nvml.so share: exported names that jump through a table, the real library
 * behind them, and libc's own dlsym. Each object has its own copy of all of it.
 *
 * All of it may run before any constructor and inside another library's look-ups, so paths that resolve a name do
 * not allocate, log or lock. */
#pragma once

#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../libc.h"

/* No symbol here is visible to other objects, so no access goes through the GOT. */
#pragma GCC visibility push(hidden)

/* Runs at every look-up of any name, also while a sanitizer's runtime starts and has no shadow memory yet. */
#define SHIM_EARLY __attribute__((no_sanitize("address", "undefined", "thread")))

/* Sections for large zeroed data (entry/layout.ld): tables that a process writes as it starts, the state, and the
 * rest. */
#define SHIM_TABLE __attribute__((section(".bss.tables")))
#define SHIM_STATE __attribute__((section(".bss.state"), aligned(64)))
#define SHIM_REST __attribute__((section(".bss.rest")))

/* A slot of a hash table of names: the low half of the hash, and an index plus one (0: free). */
#define SHIM_MAX_ENTRIES 768
#define SHIM_SLOT_BITS 11 /* as in native/abi/symbol-hash.ts */
#define SHIM_SLOTS (1u << SHIM_SLOT_BITS)
struct shim_slot {
    uint16_t tag, entry;
};

/* As in native/abi/symbol-hash.ts. */
static inline uint32_t shim_hash(const char *name, size_t length) {
    const uint64_t factor = 0x9e3779b97f4a7c15ull;
    uint64_t hash = length, word;
    if (length < sizeof word) {
        for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)name[i]) * factor;
        return (uint32_t)(hash >> 32);
    }
    for (size_t i = 0; i < length - sizeof word; i += sizeof word) {
        memcpy(&word, name + i, sizeof word);
        hash = (hash ^ word) * factor;
    }
    memcpy(&word, name + length - sizeof word, sizeof word);
    return (uint32_t)((hash ^ word) * factor >> 32);
}

/* Iterates from *at (at first shim_first_slot): the next index whose name may match, or -1. */
static inline uint32_t shim_first_slot(uint32_t hash) {
    return hash >> (32 - SHIM_SLOT_BITS);
}
static inline int shim_candidate(const struct shim_slot *slots, uint32_t hash, uint32_t *at) {
    for (;;) {
        struct shim_slot slot = slots[*at];
        *at = (*at + 1) % SHIM_SLOTS;
        if (slot.entry == 0) return -1;
        if (slot.tag == (uint16_t)hash) return slot.entry - 1;
    }
}

/* An entry point. Addresses are offsets from the first record, so that the loader need not relocate them. */
struct shim_record {
    int32_t trampoline; /* this object's exported function of that name */
    int32_t wrapper;    /* C function that serves it; 0: none, calls go straight to the real one */
    uint16_t name;      /* offset in shim_names */
    uint16_t gated;
};

/* Defined by each object: its entry points sorted by name, a hash table of them, and the library it stands in for. */
extern const struct shim_record shim_records[];
extern const char shim_names[];
extern const uint32_t shim_entry_count;
extern const struct shim_slot shim_slots[];
static inline const char *shim_name(uint32_t index) {
    return shim_names + shim_records[index].name;
}
static inline void *shim_trampoline(uint32_t index) {
    return (void *)((uintptr_t)shim_records + (uintptr_t)(intptr_t)shim_records[index].trampoline);
}
static inline void *shim_wrapper(uint32_t index) {
    int32_t at = shim_records[index].wrapper;
    return at ? (void *)((uintptr_t)shim_records + (uintptr_t)(intptr_t)at) : NULL;
}
/* Programs get the trampoline, not the real entry point. */
static inline bool shim_is_intercepted(uint32_t index) {
    return shim_records[index].wrapper != 0 || shim_records[index].gated;
}
extern const char shim_soname[]; /* "libcuda.so.1" */
extern const char shim_marker[]; /* symbol by which it exports its shim_form */

/* Turns the preloaded object into one that is bind-mounted over a host's library. As built, all of it is empty;
 * src/agent/containers/mounted-object.ts fills it in and makes symbol tables after the host's. */
struct shim_form {
    char magic[8];              /* "COTFORM1" */
    uint32_t known, spares;     /* entry points of this build; spare trampolines without a name */
    int32_t spare_code, tables; /* offsets of these and of the space for tables, from this structure on */
    uint32_t table_bytes, spares_used;
    char library[1024];     /* the real library; empty: search for it */
    char files[1024];       /* folder of limits page and ledger; empty: the folder of this object */
    uint32_t spare_names[]; /* names of the used spares: offsets into the tables */
};
extern const struct shim_form shim_form;

/* Defined by each object: what a call returns without a real library, or without that function in it. */
extern const int shim_no_library, shim_no_function;
int shim_missing(void); /* one of the two */

extern void *shim_target[]; /* where each trampoline jumps; NULL: to shim_resolve */
void *shim_resolved_target(uint32_t index);
extern const uint32_t *shim_gate; /* points at the gate word; 0: open */

/* Index of a name, or -1. */
int shim_index_of(const char *name);
/* The real entry point; NULL: the real library lacks it or was not found. */
void *shim_real(uint32_t index);
/* The same by name; NULL also for a name that this build does not know. */
void *shim_real_by_name(const char *name);
/* True once the real entry point is known. */
extern _Atomic(void *) shim_addresses[];
static inline bool shim_is_resolved(uint32_t index) {
    return atomic_load_explicit(&shim_addresses[index], memory_order_relaxed) != NULL;
}
/* True if an older copy of this object in the process does the accounting: the "real library" is that copy then. */
bool shim_defers_to_older_copy(void);
/* Does a loaded object hold this address? */
static inline bool shim_object_contains(const struct dl_phdr_info *object, const void *address) {
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (uintptr_t)address - object->dlpi_addr - part->p_vaddr < part->p_memsz)
            return true;
    }
    return false;
}
/* The real library's handle, or NULL. Searched for once; a failure is remembered. */
void *shim_real_library(void);
void *shim_real_library_for(const void *caller); /* the first time: searched for as by the caller's object */
/* From now on a name without a wrapper jumps to `function` instead of the real entry point. */
void shim_divert(const char *name, void *function);
/* True for an address inside the real library's code. */
bool shim_is_real_code(const void *address);
/* True for the real library, once it is known. */
bool shim_is_real_object(ElfW(Addr) base);

void *libc_dlsym(void *handle, const char *name);
void *libc_dlvsym(void *handle, const char *name, const char *version);
void *libc_dlsym_address(void);
/* NULL, and sets dlerror, which callers print. For names that no libc has. */
void *libc_dlsym_fail(const char *name);

/* A symbol that a loaded object defines; NULL: it does not. */
void *shim_find_in_object(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name);
/* The loader's handle of this object. */
SHIM_EARLY void *shim_find_own_handle(void);
extern _Atomic(void *) shim_known_handle;
SHIM_EARLY static inline void *shim_own_handle(void) {
    void *known = atomic_load_explicit(&shim_known_handle, memory_order_acquire);
    return known ? known : shim_find_own_handle();
}

/* Defined by each object: counts entry points that were handed out although this build does not know them. */
extern _Atomic(_Atomic uint64_t *) shim_unknown_count;
static inline void shim_count_unknown(void) {
    atomic_fetch_add_explicit(atomic_load(&shim_unknown_count), 1, memory_order_relaxed);
}

/* Answers a look-up of dlsym or dlvsym. True: *answer is the result; false: ask libc. */
bool shim_look_up(void *handle, const char *name, const void *caller, void **answer);

/* Called by the trampolines: `registers` are those that carry arguments, `stack` the arguments beyond them. */
#if defined(__aarch64__)
#define SHIM_REGISTER_ARGUMENTS 8
static inline const void *shim_caller(const uint64_t *registers, const uint64_t *stack) {
    return (const void *)registers[9];
}
#else
#define SHIM_REGISTER_ARGUMENTS 6
static inline const void *shim_caller(const uint64_t *registers, const uint64_t *stack) {
    return (const void *)stack[-1]; /* the return address lies below the arguments */
}
#endif
static inline uint64_t shim_argument(const uint64_t *registers, const uint64_t *stack, unsigned index) {
    return index < SHIM_REGISTER_ARGUMENTS ? registers[index] : stack[index - SHIM_REGISTER_ARGUMENTS];
}
void *shim_resolve(uint64_t index, const uint64_t *registers, const uint64_t *stack);
void *shim_gate_wait(uint64_t index, const uint64_t *registers, const uint64_t *stack);

/* The folder that this object lies in, without a trailing slash; false: unknown. */
bool shim_own_folder(char *path, size_t size);

#pragma GCC visibility pop

/* cuGetProcAddress in both its versions: CUDA's runtime looks up every entry point by it. */
#include <string.h>

#include "entry.h"

struct version_row {
    uint16_t symbol, version;
    uint8_t base_length, per_thread, last;
};
#include "../generated/cuda_versions.h"
#define ROW_COUNT (sizeof VERSION_ROWS / sizeof *VERSION_ROWS)

/* The address that the driver once returned for a row. */
static SHIM_REST _Atomic(void *) seen[ROW_COUNT];

/* First row of a base name, or -1. Rows of a base are sorted by version, per-thread variants after the others. */
static int first_row(const char *base) {
    size_t length = strlen(base);
    uint32_t hash = shim_hash(base, length), at = shim_first_slot(hash);
    for (int i; (i = shim_candidate(BASE_SLOTS, hash, &at)) >= 0;) {
        const struct version_row *row = &VERSION_ROWS[FIRST_ROWS[i]];
        if (length == row->base_length && !strncmp(base, shim_name(row->symbol), length)) return FIRST_ROWS[i];
    }
    return -1;
}

typedef abi_result (*gpa_v1)(const char *, void **, int, uint64_t);
typedef abi_result (*gpa_v2)(const char *, void **, int, uint64_t, int *);

static abi_result ask(bool second, const char *base, void **address, int version, uint64_t flags, int *status) {
    void *real = shim_real(second ? COT_AT_cuGetProcAddress_v2 : COT_AT_cuGetProcAddress);
    if (!real) return (abi_result)shim_missing();
    return second ? ((gpa_v2)real)(base, address, version, flags, status)
                  : ((gpa_v1)real)(base, address, version, flags);
}

static _Atomic int known_version;

static __attribute__((noinline)) int ask_version(void) {
    int version = 0;
    abi_result (*get_version)(int *) = shim_real_by_name("cuDriverGetVersion");
    if (get_version && get_version(&version) == ABI_SUCCESS)
        atomic_store_explicit(&known_version, version, memory_order_relaxed);
    return version;
}

/* The driver's version, or 0. Asked for a version above its own, 580.159.04 refuses (invalid value), as documented
 * since CUDA 12. Earlier documentation has no such error: a driver that answers has its newest variant to give, which
 * is not the variant of that version. */
static int driver_version(void) {
    int version = atomic_load_explicit(&known_version, memory_order_relaxed);
    return version ? version : ask_version();
}

/* Asks the driver a second time, for a version whose variant this build knows. Only if both addresses are the same
 * is it that variant, and only then is it wrapped; a newer variant of a newer driver is passed through. An address
 * stays recognized, as the driver is never unloaded. */
static __attribute__((noinline)) void *ask_again(bool second, const char *base, void *address, uint64_t flags,
                                                 const struct version_row *row) {
    void *again = NULL, *trampoline = shim_trampoline(row->symbol);
    if (address == trampoline) return address;
    if (ask(second, base, &again, row->version, flags, NULL) == ABI_SUCCESS && again == address) {
        atomic_store_explicit(&seen[row - VERSION_ROWS], address, memory_order_relaxed);
        return trampoline;
    }
    shim_count_unknown();
    return address;
}

static void *recognize(bool second, const char *base, void *address, int version, uint64_t flags) {
    int first = first_row(base), newest = driver_version();
    if (first < 0) {
        shim_count_unknown();
        return address;
    }
    if (newest > 0 && version > newest) version = newest;
    bool per_thread = flags & ABI_GPA_PER_THREAD_STREAM;
    const struct version_row *best = NULL, *row = &VERSION_ROWS[first];
    for (bool last = false; !last; last = row++->last) {
        if (row->version <= version && (per_thread || !row->per_thread)) best = row;
    }
    if (!best) return address;
    if (!shim_is_intercepted(best->symbol)) return address;
    if (address == atomic_load_explicit(&seen[best - VERSION_ROWS], memory_order_relaxed))
        return shim_trampoline(best->symbol);
    return ask_again(second, base, address, flags, best);
}

abi_result cot_cuGetProcAddress_v2(const char *base, void **address, int version, uint64_t flags, int *status) {
    abi_result result = ask(true, base, address, version, flags, status);
    if (result == ABI_SUCCESS && base && address && *address)
        *address = recognize(true, base, *address, version, flags);
    return result;
}

abi_result cot_cuGetProcAddress(const char *base, void **address, int version, uint64_t flags) {
    abi_result result = ask(false, base, address, version, flags, NULL);
    if (result == ABI_SUCCESS && base && address && *address)
        *address = recognize(false, base, *address, version, flags);
    return result;
}

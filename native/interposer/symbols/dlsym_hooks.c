/* The look-up routes: dlsym and dlvsym for everybody, cuGetProcAddress in both forms.
 *
 * dlsym tail-jumps into libc's for every name that is not a driver's, with the caller's return address in place,
 * because RTLD_NEXT and RTLD_DEFAULT mean something relative to it. */
#include <dlfcn.h>
#include <string.h>

#include "../entry/entry.h"
#include "../generated/cuda_verbs.h"

#define EXPORT __attribute__((visibility("default")))

/* The second object, which answers for NVML, when it is loaded too. */
static bool nvml_look_up(void *handle, const char *name, const void *caller, void **answer) {
    typedef bool (*look_up)(void *, const char *, const void *, void **);
    static _Atomic(void *) companion;
    void *known = atomic_load_explicit(&companion, memory_order_acquire);
    if (!known) {
        known = libc_dlsym(RTLD_DEFAULT, "cotenant_nvml_look_up");
        atomic_store_explicit(&companion, known ? known : (void *)-1, memory_order_release);
    }
    return known && known != (void *)-1 && ((look_up)known)(handle, name, caller, answer);
}

SHIM_EARLY static bool is_cuda_name(const char *name) {
    return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

SHIM_EARLY static bool is_nvml_name(const char *name) {
    return name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l';
}

/* Called by dlsym's assembly: the answer, or the address of libc's dlsym to jump to. */
struct route {
    void *answer, *go_on;
};
SHIM_EARLY __attribute__((used)) struct route cot_route_dlsym(void *handle, const char *name, const void *caller) {
    struct route route = {NULL, NULL};
    bool relative = handle == RTLD_NEXT || handle == RTLD_DEFAULT;
    /* Of our own object every name is asked: the driver has more than those that begin like its entry points. */
    bool cuda = is_cuda_name(name) || (!relative && handle == shim_own_handle());
    bool decided = cuda                 ? shim_look_up(handle, name, caller, &route.answer)
                   : is_nvml_name(name) ? nvml_look_up(handle, name, caller, &route.answer)
                                        : false;
    if (!decided) route.go_on = libc_dlsym_address();
    return route;
}

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        ".p2align 4\n"
        "dlsym:\n"
        "    .cfi_startproc\n"
        "    endbr64\n"
        "    pushq %rdi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    pushq %rsi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    subq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    movq 24(%rsp), %rdx\n"
        "    call cot_route_dlsym\n"
        "    addq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rsi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    testq %rdx, %rdx\n"
        "    jne 1f\n"
        "    ret\n"
        "1:  jmp *%rdx\n"
        "    .cfi_endproc\n"
        "    .size dlsym, .-dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, %function\n"
        ".p2align 4\n"
        "dlsym:\n"
        "    .cfi_startproc\n"
        "    hint #34\n" /* bti c */
        "    mov x2, x30\n"
        "    hint #25\n" /* paciasp */
        "    .cfi_negate_ra_state\n"
        "    stp x29, x30, [sp, #-32]!\n"
        "    .cfi_def_cfa_offset 32\n"
        "    .cfi_offset 29, -32\n"
        "    .cfi_offset 30, -24\n"
        "    mov x29, sp\n"
        "    stp x0, x1, [sp, #16]\n"
        "    bl cot_route_dlsym\n"
        "    mov x16, x1\n"
        "    cbz x16, 1f\n"
        "    ldp x0, x1, [sp, #16]\n"
        "1:  ldp x29, x30, [sp], #32\n"
        "    .cfi_restore 30\n"
        "    .cfi_restore 29\n"
        "    .cfi_def_cfa_offset 0\n"
        "    hint #29\n" /* autiasp */
        "    .cfi_negate_ra_state\n"
        "    cbnz x16, 2f\n"
        "    ret\n"
        "2:  br x16\n"
        "    .cfi_endproc\n"
        "    .size dlsym, .-dlsym\n");
#endif

/* Drivers version no symbol, so a versioned question about one of their names fails as it should; it is asked of libc
 * from here, which only differs for the pseudo handles, and those find names of libc's own the same way. */
SHIM_EARLY EXPORT void *dlvsym(void *handle, const char *name, const char *version) {
    void *found = libc_dlvsym(handle, name, version), *answer;
    if (found && is_cuda_name(name) && shim_look_up(handle, name, __builtin_return_address(0), &answer)) return answer;
    return found;
}

/* ---- cuGetProcAddress ---- */

struct version_row {
    uint16_t symbol, version;
    uint8_t base_length, per_thread, last;
};
#include "../generated/cuda_versions.h"
#define ROW_COUNT (sizeof VERSION_ROWS / sizeof *VERSION_ROWS)

/* What the driver was once seen to answer for a row. */
static SHIM_REST _Atomic(void *) seen[ROW_COUNT];

/* Of a base name, or -1. The rows of a base go on by version, those for per-thread streams after the others. */
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
    abi_result (*get_version)(int *) = entry_driver("cuDriverGetVersion");
    if (get_version && get_version(&version) == ABI_SUCCESS)
        atomic_store_explicit(&known_version, version, memory_order_relaxed);
    return version;
}

/* What the driver has at most, or 0: asked beyond it, an older driver answers its newest variant, which is not the one
 * that came later. */
static int driver_version(void) {
    int version = atomic_load_explicit(&known_version, memory_order_relaxed);
    return version ? version : ask_version();
}

/* "Ask twice": the driver's answer is recognized by asking it again at a version whose variant this build knows. Only
 * if both answers are one pointer is it that variant, and only then is it wrapped; a newer driver's newer variant
 * passes. What a pointer was recognized as, it stays: the driver is never unloaded. */
static __attribute__((noinline)) void *ask_again(bool second, const char *base, void *address, uint64_t flags,
                                                 const struct version_row *row) {
    void *again = NULL, *trampoline = shim_trampoline(row->symbol);
    if (address == trampoline) return address;
    if (ask(second, base, &again, row->version, flags, NULL) == ABI_SUCCESS && again == address) {
        atomic_store_explicit(&seen[row - VERSION_ROWS], address, memory_order_relaxed);
        return trampoline;
    }
    shim_unknown();
    return address;
}

static void *recognize(bool second, const char *base, void *address, int version, uint64_t flags) {
    int first = first_row(base), newest = driver_version();
    if (first < 0) {
        shim_unknown();
        return address;
    }
    if (newest > 0 && version > newest) version = newest;
    bool per_thread = flags & ABI_GPA_PER_THREAD_STREAM;
    const struct version_row *best = NULL, *row = &VERSION_ROWS[first];
    for (bool last = false; !last; last = row++->last) {
        if (row->version <= version && (per_thread || !row->per_thread)) best = row;
    }
    if (!best) return address;
    if (!shim_is_ours(best->symbol)) return address;
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

void *entry_driver(const char *name) {
    int index = shim_find(name);
    return index < 0 ? NULL : shim_real((uint32_t)index);
}

/* dlsym and dlvsym, exported to all programs.
 *
 * For every name that is not of CUDA or NVML dlsym tail-jumps into libc's, with the caller's return address in
 * place, as RTLD_NEXT and RTLD_DEFAULT are relative to the caller. */
#include <dlfcn.h>
#include <string.h>

#include "symbols.h"

#define EXPORT __attribute__((visibility("default")))

/* libcotenant-nvml.so, which answers for NVML's names, if it is loaded too. */
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

/* Called by the assembly below: returns the answer, or the address of libc's dlsym to jump to. */
struct route {
    void *answer, *go_on;
};
SHIM_EARLY __attribute__((used)) struct route shim_route_dlsym(void *handle, const char *name, const void *caller) {
    struct route route = {NULL, NULL};
    bool relative = handle == RTLD_NEXT || handle == RTLD_DEFAULT;
    /* Look-ups in this object are answered whatever the name: the driver also exports names without the usual
     * prefix. */
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
        "    call shim_route_dlsym\n"
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
        "    bl shim_route_dlsym\n"
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

/* Drivers have no symbol versions, so a versioned look-up of their names fails as it should. libc is called from
 * here, not by a tail jump: that matters only for the pseudo handles, by which libc's own names are found all the
 * same. */
SHIM_EARLY EXPORT void *dlvsym(void *handle, const char *name, const char *version) {
    void *found = libc_dlvsym(handle, name, version), *answer;
    if (found && is_cuda_name(name) && shim_look_up(handle, name, __builtin_return_address(0), &answer)) return answer;
    return found;
}

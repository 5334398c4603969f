/* Assembly for entry points whose arguments are not known here: every exported name jumps through its word of
 * shim_target. At first that word leads to a stub that resolves the name (shim_resolve) and jumps on, with all argument
 * registers as they were.
 *
 * A gated name first reads the gate word: while it is 0 the whole cost is a load, a compare, a branch and the jump. */
#if !defined(__x86_64__)
#error "trampolines exist for x86-64 only so far"
#endif

.macro BEGIN_FUNCTION name
    .text
    .globl \name
    .type \name, @function
    .p2align 4
\name:
    endbr64
.endm

.macro DIRECT name, index
    BEGIN_FUNCTION \name
    jmp *shim_target+8*\index(%rip)
    .size \name, .-\name
.endm

.macro GATED name, index
    BEGIN_FUNCTION \name
    movq shim_gate(%rip), %r11
    cmpl $0, (%r11)
    jne 1f
    jmp *shim_target+8*\index(%rip)
1:  pushq $\index
    jmp shim_gate_slow
    .size \name, .-\name
.endm

/* Saves what carries arguments, calls \function(index, saved registers, stack arguments), restores. The index lies on the
 * stack, above it the return address of the caller. Leaves the answer in r11 and the stack as the caller made it. */
.macro CALL_KEEPING_ARGUMENTS function
    pushq %rbp
    .cfi_adjust_cfa_offset 8
    movq %rsp, %rbp
    andq $-16, %rsp
    subq $192, %rsp
    movq %rdi, 0(%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movq %rax, 48(%rsp)
    movups %xmm0, 64(%rsp)
    movups %xmm1, 80(%rsp)
    movups %xmm2, 96(%rsp)
    movups %xmm3, 112(%rsp)
    movups %xmm4, 128(%rsp)
    movups %xmm5, 144(%rsp)
    movups %xmm6, 160(%rsp)
    movups %xmm7, 176(%rsp)
    movq 8(%rbp), %rdi
    movq %rsp, %rsi
    leaq 24(%rbp), %rdx
    call \function
    movq %rax, %r11
    movq 0(%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movq 48(%rsp), %rax
    movups 64(%rsp), %xmm0
    movups 80(%rsp), %xmm1
    movups 96(%rsp), %xmm2
    movups 112(%rsp), %xmm3
    movups 128(%rsp), %xmm4
    movups 144(%rsp), %xmm5
    movups 160(%rsp), %xmm6
    movups 176(%rsp), %xmm7
    movq %rbp, %rsp
    popq %rbp
    .cfi_adjust_cfa_offset -8
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
.endm

    .text
    .p2align 4
    .type shim_lazy, @function
shim_lazy:
    .cfi_startproc
    .cfi_def_cfa_offset 16
    CALL_KEEPING_ARGUMENTS shim_resolve
    jmp *%r11
    .cfi_endproc
    .size shim_lazy, .-shim_lazy

    .p2align 4
    .type shim_gate_slow, @function
shim_gate_slow:
    .cfi_startproc
    .cfi_def_cfa_offset 16
    CALL_KEEPING_ARGUMENTS shim_gate_wait
    jmp *%r11
    .cfi_endproc
    .size shim_gate_slow, .-shim_gate_slow

.macro LAZY_TABLE count
    .data
    .p2align 6
    .globl shim_target
    .hidden shim_target
    .type shim_target, @object
    .size shim_target, 8*\count
shim_target:
.endm

.macro LAZY_ENTRY index
    .text
    .p2align 3
shim_lazy_\index:
    endbr64
    pushq $\index
    jmp shim_lazy
    .data
    .quad shim_lazy_\index
.endm

    .section .note.GNU-stack, "", @progbits
    .text

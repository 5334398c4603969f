/* Calls the two entry points of test/native/drivers/many_arguments.c twice each: the first call resolves the name.
 * Prints a line for each call: the name, and how many of its arguments, of its result and of the preserved registers
 * were wrong. Linked with the driver by name. */
#include "arguments.h"

#include <stdio.h>
#include <string.h>

#define GIVE(i) ARGUMENT(i), DOUBLE_ARGUMENT(i),
static unsigned call(many_arguments function, const char *name) {
    /* Held over the call, in registers that a call must keep as far as they go. */
    uint64_t kept[12];
    double halves[12];
    for (unsigned i = 0; i < 12; i++) kept[i] = ARGUMENT(i) + strlen(name), halves[i] = (double)strlen(name) / (i + 3);
    const struct answer answer = function(
        VECTOR_ARGUMENT(0), VECTOR_ARGUMENT(1), VECTOR_ARGUMENT(2), VECTOR_ARGUMENT(3), INTEGERS(GIVE) MORE,
        GIVE(0) GIVE(1) GIVE(2) GIVE(3) GIVE(4) GIVE(5) GIVE(6) GIVE(7) GIVE(8) ARGUMENT(9), DOUBLE_ARGUMENT(9));
    unsigned wrong = (unsigned)answer.wrong + (answer.sum != strlen(name));
    for (unsigned i = 0; i < 8; i++) wrong += answer.words[i] != (ARGUMENT(i) ^ strlen(name));
    for (unsigned i = 0; i < 12; i++)
        wrong += kept[i] != ARGUMENT(i) + strlen(name) || halves[i] != (double)strlen(name) / (i + 3);
    return wrong;
}

extern int cuInit(unsigned flags);
extern struct answer cuFuncGetName(TAKE_VECTORS, INTEGERS(TAKE) int more, ...);
extern struct answer cuLaunchCooperativeKernelMultiDevice(TAKE_VECTORS, INTEGERS(TAKE) int more, ...);

int main(void) {
    printf("cuInit %d\n", cuInit(0));
    for (int round = 0; round < 2; round++) {
        printf("cuFuncGetName %u\n", call(cuFuncGetName, "cuFuncGetName"));
        printf("cuLaunchCooperativeKernelMultiDevice %u\n",
               call(cuLaunchCooperativeKernelMultiDevice, "cuLaunchCooperativeKernelMultiDevice"));
    }
    return 0;
}

/* A driver of two entry points, one forwarded and one gated, that check each of their arguments; and the calls needed
 * to attach to a grant. */
#include "../programs/symbols/arguments.h"

#include <stddef.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static int differs(vector a, vector b) {
    return a[0] != b[0] || a[1] != b[1] || a[2] != b[2] || a[3] != b[3];
}

#define LOOK(i) wrong += n##i != ARGUMENT(i) || d##i != DOUBLE_ARGUMENT(i);
#define ENTRY_POINT(name)                                                                                              \
    EXPORT struct answer name(TAKE_VECTORS, INTEGERS(TAKE) int more, ...);                                             \
    struct answer name(TAKE_VECTORS, INTEGERS(TAKE) int more, ...) {                                                   \
        struct answer answer = {.sum = strlen(#name)};                                                                 \
        unsigned wrong = 0;                                                                                            \
        INTEGERS(LOOK)                                                                                                 \
        wrong += differs(v0, VECTOR_ARGUMENT(0)) + differs(v1, VECTOR_ARGUMENT(1)) + differs(v2, VECTOR_ARGUMENT(2)) + \
                 differs(v3, VECTOR_ARGUMENT(3)) + (more != MORE);                                                     \
        va_list rest;                                                                                                  \
        va_start(rest, more);                                                                                          \
        for (int i = 0; i < MORE; i++) {                                                                               \
            wrong += va_arg(rest, uint64_t) != ARGUMENT(i);                                                            \
            wrong += va_arg(rest, double) != DOUBLE_ARGUMENT(i);                                                       \
        }                                                                                                              \
        va_end(rest);                                                                                                  \
        answer.wrong = wrong;                                                                                          \
        for (int i = 0; i < 8; i++) answer.words[i] = ARGUMENT(i) ^ answer.sum;                                        \
        return answer;                                                                                                 \
    }
ENTRY_POINT(cuFuncGetName)
ENTRY_POINT(cuLaunchCooperativeKernelMultiDevice)

EXPORT int cuInit(unsigned flags);
EXPORT int cuInit(unsigned flags) {
    return 0;
}
EXPORT int cuDeviceGetCount(int *count);
EXPORT int cuDeviceGetCount(int *count) {
    *count = 1;
    return 0;
}
EXPORT int cuDeviceGetUuid(unsigned char *uuid, int device);
EXPORT int cuDeviceGetUuid(unsigned char *uuid, int device) {
    memset(uuid, 0x11, 16);
    return 0;
}

/* A driver in which every entry point returns its own number, so that a test sees which one a call has reached. */
#include "../../../native/abi/generated/cuda_symbols.h"

#define ECHO(index, symbol)                                  \
    __attribute__((visibility("default"))) int symbol(void); \
    int symbol(void) {                                       \
        return 10000 + (index);                              \
    }
ABI_CUDA_SYMBOLS(ECHO)

/* Every entry point that is not simulated exists and returns NOT_SUPPORTED. The export tables are among them on
 * purpose: programs whose runtime wants the driver to prove that it is NVIDIA's do not run on the simulated one. */
#include "../../../abi/generated/cuda_symbols.h"
#include "../sim.h"

static abi_result unsupported(const char *name) {
    SIM_ENTER(name);
    return ABI_ERROR_NOT_SUPPORTED;
}

/* Weak: a real definition in another file takes precedence. */
#define STUB(index, symbol)                                                \
    __attribute__((weak, visibility("default"))) abi_result symbol(void) { \
        return unsupported(#symbol);                                       \
    }
ABI_CUDA_SYMBOLS(STUB)

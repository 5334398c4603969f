/* A preloaded tool in front of the driver that forwards to the next one. Each adds STEP bytes to the total memory,
 * which shows the tools that a call passed. */
#include <dlfcn.h>

#include "../../../native/abi/cuda.h"

__attribute__((visibility("default"))) abi_result cuMemGetInfo_v2(size_t *left, size_t *total);
__attribute__((visibility("default"))) abi_result cuMemGetInfo_v2(size_t *left, size_t *total) {
    abi_result (*next)(size_t *, size_t *) = (abi_result (*)(size_t *, size_t *))dlsym(RTLD_NEXT, "cuMemGetInfo_v2");
    abi_result result = next ? next(left, total) : ABI_ERROR_NOT_FOUND;
    if (result == ABI_SUCCESS) *total += STEP;
    return result;
}

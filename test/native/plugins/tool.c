/* A tool that stands before the driver by a preload of its own and hands on to whoever comes next. Each adds STEP bytes
 * to the total, which tells through whom a call went. */
#include <dlfcn.h>

#include "../../../native/abi/cuda.h"

__attribute__((visibility("default"))) abi_result cuMemGetInfo_v2(size_t *left, size_t *total);
__attribute__((visibility("default"))) abi_result cuMemGetInfo_v2(size_t *left, size_t *total) {
    abi_result (*next)(size_t *, size_t *) = (abi_result (*)(size_t *, size_t *))dlsym(RTLD_NEXT, "cuMemGetInfo_v2");
    abi_result result = next ? next(left, total) : ABI_ERROR_NOT_FOUND;
    if (result == ABI_SUCCESS) *total += STEP;
    return result;
}

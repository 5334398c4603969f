/* Entry points of a future driver: a new variant of a known allocation and of a known launch, and unknown names. Only
 * the library of CUDA 14.0 exports them; newer-driver.facts lists them. */
#include "newer.h"

extern abi_result cuMemAlloc_v2(abi_devptr *pointer, size_t bytes);
extern abi_result cuMemFree_v2(abi_devptr pointer);

SIM_EXPORT abi_result cuMemAlloc_v3(abi_devptr *pointer, uint64_t flags, size_t bytes) {
    SIM_ENTER("cuMemAlloc_v3");
    return flags ? ABI_ERROR_INVALID_VALUE : cuMemAlloc_v2(pointer, bytes);
}

SIM_ROW(cuTensorHeapCreate, (abi_devptr * heap, size_t bytes), cuMemAlloc_v2(heap, bytes))

SIM_ROW(cuTensorHeapDestroy, (abi_devptr heap), cuMemFree_v2(heap))

SIM_EXPORT abi_result cuLaunchKernel_v2(void) {
    SIM_ENTER("cuLaunchKernel_v2");
    return ABI_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT abi_result cuLaunchKernel_v2_ptsz(void) {
    SIM_ENTER("cuLaunchKernel_v2_ptsz");
    return ABI_ERROR_NOT_SUPPORTED;
}

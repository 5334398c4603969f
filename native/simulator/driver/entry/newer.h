/* Entry points of newer.c, for the look-up. */
#pragma once

#include "../sim.h"

extern abi_result cuMemAlloc_v3(abi_devptr *pointer, uint64_t flags, size_t bytes);
extern abi_result cuTensorHeapCreate(abi_devptr *heap, size_t bytes);
extern abi_result cuTensorHeapDestroy(abi_devptr heap);
extern abi_result cuLaunchKernel_v2(void);
extern abi_result cuLaunchKernel_v2_ptsz(void);

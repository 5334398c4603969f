/* cuMemGetInfo and cuDeviceTotalMem: the total is the grant, free is what the container may still allocate, but
 * never more than the GPU really has. A caller may pass either pointer alone. */
#include "../accounting/exported.h"
#include "../accounting/quota.h"
#include "../contexts/current.h"
#include "../core/driver_calls.h"
#include "ordered_frees.h"
#include "pools/pools.h"

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static bool slice_of_current(uint64_t *total, uint64_t *left) {
    uint32_t gpu;
    void *context;
    if (!cot_attached() || cot_current_context(&gpu, &context) != ABI_SUCCESS) return false;
    if (gpu == COT_NO_GPU) {
        *total = *left = 0;
        return true;
    }
    struct cot_gpu_limits limits;
    cot_read_limits(gpu, &limits);
    if (!limits.isolate) return false;
    cot_pools_read_back();
    cot_ordered_frees_settle();
    cot_exported_settle();
    cot_reap(); /* dead processes hold nothing, but for what others may have open */
    uint64_t held = cot_container_usage(gpu);
    *total = limits.memory_bytes;
    *left = held < limits.memory_bytes ? limits.memory_bytes - held : 0;
    return true;
}

abi_result cot_cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    uint64_t slice, left;
    abi_result result = CALL_REAL(cuMemGetInfo_v2, (size_t *, size_t *), free_bytes, total);
    if (result != ABI_SUCCESS || !slice_of_current(&slice, &left)) return result;
    if (total) *total = smaller(*total, slice);
    if (free_bytes) *free_bytes = smaller(*free_bytes, left);
    return result;
}

abi_result cot_cuMemGetInfo(unsigned *free_bytes, unsigned *total) {
    uint64_t slice, left;
    abi_result result = CALL_REAL(cuMemGetInfo, (unsigned *, unsigned *), free_bytes, total);
    if (result != ABI_SUCCESS || !slice_of_current(&slice, &left)) return result;
    if (total) *total = (unsigned)smaller(*total, slice);
    if (free_bytes) *free_bytes = (unsigned)smaller(*free_bytes, left);
    return result;
}

static bool slice_of_device(abi_device device, uint64_t *total) {
    if (!cot_attached()) return false;
    uint32_t gpu = cot_gpu_of(device);
    struct cot_gpu_limits limits = {.isolate = true};
    if (gpu != COT_NO_GPU) cot_read_limits(gpu, &limits);
    *total = limits.memory_bytes;
    return limits.isolate;
}

abi_result cot_cuDeviceTotalMem_v2(size_t *bytes, abi_device device) {
    uint64_t slice;
    abi_result result = CALL_REAL(cuDeviceTotalMem_v2, (size_t *, abi_device), bytes, device);
    if (result == ABI_SUCCESS && bytes && slice_of_device(device, &slice)) *bytes = smaller(*bytes, slice);
    return result;
}

abi_result cot_cuDeviceTotalMem(unsigned *bytes, abi_device device) {
    uint64_t slice;
    abi_result result = CALL_REAL(cuDeviceTotalMem, (unsigned *, abi_device), bytes, device);
    if (result == ABI_SUCCESS && bytes && slice_of_device(device, &slice)) *bytes = (unsigned)smaller(*bytes, slice);
    return result;
}

/* NVML inside a container: memory is that of the grant, and only granted GPUs are listed. Process lists are in
 * processes.c, utilization in utilization.c; everything else is the driver's answer. */
#include "answers.h"

bool nvml_gpu_of(nvml_abi_device device, uint32_t *gpu) {
    char uuid[NVML_ABI_UUID_BYTES];
    nvml_abi_return (*get)(nvml_abi_device, char *, unsigned) = shim_real_by_name("nvmlDeviceGetUUID");
    return grant_is_readable() && get && get(device, uuid, sizeof uuid) == NVML_ABI_SUCCESS &&
           grant_find_gpu(uuid, gpu);
}

/* ---- memory ---- */

nvml_abi_return cot_nvmlDeviceGetMemoryInfo(nvml_abi_device device, struct nvml_abi_memory_v1 *out) {
    nvml_abi_return result = CALL_REAL(nvmlDeviceGetMemoryInfo, device, out);
    uint32_t gpu;
    struct grant_gpu now;
    if (result != NVML_ABI_SUCCESS || !out || !nvml_gpu_of(device, &gpu)) return result;
    grant_gpu_usage(gpu, &now);
    if (now.isolate)
        *out = (struct nvml_abi_memory_v1){
            .total = now.memory_bytes, .used = now.held_bytes, .free = now.memory_bytes - now.held_bytes};
    return result;
}

/* `reserved` is 0: what the driver keeps for itself is not the container's. */
nvml_abi_return cot_nvmlDeviceGetMemoryInfo_v2(nvml_abi_device device, struct nvml_abi_memory_v2 *out) {
    nvml_abi_return result = CALL_REAL(nvmlDeviceGetMemoryInfo_v2, device, out);
    uint32_t gpu;
    struct grant_gpu now;
    if (result != NVML_ABI_SUCCESS || !out || !nvml_gpu_of(device, &gpu)) return result;
    grant_gpu_usage(gpu, &now);
    if (!now.isolate) return result;
    out->total = now.memory_bytes;
    out->reserved = 0;
    out->used = now.held_bytes;
    out->free = now.memory_bytes - now.held_bytes;
    return result;
}

/* ---- GPUs ---- */

nvml_abi_return cot_nvmlDeviceGetCount_v2(unsigned *count);
nvml_abi_return cot_nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_abi_device *device);

/* Handles of the granted GPUs that the driver shows, in the order of the grant, which is CUDA's as well. In a container
 * these are all GPUs; a process on a plain machine sees more, and lists its own. */
static unsigned granted(nvml_abi_device *handles) {
    nvml_abi_device of_grant[COT_MAX_GPUS] = {0}, device = NULL;
    unsigned all = 0, found = 0;
    uint32_t gpu;
    if (CALL_REAL(nvmlDeviceGetCount_v2, &all) != NVML_ABI_SUCCESS) return 0;
    for (unsigned i = 0; i < all; i++) {
        if (CALL_REAL(nvmlDeviceGetHandleByIndex_v2, i, &device) == NVML_ABI_SUCCESS && nvml_gpu_of(device, &gpu))
            of_grant[gpu] = device;
    }
    for (gpu = 0; gpu < COT_MAX_GPUS; gpu++) {
        if (of_grant[gpu]) handles[found++] = of_grant[gpu];
    }
    return found;
}

static nvml_abi_return count_gpus(void *address, unsigned *count) {
    nvml_abi_return (*real)(unsigned *) = (nvml_abi_return (*)(unsigned *))address;
    nvml_abi_device handles[COT_MAX_GPUS];
    if (!real) return (nvml_abi_return)shim_missing();
    nvml_abi_return result = real(count);
    if (result == NVML_ABI_SUCCESS && count && grant_is_readable()) *count = granted(handles);
    return result;
}
nvml_abi_return cot_nvmlDeviceGetCount(unsigned *count) {
    return count_gpus(shim_real(COT_AT_nvmlDeviceGetCount), count);
}
nvml_abi_return cot_nvmlDeviceGetCount_v2(unsigned *count) {
    return count_gpus(shim_real(COT_AT_nvmlDeviceGetCount_v2), count);
}

static nvml_abi_return handle_at(void *address, unsigned index, nvml_abi_device *device) {
    nvml_abi_return (*real)(unsigned, nvml_abi_device *) = (nvml_abi_return (*)(unsigned, nvml_abi_device *))address;
    nvml_abi_device handles[COT_MAX_GPUS];
    if (!real) return (nvml_abi_return)shim_missing();
    if (!device || !grant_is_readable()) return real(index, device);
    nvml_abi_return result = real(0, device); /* not initialized, GPU lost: the driver's error */
    if (result != NVML_ABI_SUCCESS) return result;
    if (index >= granted(handles)) return NVML_ABI_INVALID_ARGUMENT;
    *device = handles[index];
    return NVML_ABI_SUCCESS;
}
nvml_abi_return cot_nvmlDeviceGetHandleByIndex(unsigned index, nvml_abi_device *device) {
    return handle_at(shim_real(COT_AT_nvmlDeviceGetHandleByIndex), index, device);
}
nvml_abi_return cot_nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_abi_device *device) {
    return handle_at(shim_real(COT_AT_nvmlDeviceGetHandleByIndex_v2), index, device);
}

nvml_abi_return cot_nvmlDeviceGetIndex(nvml_abi_device device, unsigned *index) {
    nvml_abi_return result = CALL_REAL(nvmlDeviceGetIndex, device, index);
    nvml_abi_device handles[COT_MAX_GPUS];
    if (result != NVML_ABI_SUCCESS || !index || !grant_is_readable()) return result;
    unsigned count = granted(handles);
    for (unsigned i = 0; i < count; i++) {
        if (handles[i] == device) *index = i;
    }
    return result;
}

/* ---- handles by identity and by place: of granted GPUs only ---- */

static nvml_abi_return handle_of(void *address, const void *identity, nvml_abi_device *device) {
    nvml_abi_return (*real)(const void *, nvml_abi_device *) =
        (nvml_abi_return (*)(const void *, nvml_abi_device *))address;
    nvml_abi_device found;
    uint32_t gpu;
    if (!real) return (nvml_abi_return)shim_missing();
    if (!device || !grant_is_readable()) return real(identity, device);
    nvml_abi_return result = real(identity, &found);
    if (result != NVML_ABI_SUCCESS) return result;
    if (!nvml_gpu_of(found, &gpu)) return NVML_ABI_NOT_FOUND;
    *device = found;
    return NVML_ABI_SUCCESS;
}
#define HANDLE_OF(symbol)                                                         \
    nvml_abi_return cot_##symbol(const void *identity, nvml_abi_device *device) { \
        return handle_of(shim_real(COT_AT_##symbol), identity, device);           \
    }
HANDLE_OF(nvmlDeviceGetHandleByUUID)
HANDLE_OF(nvmlDeviceGetHandleByUUIDV)
HANDLE_OF(nvmlDeviceGetHandleBySerial)
HANDLE_OF(nvmlDeviceGetHandleByPciBusId)
HANDLE_OF(nvmlDeviceGetHandleByPciBusId_v2)

/* Reduces a list of the driver's to the granted GPUs in it. A count of 0 asks how many there are. */
static nvml_abi_return keep_granted(const nvml_abi_device *all, unsigned listed, unsigned *count,
                                    nvml_abi_device *devices) {
    unsigned capacity = devices && *count ? *count : 0, kept = 0;
    uint32_t gpu;
    for (unsigned i = 0; i < listed; i++) {
        if (!nvml_gpu_of(all[i], &gpu)) continue;
        if (kept < capacity) devices[kept] = all[i];
        kept++;
    }
    *count = capacity && kept > capacity ? capacity : kept;
    return NVML_ABI_SUCCESS;
}
#define MOST_GPUS 256u
/* The body of a function that lists GPUs, with the arguments that come before `count` and `devices`. */
#define LIST_GRANTED(symbol, ...)                                                                    \
    nvml_abi_device all[MOST_GPUS] = {0};                                                            \
    unsigned listed = 0;                                                                             \
    if (!count || !grant_is_readable()) return CALL_REAL(symbol, __VA_ARGS__, count, devices);       \
    nvml_abi_return result = CALL_REAL(symbol, __VA_ARGS__, &listed, NULL);                          \
    if (listed > MOST_GPUS) listed = MOST_GPUS;                                                      \
    if (result == NVML_ABI_SUCCESS && listed) result = CALL_REAL(symbol, __VA_ARGS__, &listed, all); \
    return result == NVML_ABI_SUCCESS ? keep_granted(all, listed, count, devices) : result

nvml_abi_return cot_nvmlDeviceGetTopologyNearestGpus(nvml_abi_device device, int level, unsigned *count,
                                                     nvml_abi_device *devices) {
    LIST_GRANTED(nvmlDeviceGetTopologyNearestGpus, device, level);
}
nvml_abi_return cot_nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvml_abi_device *devices) {
    LIST_GRANTED(nvmlSystemGetTopologyGpuSet, cpu);
}

const char *cot_nvmlErrorString(nvml_abi_return code) {
    __typeof__(&cot_nvmlErrorString) real = REAL(nvmlErrorString);
    return real ? real(code) : "NVML Shared Library Not Found";
}

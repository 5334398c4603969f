/* The limits of each GPU as the limits page has them, and which GPU of the grant a device or memory location is. */
#include "grant.h"

#include "../../../shared-memory/ledger.h"
#include "../core/driver_calls.h"

uint32_t cot_gpu_of(abi_device device) {
    return device >= 0 && device < cot->at.device_count ? cot->at.gpu_of[device] : COT_NO_GPU;
}

abi_result cot_find_gpu_of_device(abi_device device, uint32_t *gpu) {
    *gpu = cot_gpu_of(device);
    if (device < 0 || device >= cot->at.device_count) return ABI_ERROR_INVALID_DEVICE;
    return *gpu == COT_NO_GPU ? ABI_ERROR_OUT_OF_MEMORY : ABI_SUCCESS; /* a GPU that is not granted */
}

bool cot_is_host_location(const abi_location *location) {
    return location->type == ABI_LOCATION_HOST || location->type == ABI_LOCATION_HOST_NUMA ||
           location->type == ABI_LOCATION_HOST_NUMA_CURRENT;
}

/* The driver's error for a location that it does not know either, and not supported for one that it knows. */
static abi_result refusal_of(const abi_location *location) {
    abi_vmm_prop prop = {.type = ABI_ALLOCATION_PINNED, .location = *location};
    size_t granularity;
    abi_result result = CALL_DRIVER("cuMemGetAllocationGranularity", (size_t *, const abi_vmm_prop *, int),
                                    &granularity, &prop, ABI_GRANULARITY_MINIMUM);
    return result == ABI_SUCCESS ? ABI_ERROR_NOT_SUPPORTED : result;
}

/* A location type unknown to this build may be GPU memory, on an unknown GPU. So it is charged if the
 * process sees one GPU, and refused if it sees several: charging the wrong GPU would let the
 * program pass its limit on the right one. */
abi_result cot_find_gpu_of_location(const abi_location *location, uint32_t *gpu) {
    switch (location->type) {
    case ABI_LOCATION_DEVICE: return cot_find_gpu_of_device(location->id, gpu);
    case ABI_LOCATION_DEVICE_LOCALITY_DOMAIN: return cot_find_gpu_of_device(location->id & 0xff, gpu);
    default: return cot->at.device_count == 1 ? cot_find_gpu_of_device(0, gpu) : refusal_of(location);
    }
}

/* Repeats if the page changed meanwhile: another thread may have reported a later engine, which an earlier one must
 * not replace. */
static void report_wanted_engine(void) {
    const uint32_t *wanted = &cot->at.page->header.engine;
    uint32_t reported;
    do cot_services->want_engine(reported = __atomic_load_n(wanted, __ATOMIC_SEQ_CST));
    while (reported != __atomic_load_n(wanted, __ATOMIC_SEQ_CST));
}

/* Reads the entry until its check word is right, as the agent rewrites it in one short write. Also reads which
 * engine the page names. */
void cot_refresh_limits(uint32_t gpu, uint64_t generation) {
    struct cot_limits_page_gpu entry;
    report_wanted_engine();
    for (int tries = 0;; tries++) {
        const volatile uint64_t *from = (const volatile uint64_t *)&cot->at.page->gpus[gpu];
        uint64_t *to = (uint64_t *)&entry;
        for (unsigned i = 0; i < sizeof entry / sizeof *to; i++) to[i] = from[i];
        if (entry.check == cot_check(&entry, COT_GPU_WORDS)) break;
        if (tries == 1000) { /* never consistent: it grants nothing */
            entry.memory_bytes = 0;
            break;
        }
    }
    atomic_store_explicit(&cot->limits[gpu].memory_bytes, entry.memory_bytes, memory_order_relaxed);
    uint64_t context_bytes = (entry.context_bytes + COT_PENDING_GRAIN - 1) & ~(COT_PENDING_GRAIN - 1);
    atomic_store_explicit(&cot->limits[gpu].context_bytes, context_bytes, memory_order_relaxed);
    /* The granule never changes once allocations were counted with it. */
    uint64_t unset = 0, granule = entry.granule_bytes ? entry.granule_bytes : 2u << 20;
    atomic_compare_exchange_strong(&cot->limits[gpu].granule_bytes, &unset, granule);
    atomic_store_explicit(&cot->limits[gpu].flags, entry.flags, memory_order_relaxed);
    atomic_store_explicit(&cot->limits[gpu].generation, generation + 1, memory_order_release);
}

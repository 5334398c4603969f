/* The container's grant as this process sees it: whether it is attached, and the limits of each GPU.
 *
 * The grant is the limits page (written by the agent, mapped read-only); the charge on it is this process's slot of the
 * usage ledger plus those of the container's other processes. A process without a limits page gets no further than
 * cuInit, so nothing is charged in it. */
#pragma once

#include "../../../shared-memory/limits_page.h"
#include "../core/engine.h"

#pragma GCC visibility push(hidden)

/* True in an attached process, and false in its forked children. Calls that take no memory check this alone. */
static inline bool cot_attached(void) {
    return __builtin_expect(atomic_load_explicit(&cot->at.attached, memory_order_acquire) && *cot->at.alive, 1);
}
abi_result cot_attach_slow(void);
/* ABI_SUCCESS once limits page and ledger are mapped and this process has a slot. Every call that takes memory begins
 * with it and returns its error: a process without a readable grant takes no memory, even if it never called cuInit. */
static inline abi_result cot_attach(void) {
    return cot_attached() ? ABI_SUCCESS : cot_attach_slow();
}
/* Writes the numbers of the working engine and of the last refused one into the slot. */
void cot_record_engine(void);

static inline uint32_t cot_gpu_count(void) {
    return cot->at.gpu_count;
}
static inline const struct cot_limits_page *cot_mapped_limits_page(void) {
    return cot->at.page;
}

/* A GPU entry of the limits page, as last read consistently. */
struct cot_gpu_limits {
    uint64_t memory_bytes, context_bytes, granule_bytes;
    bool isolate, releases_late;
};
void cot_refresh_limits(uint32_t gpu, uint64_t generation);
static inline void cot_read_limits(uint32_t gpu, struct cot_gpu_limits *limits) {
    const struct cot_cached_limits *seen = &cot->limits[gpu];
    const struct cot_limits_page_header *header = &cot->at.page->header;
    uint64_t generation = __atomic_load_n(&header->generation, __ATOMIC_ACQUIRE);
    if (__builtin_expect(atomic_load_explicit(&seen->generation, memory_order_acquire) != generation + 1, 0))
        cot_refresh_limits(gpu, generation);
    limits->memory_bytes = atomic_load_explicit(&seen->memory_bytes, memory_order_relaxed);
    limits->context_bytes = atomic_load_explicit(&seen->context_bytes, memory_order_relaxed);
    limits->granule_bytes = atomic_load_explicit(&seen->granule_bytes, memory_order_relaxed);
    limits->releases_late = atomic_load_explicit(&seen->flags, memory_order_relaxed) & COT_GPU_RELEASES_LATE;
    limits->isolate = __atomic_load_n(&header->flags, __ATOMIC_RELAXED) & COT_LIMITS_PAGE_ISOLATE_MEMORY;
}
/* The GPU's granule, in a process that has read its limits before. It never changes after that. */
static inline uint64_t cot_granule(uint32_t gpu) {
    return atomic_load_explicit(&cot->limits[gpu].granule_bytes, memory_order_relaxed);
}
/* The GPU of the grant behind a device ordinal, or COT_NO_GPU. */
uint32_t cot_gpu_of(abi_device device);
/* The same, or the error that a call for this device returns: there is no such device, or it may not allocate there. */
abi_result cot_find_gpu_of_device(abi_device device, uint32_t *gpu);
bool cot_is_host_location(const abi_location *location);
/* The GPU whose memory a location takes that is not the host's; an error if the container may not allocate there. */
abi_result cot_find_gpu_of_location(const abi_location *location, uint32_t *gpu);

#pragma GCC visibility pop

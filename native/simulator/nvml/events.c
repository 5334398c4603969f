/* Event sets: events of a GPU after its registration, in order, each once per set. */
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nvml.h"

#define SUPPORTED ((uint64_t)NVML_ABI_EVENT_XID)
#define LONGEST_WAIT_NS 999999999ull /* the node may be gone and wake no thread */

struct set {
    _Atomic uint64_t types[SIM_MAX_GPUS]; /* registered */
    uint32_t seen;                        /* number of the last event examined by the waiting thread */
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

NVML_VALUE(nvmlDeviceGetSupportedEventTypes, uint64_t, SUPPORTED)

NVML_EXPORT nvmlEventSetCreate(struct set **out) {
    NVML_ENTER(out);
    struct set *set = calloc(1, sizeof *set);
    if (!set) return NVML_ABI_MEMORY;
    set->seen = atomic_load(&nvml_facts->newest_event);
    *out = set;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlEventSetFree(struct set *set) {
    NVML_ENTER(true);
    free(set);
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceRegisterEvents(nvml_abi_device device, unsigned long long types, struct set *set) {
    NVML_ENTER_GPU(set);
    NVML_REQUIRE(!(types & ~SUPPORTED), NVML_ABI_NOT_SUPPORTED);
    atomic_fetch_or(&set->types[gpu], types);
    return NVML_ABI_SUCCESS;
}

/* The next event that the set is registered for; NOT_FOUND: none yet. */
static nvml_abi_return next(struct set *set, struct nvml_abi_event_data *out) {
    while (set->seen != atomic_load(&nvml_facts->newest_event)) {
        struct sim_driver_event event;
        struct sim_reply reply;
        NVML_TRY(nvml_ask(SIM_EVENT, nvml_gpus[0], set->seen, &reply, &event, sizeof event));
        if (reply.payload_bytes != sizeof event) return NVML_ABI_NOT_FOUND;
        set->seen = event.number;
        if (event.gpu >= nvml_facts->gpu_count) continue;
        /* Events of a MIG instance are reported for its GPU, with the instance's IDs. */
        const struct sim_gpu_facts *facts = &nvml_facts->gpus[event.gpu];
        uint32_t gpu = facts->parent ? facts->parent - 1 : event.gpu;
        if (!(atomic_load(&set->types[gpu]) & event.type)) continue;
        *out = (struct nvml_abi_event_data){.device = nvml_handle(gpu),
                                            .type = event.type,
                                            .data = event.data,
                                            .gpu_instance = facts->parent ? facts->gpu_instance : NVML_ABI_NO_INSTANCE,
                                            .compute_instance =
                                                facts->parent ? facts->compute_instance : NVML_ABI_NO_INSTANCE};
        return NVML_ABI_SUCCESS;
    }
    return NVML_ABI_NOT_FOUND;
}

static nvml_abi_return wait_for(struct set *set, struct nvml_abi_event_data *out, unsigned timeout_ms) {
    for (uint64_t until = now_ns() + timeout_ms * 1000000ull;;) {
        uint32_t newest = atomic_load(&nvml_facts->newest_event);
        nvml_abi_return result = next(set, out);
        if (result != NVML_ABI_NOT_FOUND) return result;
        uint64_t now = now_ns();
        if (now >= until) return NVML_ABI_TIMEOUT;
        uint64_t left = until - now < LONGEST_WAIT_NS ? until - now : LONGEST_WAIT_NS;
        struct timespec limit = {.tv_sec = 0, .tv_nsec = (long)left};
        syscall(SYS_futex, &nvml_facts->newest_event, FUTEX_WAIT, newest, &limit, NULL, 0);
    }
}
NVML_EXPORT nvmlEventSetWait_v2(struct set *set, struct nvml_abi_event_data *out, unsigned timeout_ms) {
    NVML_ENTER(set && out);
    return wait_for(set, out, timeout_ms);
}
/* The first form has no instance IDs: its structure ends before them. */
NVML_EXPORT nvmlEventSetWait(struct set *set, struct nvml_abi_event_data *out, unsigned timeout_ms) {
    NVML_ENTER(set && out);
    struct nvml_abi_event_data data;
    NVML_TRY(wait_for(set, &data, timeout_ms));
    memcpy(out, &data, offsetof(struct nvml_abi_event_data, gpu_instance));
    return NVML_ABI_SUCCESS;
}

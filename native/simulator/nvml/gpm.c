/* GPM counters: samples at two times, and how busy the GPU's units were in between. */
#include <stdlib.h>

#include "nvml.h"

#define GPM_MAGIC 0x47504d53u
#define LEAST_NS 100000000ull /* the driver refreshes its own readings no faster */

#define GPM_HOPPER 9 /* lowest major compute capability with such counters */

struct gpm_sample {
    uint32_t magic;
    uint32_t gpu;
    struct sim_counters counters; /* at_ns 0: no sample yet */
};

NVML_EXPORT nvmlGpmQueryDeviceSupport(nvml_abi_device device, struct nvml_abi_gpm_support *support) {
    NVML_ENTER_GPU(support);
    NVML_REQUIRE(support->version == NVML_ABI_GPM_VERSION, NVML_ABI_ARGUMENT_VERSION_MISMATCH);
    support->supported = NVML_FACTS->cc_major >= GPM_HOPPER;
    return NVML_ABI_SUCCESS;
}

NVML_EXPORT nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    NVML_ENTER(sample);
    *sample = calloc(1, sizeof **sample);
    if (!*sample) return NVML_ABI_MEMORY;
    (*sample)->magic = GPM_MAGIC;
    return NVML_ABI_SUCCESS;
}

NVML_EXPORT nvmlGpmSampleFree(struct gpm_sample *sample) {
    NVML_ENTER(sample && sample->magic == GPM_MAGIC);
    sample->magic = 0;
    free(sample);
    return NVML_ABI_SUCCESS;
}

/* Reads the counters of a GPU or instance, which is a GPU of the node. */
static nvml_abi_return fill(uint32_t gpu, struct gpm_sample *sample) {
    struct sim_reply reply;
    NVML_REQUIRE(NVML_FACTS->cc_major >= GPM_HOPPER, NVML_ABI_NOT_SUPPORTED);
    NVML_REQUIRE(sample && sample->magic == GPM_MAGIC, NVML_ABI_INVALID_ARGUMENT);
    sample->gpu = gpu;
    sample->counters.at_ns = 0;
    return nvml_ask(SIM_COUNTERS, gpu, 0, &reply, &sample->counters, sizeof sample->counters);
}

/* A GPU divided by MIG has counters only for its instances. */
NVML_EXPORT nvmlGpmSampleGet(nvml_abi_device device, struct gpm_sample *sample) {
    NVML_ENTER_GPU(true);
    NVML_UNDIVIDED();
    return fill(gpu, sample);
}
NVML_EXPORT nvmlGpmMigSampleGet(nvml_abi_device device, unsigned gpu_instance, struct gpm_sample *sample) {
    NVML_ENTER_GPU(true);
    NVML_REQUIRE(NVML_FACTS->divided, NVML_ABI_NOT_SUPPORTED);
    for (uint32_t i = 0; i < nvml_facts->gpu_count; i++) {
        const struct sim_gpu_facts *facts = &nvml_facts->gpus[i];
        if (facts->parent == gpu + 1 && facts->gpu_instance == gpu_instance) return fill(i, sample);
    }
    return NVML_ABI_INVALID_ARGUMENT;
}

static void fill_metric(const struct sim_counters *first, const struct sim_counters *second,
                        struct nvml_abi_gpm_metric *metric) {
    static const uint32_t ACTIVE[SIM_ACTIVE_COUNT] = {NVML_ABI_GPM_OCCUPANCY, NVML_ABI_GPM_TENSOR, NVML_ABI_GPM_DRAM,
                                                      NVML_ABI_GPM_FP32};
    double percent = 100.0 / (double)(second->at_ns - first->at_ns);
    metric->result = NVML_ABI_SUCCESS;
    metric->value = 0;
    if (metric->id == NVML_ABI_GPM_GRAPHICS) {
        metric->value = (double)(second->busy_ns - first->busy_ns) * percent;
        return;
    }
    if (metric->id == NVML_ABI_GPM_SM) {
        metric->value = (double)(second->sm_ns - first->sm_ns) * percent;
        return;
    }
    for (int i = 0; i < SIM_ACTIVE_COUNT; i++) {
        if (metric->id != ACTIVE[i] || !(second->configured & 1u << i)) continue;
        metric->value = (double)(second->active_ns[i] - first->active_ns[i]) * percent;
        return;
    }
    metric->result = NVML_ABI_NOT_SUPPORTED;
}

NVML_EXPORT nvmlGpmMetricsGet(struct nvml_abi_gpm_request *request) {
    NVML_ENTER(request);
    NVML_REQUIRE(request->version == NVML_ABI_GPM_VERSION, NVML_ABI_ARGUMENT_VERSION_MISMATCH);
    const struct gpm_sample *first = request->first, *second = request->second;
    if (!first || !second || first->magic != GPM_MAGIC || second->magic != GPM_MAGIC || first->gpu != second->gpu ||
        !first->counters.at_ns || request->count > NVML_ABI_GPM_MOST)
        return NVML_ABI_INVALID_ARGUMENT;
    if (second->counters.at_ns < first->counters.at_ns + LEAST_NS) return NVML_ABI_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < request->count; i++)
        fill_metric(&first->counters, &second->counters, &request->metrics[i]);
    return NVML_ABI_SUCCESS;
}

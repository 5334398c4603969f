/* GPM counters of MIG instances, which drivers from 525 on have. */
#include "gpm.h"

NVML_EXPORT nvmlGpmMigSampleGet(nvml_abi_device device, unsigned gpu_instance, struct gpm_sample *sample) {
    NVML_ENTER_GPU("nvmlGpmMigSampleGet", device, gpu);
    if (!nvml_facts->gpus[gpu].divided) return NVML_ABI_NOT_SUPPORTED;
    for (uint32_t i = 0; i < nvml_facts->gpu_count; i++) {
        const struct sim_gpu_facts *facts = &nvml_facts->gpus[i];
        if (facts->parent == gpu + 1 && facts->gpu_instance == gpu_instance) return gpm_fill(i, sample);
    }
    return NVML_ABI_INVALID_ARGUMENT;
}

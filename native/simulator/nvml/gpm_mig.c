/* What drivers from 525 on have: a divided card's counters, by instance. */
#include "gpm.h"

NVML_EXPORT nvmlGpmMigSampleGet(nvml_abi_device device, unsigned gpu_instance, struct gpm_sample *sample) {
    NVML_ENTER_CARD("nvmlGpmMigSampleGet", device, card);
    if (!nvml_facts->cards[card].divided) return NVML_ABI_NOT_SUPPORTED;
    for (uint32_t i = 0; i < nvml_facts->card_count; i++) {
        const struct sim_card_facts *facts = &nvml_facts->cards[i];
        if (facts->parent == card + 1 && facts->gpu_instance == gpu_instance) return gpm_fill(i, sample);
    }
    return NVML_ABI_INVALID_ARGUMENT;
}

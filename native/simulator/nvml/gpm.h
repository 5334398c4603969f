/* Samples of a GPU's counters, as the libraries of drivers from 520 on hand them out. */
#pragma once

#include "nvml.h"

#define GPM_HOPPER 9 /* major compute capability from which GPUs have such counters */

struct gpm_sample {
    uint32_t magic;
    uint32_t gpu;
    struct sim_counters counters; /* at_ns 0: nothing was sampled yet */
};

/* Reads the counters of a GPU, or of an instance, which is a GPU of the node. */
nvml_abi_return gpm_fill(uint32_t gpu, struct gpm_sample *sample);

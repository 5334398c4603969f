/* Samples of GPM counters, as drivers from 520 on return them. */
#pragma once

#include "nvml.h"

#define GPM_HOPPER 9 /* lowest major compute capability with such counters */

struct gpm_sample {
    uint32_t magic;
    uint32_t gpu;
    struct sim_counters counters; /* at_ns 0: no sample yet */
};

/* Reads the counters of a GPU or instance, which is a GPU of the node. */
nvml_abi_return gpm_fill(uint32_t gpu, struct gpm_sample *sample);

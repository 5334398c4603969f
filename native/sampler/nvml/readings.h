// The values that NVML reports of a whole GPU, one table row each: temperature, power, clocks, errors, throttling,
// traffic. A new reading is one row here and one field in src/agent/sampling/sample.ts.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nvml.h"

// JSON names with values, as in src/agent/sampling/sample.ts. A reading that the driver does not give is left out.
using Readings = std::vector<std::pair<const char *, uint64_t>>;

// Appends those that are read in every round.
void read_fast(nvml::Library &library, nvml::Device device, Readings &out);
// All others. They change slowly, and some of the calls are expensive: the energy takes an H100's driver 2.3 ms.
Readings read_slow(nvml::Library &library, nvml::Device device);
// Appends those that stay as they are and that `known` does not have yet: each of the calls takes 0.8 ms there.
void read_constants(nvml::Library &library, nvml::Device device, Readings &known);

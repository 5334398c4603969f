// What a GPU says of its own state beyond who uses it and how busy it is: temperature, power, clocks and their limits,
// errors of its memory, repairs, why its clocks are low, bytes over its links. Read every few rounds: nobody acts on it
// within a second, and some of it is dear to ask for.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nvml.h"

// Names as in src/agent/sampling/sample.ts, with their values; what the driver does not tell is not there.
using Health = std::vector<std::pair<const char *, uint64_t>>;

Health read_health(nvml::Library &library, nvml::Device device);

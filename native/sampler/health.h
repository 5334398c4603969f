// What a card says of its own state beyond readings: its limits, errors of its memory, repairs, why its clocks are low,
// bytes over its links. Read every few rounds: it changes slowly, and some of it is dear to ask for.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nvml.h"

// Names as in src/agent/sample.ts, with their values; what the driver does not tell is not there.
using Health = std::vector<std::pair<const char *, uint64_t>>;

Health read_health(nvml::Library &library, nvml::Device device);

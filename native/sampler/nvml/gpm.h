// How busy a GPU's parts were, by its own counters: NVML's GPM, from Hopper on. The driver gives figures of the time
// between two samples, of a GPU or of an instance, never of a process.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "nvml.h"

// Names as in src/agent/sampling/sample.ts, with parts in a million; what the driver does not tell is not there.
using GpmReadings = std::vector<std::pair<const char *, uint64_t>>;

class GpmReader {
  public:
    // Between the newest two samples; takes another one when it is due. `gpu_instance`: of an instance, whose GPU
    // `device` then is.
    const GpmReadings &read(nvml::Library &library, nvml::Device device, const uint32_t *gpu_instance, uint64_t now_ns);
    // The driver does not let us: the sampler lacks the right.
    bool denied() const { return denied_; }
    // Gives the samples back. What was told of another GPU, or of the same one before it was divided anew, is none.
    void forget(nvml::Library &library);

  private:
    bool prepare(nvml::Library &library, nvml::Device device);
    bool tell(nvml::Library &library);
    void fail(nvml::Library &library);
    void give_back(nvml::Library &library);

    void *older_ = nullptr, *newer_ = nullptr;
    uint64_t taken_ns_ = 0; // when the older one was; 0 = there is none
    uint64_t next_ns_ = 0;
    bool refused_ = false, denied_ = false; // asked no more
    GpmReadings active_;
};

// How busy the units of a GPU were (SMs, tensor cores, memory), by its hardware counters: NVML's GPM, from Hopper on.
// The driver computes each figure between two samples of a GPU or MIG instance, never of a process.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "nvml.h"

// JSON names as in src/agent/sampling/sample-fields.ts, with parts per million. Absent: the driver does not report it.
using GpmReadings = std::vector<std::pair<const char *, uint64_t>>;

class GpmReader {
  public:
    // The figures between the newest two samples; takes another sample when it is due. For a MIG instance, `device` is
    // its GPU and `gpu_instance` its ID.
    const GpmReadings &read(nvml::Library &library, nvml::Device device, const uint32_t *gpu_instance, uint64_t now_ns);
    // The sampler lacks the permission.
    bool denied() const { return denied_; }
    // Frees the samples and forgets all figures: for another device, or after its MIG layout changed.
    void forget(nvml::Library &library);

  private:
    bool prepare(nvml::Library &library, nvml::Device device);
    bool compute(nvml::Library &library);
    void fail(nvml::Library &library);
    void give_back(nvml::Library &library);

    void *older_ = nullptr, *newer_ = nullptr;
    uint64_t taken_ns_ = 0; // time of the older sample; 0 = there is none
    uint64_t next_ns_ = 0;
    bool refused_ = false, denied_ = false; // do not ask again
    GpmReadings active_;
};

// What the driver raises of its own accord: a thread waits for it, so that no sample waits. What it has met is taken at
// the next sample. A driver that hangs in there keeps the thread and nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "nvml.h"

namespace nvml {

struct Event {
    Device device = nullptr;
    uint64_t type = 0, data = 0, at_ms = 0; // wall clock of when it was met
    uint64_t count = 1;                     // so many alike, the last of them at at_ms
};

class Events {
  public:
    // Waits for events of this GPU, too. True: the driver tells them of it.
    bool watch(Library &library, Device device);
    // Since the last call. `errors`: how often waiting failed with which code, since then.
    std::vector<Event> take(std::map<int, uint64_t> &errors);

  private:
    struct Shared; // outlives this where the thread does
    bool start(Library &library);

    std::shared_ptr<Shared> shared_;
    bool refused_ = false;
};

} // namespace nvml

// Events that the driver reports, such as Xids. A thread waits for them, so that no sample does, and each sample takes
// those that have come. A driver that hangs in this wait blocks only that thread.
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
    uint64_t type = 0, data = 0, at_ms = 0; // wall clock of its arrival
    uint64_t count = 1;                     // equal events, the last of them at at_ms
};

class Events {
  public:
    // Starts waiting for events of this GPU too. True: the driver reports events of it.
    bool watch(Library &library, Device device);
    // Events since the last call. `errors`: how often waiting failed since then, by code.
    std::vector<Event> take(std::map<int, uint64_t> &errors);

  private:
    struct Shared; // outlives this object if the thread does
    bool create(Library &library);
    bool start();

    std::shared_ptr<Shared> shared_;
    bool refused_ = false; // there will be no events
    bool waiting_ = false; // the thread runs
};

} // namespace nvml

#include "events.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>

#include "../common/clock.h"

namespace nvml {

namespace {
constexpr unsigned WAIT_MS = 5000; // exit does not wait for it: the process ends with the thread in it
constexpr std::chrono::milliseconds RETRY{1000}, LONGEST_PAUSE{64000};
constexpr uint64_t WANTED = NVML_ABI_EVENT_XID;
constexpr size_t MAX_KINDS = 256; // distinct GPU, type and data between two samples

uint64_t wall_ms() {
    return clock_ns(CLOCK_REALTIME) / 1000000u;
}
} // namespace

struct Events::Shared {
    using Wait = int (*)(void *, nvml_abi_event_data *, unsigned);

    void *set = nullptr;
    Wait wait = nullptr;
    std::mutex mutex; // guards the members below
    std::vector<Event> met;
    std::map<int, uint64_t> errors;

    void add(const nvml_abi_event_data &data) {
        const std::lock_guard<std::mutex> guard(mutex);
        for (Event &event : met) {
            if (event.device != data.device || event.type != data.type || event.data != data.data) continue;
            event.count++;
            event.at_ms = wall_ms();
            return;
        }
        if (met.size() < MAX_KINDS) met.push_back({data.device, data.type, data.data, wall_ms(), 1});
    }

    void fail(int code) {
        const std::lock_guard<std::mutex> guard(mutex);
        errors[code]++;
    }
};

bool Events::create(Library &library) {
    if (shared_) return true;
    if (refused_) return false;
    auto shared = std::make_shared<Shared>();
    // The older function writes fewer members of the same structure.
    shared->wait = reinterpret_cast<Shared::Wait>(library.address("nvmlEventSetWait_v2", "nvmlEventSetWait"));
    if (!shared->wait || !library.call("nvmlEventSetCreate", &shared->set)) {
        refused_ = !shared->wait || library.last_code() == NVML_ABI_NOT_SUPPORTED ||
                   library.last_code() == NVML_ABI_FUNCTION_NOT_FOUND; // anything else may work later
        return false;
    }
    shared_ = std::move(shared);
    return true;
}

// Only once some GPU's events are registered: a wait for none may fail at once, again and again.
bool Events::start() {
    if (waiting_) return true;
    try {
        std::thread([shared = shared_] {
            std::chrono::milliseconds pause = RETRY;
            for (;;) {
                nvml_abi_event_data data{};
                const int code = shared->wait(shared->set, &data, WAIT_MS);
                if (code == NVML_ABI_SUCCESS) shared->add(data);
                if (code == NVML_ABI_SUCCESS || code == NVML_ABI_TIMEOUT) {
                    pause = RETRY;
                    continue;
                }
                shared->fail(code);
                if (code == NVML_ABI_UNINITIALIZED) return;
                std::this_thread::sleep_for(pause);
                if (code == NVML_ABI_NOT_SUPPORTED) pause = std::min(pause * 2, LONGEST_PAUSE);
            }
        }).detach();
    } catch (const std::system_error &) {
        return false; // the thread could not be started
    }
    waiting_ = true;
    return true;
}

bool Events::watch(Library &library, Device device) {
    uint64_t supported = 0;
    if (!library.ask(device, "nvmlDeviceGetSupportedEventTypes", &supported) || !(supported & WANTED)) return false;
    return create(library) && library.ask(device, "nvmlDeviceRegisterEvents", supported & WANTED, shared_->set) &&
           start();
}

std::vector<Event> Events::take(std::map<int, uint64_t> &errors) {
    std::vector<Event> met;
    if (!shared_) return met;
    const std::lock_guard<std::mutex> guard(shared_->mutex);
    met.swap(shared_->met);
    errors.swap(shared_->errors);
    return met;
}

} // namespace nvml

#include "events.h"

#include <chrono>
#include <system_error>
#include <thread>

#include "../common/clock.h"

namespace nvml {

namespace {
constexpr unsigned WAIT_MS = 5000; // exit does not wait for it: the process ends with the thread in it
constexpr unsigned RETRY_MS = 1000;
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

bool Events::start(Library &library) {
    if (shared_) return true;
    if (refused_) return false;
    refused_ = true;
    auto shared = std::make_shared<Shared>();
    // The older function writes fewer members of the same structure.
    shared->wait = reinterpret_cast<Shared::Wait>(library.address("nvmlEventSetWait_v2", "nvmlEventSetWait"));
    if (!shared->wait) return false;
    if (!library.call("nvmlEventSetCreate", &shared->set)) {
        refused_ = false; // may work later
        return false;
    }
    try {
        std::thread([shared] {
            for (;;) {
                nvml_abi_event_data data{};
                const int code = shared->wait(shared->set, &data, WAIT_MS);
                if (code == NVML_ABI_SUCCESS) shared->add(data);
                if (code == NVML_ABI_SUCCESS || code == NVML_ABI_TIMEOUT) continue;
                shared->fail(code);
                if (code == NVML_ABI_UNINITIALIZED) return;
                std::this_thread::sleep_for(std::chrono::milliseconds(RETRY_MS));
            }
        }).detach();
    } catch (const std::system_error &) {
        return false; // the thread could not be started
    }
    shared_ = std::move(shared);
    refused_ = false;
    return true;
}

bool Events::watch(Library &library, Device device) {
    uint64_t supported = 0;
    if (!library.ask(device, "nvmlDeviceGetSupportedEventTypes", &supported) || !(supported & WANTED)) return false;
    return start(library) && library.ask(device, "nvmlDeviceRegisterEvents", supported & WANTED, shared_->set);
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

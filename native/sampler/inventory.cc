// Which GPUs and MIG instances exist. Read again every minute; each keeps its index for as long as the sampler runs.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sampler.h"

namespace {
constexpr uint64_t EVERY_NS = 60000000000ull;
constexpr uint64_t MIN_NS = 5000000000ull; // where a change is suspected
} // namespace

// Finds or adds a GPU by UUID, so that its counters survive a new enumeration. Returns its index.
size_t Sampler::add_gpu(nvml::Device device, const std::string &uuid) {
    size_t index = 0;
    while (index < gpus_.size() && gpus_[index].uuid != uuid) index++;
    if (index == gpus_.size()) {
        gpus_.emplace_back();
        gpus_[index].uuid = uuid;
    }
    if (gpus_[index].name.empty()) library_.device_text(device, "nvmlDeviceGetName", gpus_[index].name);
    gpus_[index].gone = false;
    return index;
}

// Handles of instances become invalid when a GPU is divided anew, so everything about them is read again. What cannot
// be read stays as it was and is soon tried again.
void Sampler::add_instances(size_t parent) {
    std::vector<nvml::Device> devices;
    std::vector<std::pair<nvml::Device, std::string>> named;
    bool whole = true;
    // Whether a lost GPU is divided is unknown: keep what was known.
    if (gpus_[parent].lost) return;
    if (gpus_[parent].device) {
        const nvml::Division division = library_.instances(gpus_[parent].device, devices, whole);
        if (division == nvml::Division::Unknown) {
            changed_ = true;
            return;
        }
        const bool is_divided = division == nvml::Division::Divided;
        if (is_divided != gpus_[parent].divided) library_.forget_refusals(gpus_[parent].device);
        gpus_[parent].divided = is_divided;
        gpus_[parent].mig_mode_known = true;
    }
    for (nvml::Device device : devices) {
        std::string uuid;
        if (library_.device_text(device, "nvmlDeviceGetUUID", uuid)) named.emplace_back(device, uuid);
        else whole = false;
    }
    for (Gpu &gpu : gpus_) {
        if (whole && gpu.instance && gpu.parent == parent) gpu.gone = true;
    }
    for (const auto &[device, uuid] : named) {
        const size_t index = add_gpu(device, uuid);
        Gpu &gpu = gpus_[index];
        if (gpu.device != device) {
            gpu.gpm.forget(library_);
            library_.forget_refusals(device);
        }
        gpu.device = device;
        gpu.instance = true;
        gpu.parent = parent;
        gpu.pci = gpus_[parent].pci;
        const bool has_numbers = library_.ask(device, "nvmlDeviceGetGpuInstanceId", &gpu.gpu_instance) &&
                                 library_.ask(device, "nvmlDeviceGetComputeInstanceId", &gpu.compute_instance);
        gpu.has_numbers = gpu.has_numbers || has_numbers;
        whole = whole && gpu.has_numbers;
    }
    std::vector<uint32_t> memories;
    for (Gpu &gpu : gpus_) {
        if (!gpu.instance || gpu.parent != parent || gpu.gone || !gpu.has_numbers) continue;
        gpu.same_memory = std::find(memories.begin(), memories.end(), gpu.gpu_instance) != memories.end();
        memories.push_back(gpu.gpu_instance);
    }
    changed_ = changed_ || !whole;
}

// Reads facts that were not readable before.
void Sampler::read_facts(Gpu &gpu) {
    if (gpu.pci.empty()) library_.pci(gpu.device, gpu.pci);
    if (!gpu.has_minor) gpu.has_minor = library_.ask(gpu.device, "nvmlDeviceGetMinorNumber", &gpu.minor);
    if (!gpu.reports_events) gpu.reports_events = events_.watch(library_, gpu.device);
}

// Where the driver answers for each GPU that it counts, all others are gone. A GPU that it counts without answering may
// be any of the known ones: then all stay.
void Sampler::read_inventory(uint64_t now_ns) {
    const uint64_t since = now_ns - inventory_ns_;
    if (inventory_ns_ != 0 && since < EVERY_NS && !(changed_ && since >= MIN_NS)) return;
    std::vector<nvml::Device> devices;
    bool whole = false;
    if (driver_version_.empty()) driver_version_ = library_.text("nvmlSystemGetDriverVersion");
    if (cuda_version_ == 0) cuda_version_ = library_.cuda_version();
    if (!library_.devices(devices, whole)) return;
    inventory_ns_ = now_ns;
    changed_ = false;
    std::vector<size_t> listed;
    for (nvml::Device device : devices) {
        std::string uuid;
        if (!library_.device_text(device, "nvmlDeviceGetUUID", uuid)) {
            whole = false;
            continue;
        }
        const size_t index = add_gpu(device, uuid);
        listed.push_back(index);
        if (gpus_[index].device != device) {
            gpus_[index].gpm.forget(library_);
            gpus_[index].device = device;
            gpus_[index].has_process_utilization = false;
            gpus_[index].slow_readings.clear();
            gpus_[index].constants.clear();
            library_.forget_refusals(device);
            gpus_[index].pci.clear();
            gpus_[index].has_minor = gpus_[index].reports_events = false;
        }
        read_facts(gpus_[index]);
    }
    for (size_t i = 0; whole && i < gpus_.size(); i++) {
        Gpu &gpu = gpus_[i];
        if (gpu.instance || std::find(listed.begin(), listed.end(), i) != listed.end()) continue;
        gpu.gpm.forget(library_);
        gpu.gone = true;
        gpu.lost = false;
        gpu.device = nullptr; // read everything again if the UUID returns
    }
    // Instances come after all GPUs, so that GPUs have NVML's indices.
    for (size_t i = 0, count = gpus_.size(); i < count; i++) {
        if (!gpus_[i].instance) add_instances(i);
    }
    for (Gpu &gpu : gpus_) {
        if (gpu.gone) gpu.gpm.forget(library_);
    }
    read_topology();
}

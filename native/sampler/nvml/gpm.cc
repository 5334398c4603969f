#include "gpm.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace {

constexpr uint64_t SECOND_NS = 1000000000ull;
constexpr uint64_t EVERY_NS = 5 * SECOND_NS;
constexpr uint64_t MIN_NS = SECOND_NS;       // counters say little about shorter times
constexpr uint64_t MAX_NS = 600 * SECOND_NS; // over longer times counters may have wrapped
constexpr double MAX_PERCENT = 101;          // up to here a value above 100 is noise, beyond it is invalid
constexpr double PPM_PER_PERCENT = 10000;

constexpr struct {
    uint32_t id;
    const char *name;
} METRICS[] = {
    {NVML_ABI_GPM_GRAPHICS, "graphicsActivePpm"}, {NVML_ABI_GPM_SM, "smActivePpm"},
    {NVML_ABI_GPM_OCCUPANCY, "smOccupancyPpm"},   {NVML_ABI_GPM_TENSOR, "tensorActivePpm"},
    {NVML_ABI_GPM_DRAM, "dramActivePpm"},         {NVML_ABI_GPM_FP32, "fp32ActivePpm"},
};
constexpr uint32_t METRIC_COUNT = sizeof METRICS / sizeof *METRICS;

} // namespace

// Of a GPU, or of a MIG instance of it.
static bool take(nvml::Library &library, nvml::Device device, const uint32_t *gpu_instance, void *sample) {
    return gpu_instance ? library.call("nvmlGpmMigSampleGet", device, *gpu_instance, sample)
                        : library.call("nvmlGpmSampleGet", device, sample);
}

const GpmReadings &GpmReader::read(nvml::Library &library, nvml::Device device, const uint32_t *gpu_instance,
                                   uint64_t now_ns) {
    if (refused_ || now_ns < next_ns_) return active_;
    next_ns_ = now_ns + EVERY_NS;
    if (!prepare(library, device) || !take(library, device, gpu_instance, newer_)) {
        fail(library);
        return active_;
    }
    if (taken_ns_ == 0 || now_ns - taken_ns_ > MAX_NS) {
        active_.clear();
        next_ns_ = now_ns + MIN_NS;
    } else if (!compute(library)) {
        fail(library);
        return active_;
    }
    std::swap(older_, newer_);
    taken_ns_ = now_ns;
    return active_;
}

void GpmReader::forget(nvml::Library &library) {
    give_back(library);
    *this = GpmReader{};
}

void GpmReader::give_back(nvml::Library &library) {
    for (void **sample : {&older_, &newer_}) {
        if (*sample) library.call("nvmlGpmSampleFree", *sample);
        *sample = nullptr;
    }
}

bool GpmReader::prepare(nvml::Library &library, nvml::Device device) {
    if (newer_) return true;
    nvml_abi_gpm_support support{NVML_ABI_GPM_VERSION, 0};
    if (!library.call("nvmlGpmQueryDeviceSupport", device, &support)) return false;
    if (!support.supported) {
        refused_ = true;
        return false;
    }
    const char *allocate = "nvmlGpmSampleAlloc";
    return (older_ || library.call(allocate, &older_)) && library.call(allocate, &newer_) && newer_;
}

// A missing permission may show in the call's result or in each metric's: no driver that refuses it has been seen yet.
bool GpmReader::compute(nvml::Library &library) {
    auto request = std::make_unique<nvml_abi_gpm_request>();
    request->version = NVML_ABI_GPM_VERSION;
    request->count = METRIC_COUNT;
    request->first = older_;
    request->second = newer_;
    for (uint32_t i = 0; i < METRIC_COUNT; i++) {
        request->metrics[i].id = METRICS[i].id;
        request->metrics[i].result = NVML_ABI_NOT_SUPPORTED;
    }
    active_.clear();
    if (!library.call("nvmlGpmMetricsGet", request.get())) return false;
    for (uint32_t i = 0; i < METRIC_COUNT; i++) {
        const nvml_abi_gpm_metric &metric = request->metrics[i];
        denied_ = denied_ || metric.result == NVML_ABI_NO_PERMISSION;
        if (metric.result != NVML_ABI_SUCCESS || !(metric.value >= 0 && metric.value <= MAX_PERCENT)) continue;
        active_.emplace_back(METRICS[i].name,
                             static_cast<uint64_t>(std::llround(std::min(metric.value, 100.0) * PPM_PER_PERCENT)));
    }
    if (denied_) library.count("nvmlGpmMetricsGet", NVML_ABI_NO_PERMISSION, 1);
    return !denied_;
}

// What is missing or forbidden will be so at the next attempt too, and each attempt would count as one more failure of
// the driver. Other failures are tried again.
void GpmReader::fail(nvml::Library &library) {
    const int code = library.last_code();
    active_.clear();
    taken_ns_ = 0;
    denied_ = denied_ || code == NVML_ABI_NO_PERMISSION;
    refused_ = refused_ || denied_ || code == NVML_ABI_NOT_SUPPORTED || code == NVML_ABI_FUNCTION_NOT_FOUND;
    if (refused_) give_back(library);
}

#include "nvml.h"

#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <utility>

namespace nvml {

namespace {
constexpr unsigned MAX_INSTANCES = 64;
constexpr uint64_t SECOND_NS = 1000000000ull;
constexpr uint64_t UNSUPPORTED_NS = 60 * SECOND_NS;
constexpr uint64_t UNKNOWN_NS = 8 * SECOND_NS;
constexpr unsigned MAX_ROWS = 1024;
} // namespace

void *Library::find(const char *name) {
    auto known = functions_.find(name);
    if (known != functions_.end()) return known->second;
    void *address = handle_ ? dlsym(handle_, name) : nullptr;
    functions_[name] = address;
    return address;
}

void *Library::need(const char *name) {
    void *address = find(name);
    if (!address && handle_) absent_.try_emplace(name, false);
    return address;
}

std::vector<std::string> Library::take_absent() {
    std::vector<std::string> names;
    for (auto &[name, reported] : absent_) {
        if (!std::exchange(reported, true)) names.push_back(name);
    }
    return names;
}

bool Library::absent() {
    last_code_ = NVML_ABI_FUNCTION_NOT_FOUND;
    return false;
}

bool Library::answered(const char *call, int code) {
    last_code_ = code;
    if (code == NVML_ABI_SUCCESS) return true;
    errors_[{call, code}]++;
    return false;
}

bool Library::may_call(Device device, const Call &call) {
    const auto refusal = refusals_.find({device, call.name, call.which});
    if (refusal == refusals_.end() || now_ns_ >= refusal->second.again_ns) return true;
    last_code_ = refusal->second.code;
    return false;
}

bool Library::record(Device device, const Call &call, int code) {
    if (code == NVML_ABI_NOT_SUPPORTED || code == NVML_ABI_UNKNOWN) {
        Refusal &refusal = refusals_[{device, call.name, call.which}];
        refusal.times = refusal.code == code ? refusal.times + 1 : 1;
        refusal.code = code;
        const uint64_t most = code == NVML_ABI_UNKNOWN ? UNKNOWN_NS : UNSUPPORTED_NS;
        const uint64_t wait = SECOND_NS << std::min(refusal.times - 1, 6u);
        refusal.again_ns = refusal.times < 2 ? 0 : now_ns_ + std::min(wait, most);
    } else if (!refusals_.empty()) {
        refusals_.erase({device, call.name, call.which});
    }
    if (code != call.also_good) return answered(call.name, code);
    last_code_ = code;
    return true;
}

void Library::forget_refusals(Device device) {
    std::erase_if(refusals_, [&](const auto &entry) { return std::get<0>(entry.first) == device; });
}

bool Library::open(const std::string &path, std::string &problem) {
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle_) {
        const char *why = dlerror();
        problem = "no NVIDIA driver library: " + std::string(why ? why : path);
        return false;
    }
    if (dlsym(handle_, "cotenant_nvml")) {
        problem = path + " is the view from inside a grant, not the driver; start the agent outside of any grant";
        dlclose(handle_);
        handle_ = nullptr;
        return false;
    }
    auto init = reinterpret_cast<int (*)()>(find("nvmlInit_v2"));
    const int code = init ? init() : static_cast<int>(NVML_ABI_FUNCTION_NOT_FOUND);
    if (code == NVML_ABI_SUCCESS) return true;
    auto text = reinterpret_cast<const char *(*)(int)>(find("nvmlErrorString"));
    problem = "NVML does not start: " + std::string(text ? text(code) : "error") + " (" + std::to_string(code) + ")";
    answered("nvmlInit_v2", code);
    functions_.clear();
    dlclose(handle_);
    handle_ = nullptr;
    return false;
}

std::string Library::text(const char *name) {
    char buffer[NVML_ABI_VERSION_BYTES + 1] = {}; // terminated even if the driver does not do it
    return call(name, &buffer[0], static_cast<unsigned>(sizeof buffer - 1)) ? buffer : "";
}

int Library::cuda_version() {
    const char *newer = "nvmlSystemGetCudaDriverVersion_v2";
    int version = 0;
    return call(has(newer) ? newer : "nvmlSystemGetCudaDriverVersion", &version) ? version : 0;
}

bool Library::devices(std::vector<Device> &out, bool &whole) {
    const char *counting = "nvmlDeviceGetCount_v2", *by_index = "nvmlDeviceGetHandleByIndex_v2";
    unsigned count = 0;
    out.clear();
    if (!has(counting) || !has(by_index) || !call(counting, &count)) return false;
    for (unsigned i = 0; i < count; i++) {
        Device device = nullptr;
        if (call(by_index, i, &device)) out.push_back(device);
    }
    whole = out.size() == count;
    return true;
}

// A driver without these calls, or whose GPU does not support them, has no MIG.
Division Library::instances(Device device, std::vector<Device> &out, bool &whole) {
    const char *by_index = "nvmlDeviceGetMigDeviceHandleByIndex";
    uint32_t current = 0, pending = 0, most = 0;
    out.clear();
    whole = true;
    auto get = reinterpret_cast<int (*)(Device, unsigned, Device *)>(need(by_index));
    if (!get) return Division::Whole;
    if (!ask(device, "nvmlDeviceGetMigMode", &current, &pending)) {
        const bool has_none = last_code_ == NVML_ABI_NOT_SUPPORTED || last_code_ == NVML_ABI_FUNCTION_NOT_FOUND;
        return has_none ? Division::Whole : Division::Unknown;
    }
    if (!current) return Division::Whole;
    whole = ask(device, "nvmlDeviceGetMaxMigDeviceCount", &most);
    for (uint32_t i = 0; i < most && i < MAX_INSTANCES; i++) {
        Device instance = nullptr;
        const int code = get(device, i, &instance);
        if (code == NVML_ABI_NOT_FOUND) continue;
        if (answered(by_index, code)) out.push_back(instance);
        else whole = false;
    }
    return Division::Divided;
}

bool Library::device_text(Device device, const char *name, std::string &out) {
    char buffer[NVML_ABI_UUID_BYTES + 1] = {};
    if (!call(name, device, &buffer[0], static_cast<unsigned>(sizeof buffer - 1))) return false;
    out = buffer;
    return !out.empty(); // an empty text is not an answer
}

bool Library::pci(Device device, std::string &out) {
    nvml_abi_pci_v3 info{};
    if (!call("nvmlDeviceGetPciInfo_v3", device, &info)) return false;
    out.assign(info.id, strnlen(info.id, sizeof info.id));
    return true;
}

bool whole_number(const nvml_abi_field &field, uint64_t &out) {
    uint32_t narrow = 0;
    if (field.result != NVML_ABI_SUCCESS) return false;
    switch (field.value_type) {
    case NVML_ABI_VALUE_UNSIGNED:
        std::memcpy(&narrow, &field.value, sizeof narrow);
        out = narrow;
        return true;
    case NVML_ABI_VALUE_LONG:
    case NVML_ABI_VALUE_LONG_LONG: out = field.value; return true;
    default: return false;
    }
}

void *Library::address(const char *name, const char *or_else) {
    void *found = find(name);
    return found ? found : need(or_else);
}

bool Library::memory(Device device, Memory &out) {
    const char *newer = "nvmlDeviceGetMemoryInfo_v2";
    nvml_abi_memory_v2 second{};
    second.version = NVML_ABI_STRUCT_VERSION(nvml_abi_memory_v2, 2);
    if (has(newer) && ask(device, newer, &second)) {
        out = Memory{second.total, second.reserved, second.used, second.free, true};
        return true;
    }
    nvml_abi_memory_v1 first{};
    if (!ask(device, "nvmlDeviceGetMemoryInfo", &first)) return false;
    out = Memory{first.total, 0, first.used, first.free, false};
    return true;
}

bool Library::process_utilization(Device device, uint64_t last_seen_us, std::vector<Utilization> &out) {
    // NOT_FOUND means that no process ran.
    const Call newer("nvmlDeviceGetProcessesUtilizationInfo", 0, NVML_ABI_NOT_FOUND);
    const Call plain("nvmlDeviceGetProcessUtilization", 0, NVML_ABI_NOT_FOUND);
    const auto add = [&](const auto *rows, unsigned count) {
        for (unsigned i = 0; last_code_ == NVML_ABI_SUCCESS && i < count && i < MAX_ROWS; i++)
            out.push_back(
                {rows[i].pid, rows[i].sm, rows[i].memory, rows[i].encoder, rows[i].decoder, rows[i].timestamp_us});
        return true;
    };
    out.clear();
    if (has(newer.name)) {
        static nvml_abi_processes_utilization_entry rows[MAX_ROWS];
        nvml_abi_processes_utilization request{};
        request.version = NVML_ABI_STRUCT_VERSION(nvml_abi_processes_utilization, 1);
        request.count = MAX_ROWS;
        request.last_seen_us = last_seen_us;
        request.entries = rows;
        if (ask(device, newer, &request)) return add(rows, request.count);
    }
    static nvml_abi_process_utilization rows[MAX_ROWS];
    unsigned count = MAX_ROWS;
    return ask(device, plain, &rows[0], &count, static_cast<unsigned long long>(last_seen_us)) && add(rows, count);
}

} // namespace nvml

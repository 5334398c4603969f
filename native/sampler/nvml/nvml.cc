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

bool Library::answered(const char *call, int code) {
    last_code_ = code;
    if (code == NVML_ABI_SUCCESS) return true;
    errors_[{call, code}]++;
    return false;
}

bool Library::may_call(Device device, const char *call, uint64_t which) {
    const auto refusal = refusals_.find({device, call, which});
    if (refusal == refusals_.end() || now_ns_ >= refusal->second.again_ns) return true;
    last_code_ = refusal->second.code;
    return false;
}

bool Library::record(Device device, const char *call, int code, uint64_t which) {
    if (code == NVML_ABI_NOT_SUPPORTED || code == NVML_ABI_UNKNOWN) {
        Refusal &refusal = refusals_[{device, call, which}];
        refusal.times = refusal.code == code ? refusal.times + 1 : 1;
        refusal.code = code;
        const uint64_t most = code == NVML_ABI_UNKNOWN ? UNKNOWN_NS : UNSUPPORTED_NS;
        const uint64_t wait = SECOND_NS << std::min(refusal.times - 1, 6u);
        refusal.again_ns = refusal.times < 2 ? 0 : now_ns_ + std::min(wait, most);
    } else if (!refusals_.empty()) {
        refusals_.erase({device, call, which});
    }
    return answered(call, code);
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

void Library::close() {
    if (!handle_) return;
    if (auto shutdown = reinterpret_cast<int (*)()>(find("nvmlShutdown"))) shutdown();
    functions_.clear();
    absent_.clear();
    refusals_.clear();
    dlclose(handle_);
    handle_ = nullptr;
}

std::string Library::text(const char *call) {
    char buffer[NVML_ABI_VERSION_BYTES + 1] = {}; // terminated even if the driver does not do it
    auto get = reinterpret_cast<int (*)(char *, unsigned)>(need(call));
    return get && answered(call, get(buffer, sizeof buffer - 1)) ? buffer : "";
}

int Library::cuda_version() {
    const char *call = has("nvmlSystemGetCudaDriverVersion_v2") ? "nvmlSystemGetCudaDriverVersion_v2"
                                                                : "nvmlSystemGetCudaDriverVersion";
    int version = 0;
    auto get = reinterpret_cast<int (*)(int *)>(need(call));
    return get && answered(call, get(&version)) ? version : 0;
}

bool Library::devices(std::vector<Device> &out, bool &whole) {
    unsigned count = 0;
    auto get_count = reinterpret_cast<int (*)(unsigned *)>(find("nvmlDeviceGetCount_v2"));
    auto get_handle = reinterpret_cast<int (*)(unsigned, Device *)>(find("nvmlDeviceGetHandleByIndex_v2"));
    out.clear();
    if (!get_count || !get_handle || !answered("nvmlDeviceGetCount_v2", get_count(&count))) return false;
    for (unsigned i = 0; i < count; i++) {
        Device device = nullptr;
        if (answered("nvmlDeviceGetHandleByIndex_v2", get_handle(i, &device))) out.push_back(device);
    }
    whole = out.size() == count;
    return true;
}

// A driver without these calls, or whose GPU does not support them, has no MIG.
Division Library::instances(Device device, std::vector<Device> &out, bool &whole) {
    const char *by_index = "nvmlDeviceGetMigDeviceHandleByIndex", *mode = "nvmlDeviceGetMigMode";
    uint32_t current = 0, pending = 0, most = 0;
    out.clear();
    whole = true;
    auto get = reinterpret_cast<int (*)(Device, unsigned, Device *)>(need(by_index));
    if (!get || !need(mode)) return Division::Whole;
    if (!number_pair(device, mode, current, pending)) {
        const bool has_none = last_code_ == NVML_ABI_NOT_SUPPORTED || last_code_ == NVML_ABI_FUNCTION_NOT_FOUND;
        return has_none ? Division::Whole : Division::Unknown;
    }
    if (!current) return Division::Whole;
    whole = number(device, "nvmlDeviceGetMaxMigDeviceCount", most);
    for (uint32_t i = 0; i < most && i < MAX_INSTANCES; i++) {
        Device instance = nullptr;
        const int code = get(device, i, &instance);
        if (code == NVML_ABI_NOT_FOUND) continue;
        if (answered(by_index, code)) out.push_back(instance);
        else whole = false;
    }
    return Division::Divided;
}

bool Library::device_text(Device device, const char *call, std::string &out) {
    char buffer[NVML_ABI_UUID_BYTES + 1] = {};
    auto get = reinterpret_cast<int (*)(Device, char *, unsigned)>(need(call));
    if (!get || !answered(call, get(device, buffer, sizeof buffer - 1))) return false;
    out = buffer;
    return !out.empty(); // an empty text is not an answer
}

bool Library::number(Device device, const char *call, uint32_t &out) {
    auto get = reinterpret_cast<int (*)(Device, uint32_t *)>(need(call));
    return get && may_call(device, call) && record(device, call, get(device, &out));
}

bool Library::number(Device device, const char *call, uint32_t which, uint32_t &out) {
    auto get = reinterpret_cast<int (*)(Device, uint32_t, uint32_t *)>(need(call));
    return get && may_call(device, call, which) && record(device, call, get(device, which, &out), which);
}

bool Library::number64(Device device, const char *call, uint64_t &out) {
    auto get = reinterpret_cast<int (*)(Device, uint64_t *)>(need(call));
    return get && may_call(device, call) && record(device, call, get(device, &out));
}

bool Library::number_pair(Device device, const char *call, uint32_t &first, uint32_t &second) {
    auto get = reinterpret_cast<int (*)(Device, uint32_t *, uint32_t *)>(need(call));
    return get && may_call(device, call) && record(device, call, get(device, &first, &second));
}

bool Library::pci(Device device, std::string &out) {
    nvml_abi_pci_v3 info{};
    auto get = reinterpret_cast<int (*)(Device, nvml_abi_pci_v3 *)>(need("nvmlDeviceGetPciInfo_v3"));
    if (!get || !answered("nvmlDeviceGetPciInfo_v3", get(device, &info))) return false;
    out.assign(info.id, strnlen(info.id, sizeof info.id));
    return true;
}

bool Library::number64(Device device, const char *call, uint32_t which, uint32_t form, uint64_t &out) {
    auto get = reinterpret_cast<int (*)(Device, uint32_t, uint32_t, uint64_t *)>(need(call));
    const uint64_t both = uint64_t{which} << 32 | form;
    return get && may_call(device, call, both) && record(device, call, get(device, which, form, &out), both);
}

bool Library::remapped_rows(Device device, uint32_t (&out)[4]) {
    const char *call = "nvmlDeviceGetRemappedRows";
    auto get = reinterpret_cast<int (*)(Device, uint32_t *, uint32_t *, uint32_t *, uint32_t *)>(need(call));
    return get && may_call(device, call) && record(device, call, get(device, &out[0], &out[1], &out[2], &out[3]));
}

// The answer for too small an array is the number of entries.
bool Library::retired_pages(Device device, uint32_t cause, uint32_t &count) {
    const char *call = "nvmlDeviceGetRetiredPages";
    auto get = reinterpret_cast<int (*)(Device, uint32_t, uint32_t *, uint64_t *)>(need(call));
    count = 0;
    if (!get || !may_call(device, call, cause)) return false;
    const int code = get(device, cause, &count, nullptr);
    return record(device, call, code == NVML_ABI_INSUFFICIENT_SIZE ? static_cast<int>(NVML_ABI_SUCCESS) : code, cause);
}

bool Library::fields(Device device, nvml_abi_field *fields, int count) {
    const char *call = "nvmlDeviceGetFieldValues";
    auto get = reinterpret_cast<int (*)(Device, int, nvml_abi_field *)>(need(call));
    return get && may_call(device, call) && record(device, call, get(device, count, fields));
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

bool Library::event_set(void *&set) {
    const char *call = "nvmlEventSetCreate";
    auto create = reinterpret_cast<int (*)(void **)>(need(call));
    return create && answered(call, create(&set));
}

bool Library::register_events(Device device, uint64_t types, void *set) {
    const char *call = "nvmlDeviceRegisterEvents";
    auto add = reinterpret_cast<int (*)(Device, unsigned long long, void *)>(need(call));
    return add && may_call(device, call) && record(device, call, add(device, types, set));
}

bool Library::memory(Device device, Memory &out) {
    const char *second_call = "nvmlDeviceGetMemoryInfo_v2", *first_call = "nvmlDeviceGetMemoryInfo";
    nvml_abi_memory_v2 second{};
    second.version = NVML_ABI_STRUCT_VERSION(nvml_abi_memory_v2, 2);
    auto get_second = reinterpret_cast<int (*)(Device, nvml_abi_memory_v2 *)>(find(second_call));
    if (get_second && may_call(device, second_call) && record(device, second_call, get_second(device, &second))) {
        out = Memory{second.total, second.reserved, second.used, second.free, true};
        return true;
    }
    nvml_abi_memory_v1 first{};
    auto get_first = reinterpret_cast<int (*)(Device, nvml_abi_memory_v1 *)>(need(first_call));
    if (!get_first || !may_call(device, first_call) || !record(device, first_call, get_first(device, &first)))
        return false;
    out = Memory{first.total, 0, first.used, first.free, false};
    return true;
}

bool Library::utilization(Device device, uint32_t &gpu, uint32_t &memory) {
    const char *call = "nvmlDeviceGetUtilizationRates";
    nvml_abi_utilization rates{};
    auto get = reinterpret_cast<int (*)(Device, nvml_abi_utilization *)>(need(call));
    if (!get || !may_call(device, call) || !record(device, call, get(device, &rates))) return false;
    gpu = rates.gpu;
    memory = rates.memory;
    return true;
}

bool Library::process_utilization(Device device, uint64_t last_seen_us, std::vector<Utilization> &out) {
    out.clear();
    const char *versioned = "nvmlDeviceGetProcessesUtilizationInfo", *plain = "nvmlDeviceGetProcessUtilization";
    if (auto get = reinterpret_cast<int (*)(Device, nvml_abi_processes_utilization *)>(find(versioned));
        get && may_call(device, versioned)) {
        static nvml_abi_processes_utilization_entry rows[MAX_ROWS];
        nvml_abi_processes_utilization request{};
        request.version = NVML_ABI_STRUCT_VERSION(nvml_abi_processes_utilization, 1);
        request.count = MAX_ROWS;
        request.last_seen_us = last_seen_us;
        request.entries = rows;
        const int code = get(device, &request);
        if (code == NVML_ABI_NOT_FOUND) return record(device, versioned, NVML_ABI_SUCCESS);
        if (record(device, versioned, code)) {
            for (unsigned i = 0; i < request.count && i < MAX_ROWS; i++) {
                out.push_back(
                    {rows[i].pid, rows[i].sm, rows[i].memory, rows[i].encoder, rows[i].decoder, rows[i].timestamp_us});
            }
            return true;
        }
    }
    auto get =
        reinterpret_cast<int (*)(Device, nvml_abi_process_utilization *, unsigned *, unsigned long long)>(need(plain));
    if (!get || !may_call(device, plain)) return false;
    static nvml_abi_process_utilization rows[MAX_ROWS];
    unsigned count = MAX_ROWS;
    const int code = get(device, rows, &count, last_seen_us);
    // NOT_FOUND means that no process ran.
    if (code == NVML_ABI_NOT_FOUND) return record(device, plain, NVML_ABI_SUCCESS);
    if (!record(device, plain, code)) return false;
    for (unsigned i = 0; i < count && i < MAX_ROWS; i++) {
        out.push_back(
            {rows[i].pid, rows[i].sm, rows[i].memory, rows[i].encoder, rows[i].decoder, rows[i].timestamp_us});
    }
    return true;
}

} // namespace nvml

// Calls NVML. Every function is looked up by name and may be missing, for drivers differ. The rest of the sampler does
// not touch the library. Return codes are passed on unchanged; every failure is counted by call and code.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

extern "C" {
#include "../../abi/nvml.h"
}

namespace nvml {

using Device = nvml_abi_device;

struct Entry {
    uint32_t pid = 0;
    uint64_t bytes = 0;
    bool known = false; // the driver reported the bytes
};

struct Utilization {
    uint32_t pid = 0;
    uint32_t sm = 0, memory = 0, encoder = 0, decoder = 0; // percent
    uint64_t at_us = 0;
};

struct Memory {
    uint64_t total = 0, reserved = 0, used = 0, free = 0;
    bool second_form = false; // reserved is not part of used
};

enum class List { Compute, Graphics, Mps };
enum class Division { Whole, Divided, Unknown };

class Library {
  public:
    // Opens the library and initializes it. On failure `problem` says why, and nothing is open.
    bool open(const std::string &path, std::string &problem);
    bool ready() const { return handle_ != nullptr; }

    // Sets the time. A call that failed twice in a row with NOT_SUPPORTED (3) or UNKNOWN (999) is suspended for that
    // GPU: for 2 s, then twice as long each time, up to a minute for 3 and 8 s for 999. Meanwhile it fails with the
    // same code and is not counted: repeating such calls does not help, and loads a driver in trouble.
    void at(uint64_t now_ns) { now_ns_ = now_ns; }
    // The device is another one now, or is back: ends all suspensions.
    void forget_refusals(Device device);

    // A call that is suspended as `at` says. It fails with FUNCTION_NOT_FOUND, which is not counted, if the driver
    // lacks it.
    struct Call {
        const char *name; // a literal
        uint64_t which;   // a selector, for each has its own result
        int also_good;    // this code means success, too
        Call(const char *called, uint64_t selector = 0, int good = NVML_ABI_SUCCESS)
            : name(called), which(selector), also_good(good) {}
    };
    template <typename... Args> bool ask(Device device, const Call &call, Args... args) {
        auto function = reinterpret_cast<int (*)(Device, Args...)>(need(call.name));
        if (!function) return absent();
        if (!may_call(device, call)) return false;
        return record(device, call, function(device, args...));
    }
    // One that is never suspended.
    template <typename... Args> bool call(const char *name, Args... args) {
        auto function = reinterpret_cast<int (*)(Args...)>(need(name));
        return function ? answered(name, function(args...)) : absent();
    }

    std::string text(const char *name); // facts of the system: nvmlSystemGetDriverVersion, ...
    int cuda_version();
    // `whole`: `out` has every GPU that the driver counts.
    bool devices(std::vector<Device> &out, bool &whole);
    // Whether MIG divides the GPU, and its instances; `whole`: `out` has all of them. IDs without an instance are left
    // out.
    Division instances(Device device, std::vector<Device> &out, bool &whole);
    bool device_text(Device device, const char *name, std::string &out);
    bool pci(Device device, std::string &out);
    bool memory(Device device, Memory &out);
    // False: not supported, failed, or the size of its entries cannot be determined. An empty list is a success.
    bool processes(Device device, List list, std::vector<Entry> &out);
    // Samples after `last_seen_us`; none where no process ran.
    bool process_utilization(Device device, uint64_t last_seen_us, std::vector<Utilization> &out);
    // The first of these functions that exists, for a thread that cannot use this class.
    void *address(const char *name, const char *or_else);
    void count(const char *call, int code, uint64_t times) { errors_[{call, code}] += times; }
    // Whether the library has this function.
    bool has(const char *call) { return find(call) != nullptr; }
    // Functions that were needed and that this driver lacks in every form; each is returned once.
    std::vector<std::string> take_absent();

    int last_code() const { return last_code_; }
    // Failures by call and code, except "not found" of an idle GPU.
    const std::map<std::pair<std::string, int>, uint64_t> &errors() const { return errors_; }
    // The code says that the GPU is lost or needs a reset.
    static bool means_lost(int code) { return code == NVML_ABI_GPU_IS_LOST || code == NVML_ABI_RESET_REQUIRED; }

  private:
    struct Refusal {
        unsigned times = 0; // in a row
        int code = 0;
        uint64_t again_ns = 0;
    };
    void *find(const char *name);
    bool answered(const char *call, int code);
    // Whether the call may be made now; its result then goes to `record`.
    bool may_call(Device device, const Call &call);
    bool record(Device device, const Call &call, int code);
    void *need(const char *name); // a missing function is reported
    bool absent();

    void *handle_ = nullptr;
    int last_code_ = 0;
    uint64_t now_ns_ = 0;
    std::map<std::string, void *> functions_;
    std::map<std::string, bool> absent_;                                         // true: reported already
    std::map<std::tuple<Device, std::string_view, uint64_t>, Refusal> refusals_; // names are literals
    std::map<std::pair<std::string, int>, uint64_t> errors_;
};

// The value of a field as a whole number; false: missing, or a fraction.
bool whole_number(const nvml_abi_field &field, uint64_t &out);

} // namespace nvml

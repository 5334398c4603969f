// NVML through a table of functions looked up by name, each of which may be missing: drivers differ. Nothing else in
// the sampler knows the library. Return codes are handed up as they are; every failure is counted by call and code.
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
    bool known = false; // the driver told the bytes
};

struct Utilization {
    uint32_t pid = 0;
    uint32_t sm = 0, memory = 0, encoder = 0, decoder = 0; // percent
    uint64_t at_us = 0;
};

struct Memory {
    uint64_t total = 0, reserved = 0, used = 0, free = 0;
    bool second_form = false; // reserved is told apart from used
};

enum class List { Compute, Graphics, Mps };
enum class Division { Whole, Divided, Unknown };

class Library {
  public:
    // Opens the library and initializes it. On failure `problem` says why in words, and nothing is open.
    bool open(const std::string &path, std::string &problem);
    void close();
    bool ready() const { return handle_ != nullptr; }

    // Time goes on. What a GPU refuses it will refuse in the next second, too, and a driver in trouble is not helped
    // by questions: a call that answered twice in a row that it is not supported (3), or that it failed for no known
    // reason (999), is asked of that GPU after 2 s again, then after twice as long each time, up to a minute or to 8
    // s. Until then it fails with the same code, and counts as no failure.
    void at(uint64_t now_ns) { now_ns_ = now_ns; }
    // The GPU is another one now, or it is back: everything is asked anew.
    void forget_refusals(Device device);

    std::string text(const char *call); // system facts: nvmlSystemGetDriverVersion, ...
    int cuda_version();
    // `whole`: each GPU that the driver counts is in `out`.
    bool devices(std::vector<Device> &out, bool &whole);
    // Whether it is divided, and its instances; `whole`: each of them is in `out`. Numbers without an instance are left
    // out.
    Division instances(Device device, std::vector<Device> &out, bool &whole);
    bool device_text(Device device, const char *call, std::string &out);
    bool number(Device device, const char *call, uint32_t &out);
    bool number(Device device, const char *call, uint32_t which, uint32_t &out); // a call with a selector
    bool number64(Device device, const char *call, uint64_t &out);
    bool number64(Device device, const char *call, uint32_t which, uint32_t form, uint64_t &out);
    bool number_pair(Device device, const char *call, uint32_t &first, uint32_t &second);
    bool pci(Device device, std::string &out);
    bool memory(Device device, Memory &out);
    bool utilization(Device device, uint32_t &gpu, uint32_t &memory);
    // False: not supported, or failed, or nobody can tell how its answer is to be read. An empty list is a success.
    bool processes(Device device, List list, std::vector<Entry> &out);
    // Since `last_seen_us`; *found is false when the driver says that nobody ran.
    bool process_utilization(Device device, uint64_t last_seen_us, std::vector<Utilization> &out);
    // Rows remapped because of corrected and of uncorrected errors, remapping pending, remapping failed.
    bool remapped_rows(Device device, uint32_t (&out)[4]);
    bool retired_pages(Device device, uint32_t cause, uint32_t &count);
    bool fields(Device device, nvml_abi_field *fields, int count);
    // Counters of a GPU's parts (GPM; from Hopper and driver 520 on). False: last_code() says why not; a driver
    // without these calls counts as no failure of it. Of an instance: its GPU's handle and its number.
    bool gpm_supported(Device device, bool &supported);
    void *gpm_sample(); // a place for one; null: none is to be had
    void gpm_free(void *sample);
    bool gpm_take(Device device, const uint32_t *gpu_instance, void *sample);
    bool gpm_metrics(nvml_abi_gpm_request &request); // each metric has a result of its own
    // For a thread of its own, which cannot use the rest of this class: the first of these that is there.
    void *address(const char *name, const char *or_else);
    bool event_set(void *&set);
    bool register_events(Device device, uint64_t types, void *set);
    void count(const char *call, int code, uint64_t times) { errors_[{call, code}] += times; }
    // Whether the library has it by name.
    bool has(const char *call) { return find(call) != nullptr; }
    // Calls that were wanted and that this driver has in no form, by name; each is told once.
    std::vector<std::string> take_absent();

    int last_code() const { return last_code_; }
    // How often each call answered each code other than success, "not found" of an idle GPU excepted.
    const std::map<std::pair<std::string, int>, uint64_t> &errors() const { return errors_; }
    // The last device call said that the GPU is lost or wants a reset.
    static bool means_lost(int code) { return code == NVML_ABI_GPU_IS_LOST || code == NVML_ABI_RESET_REQUIRED; }

  private:
    struct Refusal {
        unsigned times = 0; // in a row
        int code = 0;
        uint64_t again_ns = 0;
    };
    void *find(const char *name);
    bool answered(const char *call, int code);
    // Whether it may be asked now; then its answer goes to `noted`. `which`: a selector, for each has its own answers.
    bool may_call(Device device, const char *call, uint64_t which = 0);
    bool record(Device device, const char *call, int code, uint64_t which = 0);
    void *need(const char *name); // what is wanted and not there is told of
    bool absent();

    void *handle_ = nullptr;
    int last_code_ = 0;
    uint64_t now_ns_ = 0;
    std::map<std::string, void *> functions_;
    std::map<std::string, bool> absent_;                                         // told already
    std::map<std::tuple<Device, std::string_view, uint64_t>, Refusal> refusals_; // names are literals
    std::map<std::pair<std::string, int>, uint64_t> errors_;
};

// A value by number, where it is there and no fraction.
bool whole_number(const nvml_abi_field &field, uint64_t &out);

} // namespace nvml

#include "sampler.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "common/clock.h"
#include "common/json.h"

using json::add_field;
using json::open;

namespace {

constexpr uint64_t RETRY_NS = 5000000000ull; // between attempts to open a driver

} // namespace

Sampler::~Sampler() {
    for (Gpu &gpu : gpus_) gpu.gpm.forget(library_);
}

bool Sampler::open_driver() {
    if (library_.ready()) return true;
    const uint64_t now = clock_ns(CLOCK_MONOTONIC);
    if (now < retry_at_ns_) return false;
    retry_at_ns_ = now + RETRY_NS;
    if (!library_.open(library_path_, problem_)) {
        resume_points_.clear(); // the driver that comes later is another one
        return false;
    }
    problem_.clear();
    driver_version_.clear();
    cuda_version_ = 0;
    inventory_ns_ = 0;
    return true;
}

// Compute, graphics and MPS lists name the same process with the same total, so they are united, never added; so are
// entries of one list with the same PID. Entries with an invalid PID are dropped: the agent would reject the whole
// line. A size beyond the GPU's memory counts as unknown. A listed PID may have been reused (pid_reuse.h), also by a
// process that started while the driver was answering, or in the same clock tick: that one is listed in the next round.
// A list that the driver lacks counts as empty; one that failed is reported by name, for its processes are unknown. A
// graphics or MPS list that has never answered and keeps failing counts as one that the driver lacks: it must not keep
// the agent from acting on the other lists.
void Sampler::read_lists(size_t index, std::string &out) {
    static const nvml::List LISTS[] = {nvml::List::Compute, nvml::List::Graphics, nvml::List::Mps};
    static const char *const NAMES[] = {"compute", "graphics", "mps"};
    Gpu &gpu = gpus_[index];
    std::vector<nvml::Entry> entries[3];
    std::vector<const char *> read, failed;
    uint32_t answered = 0;
    uint64_t asked_ticks[3] = {};
    for (unsigned i = 0; i < 3; i++) {
        asked_ticks[i] = proc::now_ticks();
        if (!library_.processes(gpu.device, LISTS[i], entries[i])) {
            const int code = library_.last_code(); // also while the call is suspended
            gpu.lost = gpu.lost || nvml::Library::means_lost(code);
            if (code == NVML_ABI_NOT_SUPPORTED || code == NVML_ABI_FUNCTION_NOT_FOUND) answered |= 1u << i;
            else if (i == 0 || gpu.list_answered[i] || ++gpu.list_failures[i] <= MAX_LIST_FAILURES)
                failed.push_back(NAMES[i]);
            continue;
        }
        gpu.answered = gpu.list_answered[i] = true;
        read.push_back(NAMES[i]);
        answered |= 1u << i;
        gpu.invalid_pid_entries +=
            std::erase_if(entries[i], [](const nvml::Entry &entry) { return !proc::is_pid(entry.pid); });
    }
    json::add_list(out, "processLists", read);
    if (!failed.empty()) json::add_list(out, "failedProcessLists", failed);
    const uint64_t answered_us = clock_ns(CLOCK_BOOTTIME) / 1000;
    processes_.poll_exits();
    gpu.pid_reuse.begin(answered);
    for (unsigned i = 0; i < 3; i++) {
        for (const nvml::Entry &entry : entries[i]) {
            const auto pid = static_cast<pid_t>(entry.pid);
            const auto bytes = entry.known ? std::optional(entry.bytes) : std::nullopt;
            gpu.pid_reuse.add(pid, bytes, i, processes_.start_of(pid), asked_ticks[i], answered_us);
        }
    }
    gpu.pid_reuse.finish([this](pid_t pid) { return processes_.start_of(pid); }, answered_us);
    const uint64_t most = gpu.total_bytes ? gpu.total_bytes : UINT64_MAX;
    for (unsigned i = 0; i < 3; i++) {
        for (const nvml::Entry &entry : entries[i]) {
            const auto pid = static_cast<pid_t>(entry.pid);
            if (gpu.pid_reuse.is_reused(pid, processes_.start_of(pid))) {
                gpu.invalid_pid_entries++;
                continue;
            }
            Usage *usage = processes_.listed(pid, index, asked_ticks[i]);
            if (!usage) continue;
            usage->listed = true;
            usage->types |= 1u << i;
            if (!entry.known || entry.bytes > most) continue;
            usage->bytes = std::max(usage->bytes, entry.bytes);
            usage->bytes_known = true;
        }
    }
}

bool Sampler::read_memory(Gpu &gpu, nvml::Memory &memory) {
    gpu.answered = library_.memory(gpu.device, memory);
    gpu.lost = !gpu.answered && nvml::Library::means_lost(library_.last_code());
    return gpu.answered;
}

void Sampler::write_memory(Gpu &gpu, std::string &out) {
    nvml::Memory memory;
    // All ones, or more than the total, mean that the driver does not know.
    if (!read_memory(gpu, memory) || memory.total == UINT64_MAX) return;
    gpu.total_bytes = memory.total;
    add_field(out, "totalBytes", memory.total);
    if (memory.used <= memory.total) add_field(out, "usedBytes", memory.used);
    if (memory.free <= memory.total) add_field(out, "freeBytes", memory.free);
    if (memory.second_form && memory.reserved <= memory.total) add_field(out, "reservedBytes", memory.reserved);
}

void Sampler::write_readings(Gpu &gpu, std::string &out) {
    nvml_abi_utilization busy{};
    if (library_.ask(gpu.device, "nvmlDeviceGetUtilizationRates", &busy)) {
        if (busy.gpu <= 100) add_field(out, "utilizationPercent", busy.gpu);
        if (busy.memory <= 100) add_field(out, "memoryBusyPercent", busy.memory);
    }
    Readings fast;
    read_fast(library_, gpu.device, fast);
    for (const auto &[name, value] : fast) add_field(out, name, value);
    if (readings_due_ || gpu.slow_readings.empty()) {
        gpu.slow_readings = read_slow(library_, gpu.device);
        read_constants(library_, gpu.device, gpu.constants);
    }
    for (const auto &[name, value] : gpu.slow_readings) add_field(out, name, value);
    for (const auto &[name, value] : gpu.constants) add_field(out, name, value);
    add_field(out, "reportsXids", gpu.reports_events);
}

// On a GPU divided by MIG its instances have these counters; of several instances that share one GPU instance, the
// first.
void Sampler::write_gpm(Gpu &gpu, std::string &out) {
    if (gpu.divided || gpu.same_memory || (gpu.instance && !gpu.has_numbers)) {
        gpu.gpm.forget(library_);
        return;
    }
    const nvml::Device device = gpu.instance ? gpus_[gpu.parent].device : gpu.device;
    const uint32_t *instance = gpu.instance ? &gpu.gpu_instance : nullptr;
    for (const auto &[name, parts] : gpu.gpm.read(library_, device, instance, clock_ns(CLOCK_MONOTONIC)))
        add_field(out, name, parts);
    if (gpu.gpm.denied()) add_field(out, "gpmDenied", true);
}

// A lost GPU gets only the calls that show whether it is back.
bool Sampler::is_back(Gpu &gpu) {
    std::vector<nvml::Entry> entries;
    nvml::Memory memory;
    const auto says_lost = [&] { return nvml::Library::means_lost(library_.last_code()); };
    if (!gpu.divided && !library_.processes(gpu.device, nvml::List::Compute, entries) && says_lost()) return false;
    if (!library_.memory(gpu.device, memory) && says_lost()) return false;
    library_.forget_refusals(gpu.device);
    gpu.slow_readings.clear();
    gpu.constants.clear();
    gpu.reports_events = false;
    changed_ = true;
    return true;
}

// What MIG instances share is reported for the GPU, what each has for itself for the instance, so that no sum counts
// anything twice.
void Sampler::write_gpu(size_t index, std::string &out) {
    Gpu &gpu = gpus_[index];
    open(out, '{');
    add_field(out, "index", index);
    add_field(out, "uuid", gpu.uuid);
    add_field(out, "name", gpu.name);
    add_field(out, "pciBusId", gpu.pci);
    if (gpu.has_minor) add_field(out, "minor", gpu.minor);
    if (!gpu.links.empty()) json::add_list(out, "links", gpu.links);
    if (!gpu.numa_nodes.empty()) json::add_list(out, "numaNodes", gpu.numa_nodes);
    if (gpu.instance) {
        add_field(out, "parent", gpu.parent);
        if (gpu.has_numbers) {
            add_field(out, "gpuInstance", gpu.gpu_instance);
            add_field(out, "computeInstance", gpu.compute_instance);
        }
    } else if (!gpu.mig_mode_known) {
        add_field(out, "migModeUnknown", true);
    }
    gpu.answered = false;
    if (utilization_due_) gpu.has_process_utilization = false;
    if (gpu.divided) add_field(out, "migEnabled", true);
    const bool was_lost = gpu.lost;
    if (gpu.instance ? gpus_[gpu.parent].lost : was_lost && !is_back(gpu)) {
        gpu.lost = true;
        gpu.has_process_utilization = false;
        gpu.pid_reuse.clear();
        json::add_list(out, "processLists", std::vector<const char *>());
    } else {
        gpu.lost = false;
        write_use(index, out);
        if (gpu.lost != was_lost || (gpu.instance && !gpu.answered)) changed_ = true;
    }
    add_field(out, "utilizationGaps", gpu.gaps);
    if (gpu.invalid_pid_entries) add_field(out, "invalidPidEntries", gpu.invalid_pid_entries);
    if (gpu.has_process_utilization) add_field(out, "hasProcessUtilization", true);
    add_field(out, "healthy", !gpu.lost);
    out += '}';
}

void Sampler::write_use(size_t index, std::string &out) {
    Gpu &gpu = gpus_[index];
    if (!gpu.divided && !gpu.same_memory) write_memory(gpu, out);
    if (!gpu.instance) write_readings(gpu, out);
    write_gpm(gpu, out);
    if (gpu.divided) {
        nvml::Memory memory;
        read_memory(gpu, memory);
        gpu.has_process_utilization = false;
        json::add_list(out, "processLists", std::vector<const char *>());
    } else {
        read_lists(index, out);
        if (!gpu.instance && utilization_due_)
            integrate(index, clock_ns(CLOCK_REALTIME) / 1000, clock_ns(CLOCK_BOOTTIME) / 1000);
    }
}

// Drops events of GPUs that are not in the inventory.
void Sampler::write_events(std::string &out) {
    std::map<int, uint64_t> errors;
    open(out, "xids", '[');
    for (const nvml::Event &event : events_.take(errors)) {
        const auto gpu =
            std::find_if(gpus_.begin(), gpus_.end(), [&](const Gpu &other) { return other.device == event.device; });
        if (gpu == gpus_.end() || event.type != NVML_ABI_EVENT_XID) continue;
        open(out, '{');
        add_field(out, "gpu", gpu - gpus_.begin());
        add_field(out, "xid", event.data);
        add_field(out, "count", event.count);
        add_field(out, "atMs", event.at_ms);
        out += '}';
    }
    out += ']';
    for (const auto &[code, times] : errors) library_.count("nvmlEventSetWait_v2", code, times);
}

void Sampler::write_errors(std::string &out) {
    open(out, "errors", '[');
    for (const auto &[key, count] : library_.errors()) {
        open(out, '{');
        add_field(out, "call", key.first);
        add_field(out, "code", static_cast<uint64_t>(key.second));
        add_field(out, "count", count);
        out += '}';
    }
    out += ']';
    const std::vector<std::string> absent = library_.take_absent();
    if (!absent.empty()) json::add_list(out, "absent", absent);
}

// Rounds are rarely exactly on time, so the last tenth of a period counts as all of it.
bool Sampler::is_due(uint64_t &last_ns, uint64_t now_ns, uint64_t period_ms) {
    if (last_ns != 0 && now_ns - last_ns < period_ms * 900000) return false;
    last_ns = now_ns;
    return true;
}

std::string Sampler::take() {
    round_++;
    const uint64_t started = clock_ns(CLOCK_MONOTONIC);
    utilization_due_ = is_due(utilization_ns_, started, pace_.utilization_ms);
    readings_due_ = is_due(readings_ns_, started, pace_.readings_ms);
    const bool ready = open_driver();
    library_.at(started);
    if (ready) read_inventory(started);
    std::string out = "{";
    add_field(out, "round", round_);
    add_field(out, "atMs", clock_ns(CLOCK_REALTIME) / 1000000);
    add_field(out, "bootNs", clock_ns(CLOCK_BOOTTIME));
    if (!ready) add_field(out, "problem", problem_);
    add_field(out, "driverVersion", driver_version_);
    add_field(out, "cudaVersion", static_cast<uint64_t>(cuda_version_));
    processes_.begin(round_, utilization_due_);
    open(out, "gpus", '[');
    for (size_t i = 0; ready && i < gpus_.size(); i++) {
        if (!gpus_[i].gone) write_gpu(i, out);
    }
    out += ']';
    const bool silent =
        ready && !gpus_.empty() && std::none_of(gpus_.begin(), gpus_.end(), [](const Gpu &gpu) {
            return (gpu.answered && !gpu.gone) || gpu.lost; // a driver that reports a GPU as lost is still there
        });
    silent_rounds_ = silent ? silent_rounds_ + 1 : 0;
    processes_.write_changes(out);
    write_events(out);
    write_resume_points(out);
    write_errors(out);
    if (silent) add_field(out, "problem", "the driver answers nothing about any GPU");
    add_field(out, "tookUs", (clock_ns(CLOCK_MONOTONIC) - started) / 1000);
    out += "}\n";
    return out;
}

// One round of sampling: the readings of every GPU and its use by processes. The processes themselves are the tracker's
// part.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nvml/events.h"
#include "nvml/gpm.h"
#include "nvml/nvml.h"
#include "nvml/readings.h"
#include "processes/pid_reuse.h"
#include "processes/tracker.h"

class Sampler {
  public:
    // How often what costs the driver milliseconds is read, at most; the rest is read in every round.
    struct Pace {
        uint64_t utilization_ms = 1000; // of processes: the driver keeps their samples for longer
        uint64_t readings_ms = 5000;    // of the GPU: energy, clocks, errors, ...
    };
    Sampler(std::string library, Pace pace) : pace_(pace), library_path_(std::move(library)) {}
    Sampler(const Sampler &) = delete;
    Sampler &operator=(const Sampler &) = delete;
    ~Sampler();
    // Where an earlier sampler stopped reading a GPU's process utilization. Samples that the driver has kept since then
    // are counted in the first round. To be set before the first sample, and only for the same driver.
    struct ResumePoint {
        uint64_t day_us = 0;  // wall clock, which the driver uses for its timestamps
        uint64_t boot_us = 0; // time since boot, which nothing sets
        uint64_t set_us = 0;  // when a step of the wall clock was last seen, since boot; 0: never
    };
    void resume(const std::string &uuid, const ResumePoint &until) { resume_points_[uuid] = until; }
    // Takes the next sample and returns it as one line of JSON. Tries to open the driver again while there is none.
    std::string take();
    // The driver has answered no call about any GPU for some rounds: it was unloaded or replaced. The library that this
    // process has open belongs to the old one.
    bool driver_gone() const { return silent_rounds_ >= SILENT_ROUNDS; }

  private:
    static constexpr unsigned SILENT_ROUNDS = 2;
    static constexpr unsigned MAX_LIST_FAILURES = 60; // in rounds
    struct Gpu {
        nvml::Device device = nullptr;
        std::string uuid, name, pci;
        uint32_t minor = 0;
        bool has_minor = false, lost = false;
        bool divided = false; // by MIG: memory and processes belong to its instances
        bool mig_mode_known = false;
        bool gone = false; // not there now; its index stays reserved
        // Of a MIG instance: its GPU, its IDs, and whether an earlier instance has the same memory.
        bool instance = false, same_memory = false;
        size_t parent = 0;
        uint32_t gpu_instance = 0, compute_instance = 0;
        bool has_numbers = false;
        bool answered = false; // memory or processes were read in this round; other facts may outlive a driver
        bool has_process_utilization = false; // when it was last due, the use of each process was read
        uint64_t last_seen_us = 0;            // newest utilization sample counted; 0 = none yet
        uint64_t last_poll_us = 0;            // since boot, as the two below
        uint64_t stepped_us = 0;              // when a step of the wall clock was last seen; 0: never
        int64_t clock_us = 0;                 // wall clock minus time since boot
        uint64_t gaps = 0;                    // how often the driver's ring of samples overran before it was read
        uint64_t total_bytes = 0;             // as last read; 0: never
        PidReuse pid_reuse;
        bool list_answered[3] = {}; // has answered at least once: compute, graphics, MPS
        unsigned list_failures[3] = {};
        uint64_t invalid_pid_entries = 0; // entries of process lists whose PID is invalid or was reused
        Readings slow_readings, constants;
        std::vector<unsigned> links, numa_nodes; // topology.cc; by index of the other GPU
        bool reports_events = false;
        GpmReader gpm;
    };
    bool open_driver();
    void read_inventory(uint64_t now_ns);
    bool is_back(Gpu &gpu);
    void read_facts(Gpu &gpu);
    void read_topology();
    size_t add_gpu(nvml::Device device, const std::string &uuid);
    void add_instances(size_t parent);
    void read_lists(size_t index, std::string &out);
    void start_from_resume_point(Gpu &gpu, uint64_t steady_us);
    void integrate(size_t index, uint64_t now_us, uint64_t steady_us);
    void write_resume_points(std::string &out);
    void write_gpu(size_t index, std::string &out);
    void write_use(size_t index, std::string &out);
    bool read_memory(Gpu &gpu, nvml::Memory &memory);
    void write_memory(Gpu &gpu, std::string &out);
    void write_readings(Gpu &gpu, std::string &out);
    void write_gpm(Gpu &gpu, std::string &out);
    void write_events(std::string &out);
    void write_errors(std::string &out);

    static bool is_due(uint64_t &last_ns, uint64_t now_ns, uint64_t period_ms);

    const Pace pace_;
    bool utilization_due_ = false, readings_due_ = false; // in this round
    uint64_t utilization_ns_ = 0, readings_ns_ = 0;       // when they were last due; 0: never
    std::string library_path_, problem_;
    nvml::Library library_;
    nvml::Events events_;
    std::vector<Gpu> gpus_;
    std::vector<nvml::Device> attached_; // those whose topology was read
    Processes processes_;
    std::map<std::string, ResumePoint> resume_points_; // of GPUs not read yet
    unsigned silent_rounds_ = 0;
    uint64_t round_ = 0, inventory_ns_ = 0, retry_at_ns_ = 0;
    bool changed_ = false; // a GPU was lost or came back, or an instance does not answer: read the inventory again
    std::string driver_version_;
    int cuda_version_ = 0;
};

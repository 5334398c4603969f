// One round of sampling: every GPU's readings, who uses it and how much. Who those processes are is Processes'
// business.
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
    explicit Sampler(std::string library) : library_path_(std::move(library)) {}
    Sampler(const Sampler &) = delete;
    Sampler &operator=(const Sampler &) = delete;
    ~Sampler();
    // A sampler before this one has told of a GPU's use up to there. What the driver has kept of the time since then
    // counts, as after a long round. Before the first snapshot, and of the same driver only.
    struct ResumePoint {
        uint64_t day_us = 0;  // by the time of day, by which the driver stamps what it samples
        uint64_t boot_us = 0; // since boot: a clock that nobody sets
        uint64_t set_us = 0;  // when the time of day was last seen to be another one, since boot; 0: never
    };
    void resume(const std::string &uuid, const ResumePoint &until) { resume_points_[uuid] = until; }
    // The next snapshot as one line of JSON. Tries to open the driver again when there is none yet.
    std::string take();
    // The driver has answered nothing about any GPU for a while: it was taken away, or another one came in its place.
    // The library that this process has open belongs to the old one.
    bool driver_gone() const { return silent_rounds_ >= SILENT_ROUNDS; }

  private:
    static constexpr unsigned SILENT_ROUNDS = 2;
    static constexpr unsigned MAX_LIST_FAILURES = 60; // in rounds
    struct Gpu {
        nvml::Device device = nullptr;
        std::string uuid, name, pci;
        uint32_t minor = 0;
        bool has_minor = false, lost = false;
        bool divided = false; // MIG: its memory and processes are its instances'
        bool mig_mode_known = false;
        bool gone = false; // it is not there (any more); its place stays
        // Of an instance: its GPU, its numbers, and whether another one with the same memory stands before it.
        bool instance = false, same_memory = false;
        size_t parent = 0;
        uint32_t gpu_instance = 0, compute_instance = 0;
        bool has_numbers = false;
        bool answered = false; // its memory or its processes were told in this round; facts may outlive a driver
        bool has_process_utilization = false; // how much each process used since the round before was, too
        uint64_t last_seen_us = 0;            // newest utilization sample taken into account; 0 = none yet
        uint64_t last_poll_us = 0;            // by a clock that nobody sets, as the two below
        uint64_t stepped_us = 0;              // when the time of day was last seen to be another one; 0: never
        int64_t clock_us = 0;     // what is to be added for the time of day, by which the driver stamps what it samples
        uint64_t gaps = 0;        // times that the driver's ring overran before it was read
        uint64_t total_bytes = 0; // as it was last told; 0: never
        PidReuse pid_reuse;
        bool list_answered[3] = {}; // ever: compute, graphics, MPS
        unsigned list_failures[3] = {};
        uint64_t invalid_pid_entries = 0; // of process lists: pids that no process can have, and others' than they were
        Readings slow_readings;
        uint64_t slow_round = 0, slow_ns = 0;
        bool reports_events = false;
        GpmReader gpm;
    };
    bool open_driver();
    void read_inventory(uint64_t now_ns);
    bool is_back(Gpu &gpu);
    void read_facts(Gpu &gpu);
    size_t add_gpu(nvml::Device device, const std::string &uuid);
    void add_instances(size_t parent);
    void read_lists(size_t index, std::string &out);
    void start_from_resume_point(Gpu &gpu, uint64_t steady_us);
    void integrate(size_t index, uint64_t now_us, uint64_t steady_us);
    void write_resume_points(std::string &out);
    void write_gpu(size_t index, std::string &out);
    void write_memory(Gpu &gpu, std::string &out);
    void write_readings(Gpu &gpu, std::string &out);
    void write_gpm(Gpu &gpu, std::string &out);
    void write_events(std::string &out);

    std::string library_path_, problem_;
    nvml::Library library_;
    nvml::Events events_;
    std::vector<Gpu> gpus_;
    Processes processes_;
    std::map<std::string, ResumePoint> resume_points_; // of GPUs that this one has not asked yet
    unsigned silent_rounds_ = 0;
    uint64_t round_ = 0, inventory_ns_ = 0, retry_at_ns_ = 0;
    bool changed_ = false; // a GPU was lost or came back, or an instance answers nothing: who is there is asked for
    std::string driver_version_;
    int cuda_version_ = 0;
};

/* Facts about the binary interface of NVIDIA's management library NVML (LP64), in our own words: sizes, offsets and
 * values. The entry of the newest process list has had 24 and (530, and 535.43 to 535.86) 32 bytes under one symbol
 * name, so a reader must find out its size. No behavior here. */
#pragma once

#include <assert.h>
#include <stdint.h>

typedef int nvml_abi_return;
typedef void *nvml_abi_device;

enum {
    NVML_ABI_SUCCESS = 0,
    NVML_ABI_UNINITIALIZED = 1,
    NVML_ABI_INVALID_ARGUMENT = 2,
    NVML_ABI_NOT_SUPPORTED = 3,
    NVML_ABI_NO_PERMISSION = 4,
    NVML_ABI_NOT_FOUND = 6,
    NVML_ABI_INSUFFICIENT_SIZE = 7,
    NVML_ABI_DRIVER_NOT_LOADED = 9,
    NVML_ABI_TIMEOUT = 10,
    NVML_ABI_LIBRARY_NOT_FOUND = 12,
    NVML_ABI_FUNCTION_NOT_FOUND = 13,
    NVML_ABI_GPU_IS_LOST = 15,
    NVML_ABI_RESET_REQUIRED = 16,
    NVML_ABI_OPERATING_SYSTEM = 17,
    NVML_ABI_VERSION_MISMATCH = 18,
    NVML_ABI_MEMORY = 20,
    NVML_ABI_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ABI_UNKNOWN = 999,
};

#define NVML_ABI_NOT_AVAILABLE_U64 0xffffffffffffffffull
#define NVML_ABI_NO_INSTANCE 0xffffffffu
#define NVML_ABI_UUID_BYTES 96
#define NVML_ABI_NAME_BYTES 96
#define NVML_ABI_VERSION_BYTES 80

/* A versioned structure begins with its size and version in one word. */
#define NVML_ABI_STRUCT_VERSION(type, version) ((uint32_t)(sizeof(type) | ((uint32_t)(version) << 24)))

struct nvml_abi_memory_v1 {
    uint64_t total, free, used; /* used contains what v2 calls reserved */
};
struct nvml_abi_memory_v2 {
    uint32_t version, pad;
    uint64_t total, reserved, free, used;
};
struct nvml_abi_utilization {
    uint32_t gpu, memory; /* percent of time */
};
struct nvml_abi_process_v1 {
    uint32_t pid, pad;
    uint64_t bytes;
};
struct nvml_abi_process_v2 {
    uint32_t pid, pad;
    uint64_t bytes;
    uint32_t gpu_instance, compute_instance;
};
struct nvml_abi_process_535 {
    uint32_t pid, pad;
    uint64_t bytes;
    uint32_t gpu_instance, compute_instance;
    uint64_t protected_bytes;
};
struct nvml_abi_process_detail_list {
    uint32_t version, mode, count, pad;
    struct nvml_abi_process_535 *entries;
};
struct nvml_abi_process_utilization {
    uint32_t pid, pad;
    uint64_t timestamp_us;
    uint32_t sm, memory, encoder, decoder;
};
struct nvml_abi_processes_utilization_entry {
    uint64_t timestamp_us;
    uint32_t pid, sm, memory, encoder, decoder, jpeg, ofa, pad;
};
struct nvml_abi_processes_utilization {
    uint32_t version, count;
    uint64_t last_seen_us;
    struct nvml_abi_processes_utilization_entry *entries;
};
struct nvml_abi_accounting_v1 {
    uint32_t gpu_percent, memory_percent;
    uint64_t max_bytes, time_ms, start_us;
    uint32_t running;
    uint32_t reserved[5];
};
struct nvml_abi_accounting_v2 {
    uint32_t pid; /* requested */
    uint32_t running, gpu_percent, memory_percent;
    uint64_t max_bytes;
    uint32_t samples, pad;
    uint64_t sum_gpu, sum_memory, time_ms, start_us;
};
struct nvml_abi_sample {
    uint64_t timestamp_us;
    uint64_t value; /* of the type that the call names */
};
/* Types of samples. */
enum {
    NVML_ABI_SAMPLES_POWER = 0,
    NVML_ABI_SAMPLES_GPU = 1,
    NVML_ABI_SAMPLES_MEMORY = 2,
    NVML_ABI_SAMPLES_ENCODER = 3,
    NVML_ABI_SAMPLES_DECODER = 4,
    NVML_ABI_SAMPLES_JPEG = 8,
    NVML_ABI_SAMPLES_OFA = 9,
};
enum {
    NVML_ABI_VALUE_DOUBLE = 0,
    NVML_ABI_VALUE_UNSIGNED = 1,
    NVML_ABI_VALUE_LONG = 2,
    NVML_ABI_VALUE_LONG_LONG = 3,
};
struct nvml_abi_pci_v3 {
    char legacy_id[16];
    uint32_t domain, bus, device, device_id, subsystem_id;
    char id[32];
};
struct nvml_abi_uuid {
    uint32_t version, type;
    char text[41]; /* of the type that is named: text, or 16 bytes */
};
enum { NVML_ABI_UUID_ASCII = 1, NVML_ABI_UUID_BINARY = 2 };
/* Kinds of ECC errors and of counters, in the order of their numbers. */
enum { NVML_ABI_ECC_CORRECTED = 0, NVML_ABI_ECC_UNCORRECTED = 1 };
enum { NVML_ABI_ECC_SINCE_RELOAD = 0, NVML_ABI_ECC_SINCE_PRODUCTION = 1 };
/* Why a page was retired: several corrected errors, or one that could not be corrected. */
enum { NVML_ABI_PAGES_CORRECTED = 0, NVML_ABI_PAGES_UNCORRECTED = 1 };
/* Why clocks are lower than they could be; bits of one word. */
enum {
    NVML_ABI_CLOCKS_IDLE = 0x1,
    NVML_ABI_CLOCKS_APPLICATION = 0x2,
    NVML_ABI_CLOCKS_POWER_CAP = 0x4,
    NVML_ABI_CLOCKS_HW_SLOWDOWN = 0x8,
    NVML_ABI_CLOCKS_SYNC_BOOST = 0x10,
    NVML_ABI_CLOCKS_SW_THERMAL = 0x20,
    NVML_ABI_CLOCKS_HW_THERMAL = 0x40,
    NVML_ABI_CLOCKS_POWER_BRAKE = 0x80,
    NVML_ABI_CLOCKS_DISPLAY = 0x100,
};
/* Field values, requested by number, several in one call; scope names a link, or all of them as below. */
enum {
    NVML_ABI_FIELD_MEMORY_TEMPERATURE = 82,
    NVML_ABI_FIELD_ENERGY_MILLIJOULES = 83,
    NVML_ABI_FIELD_NVLINK_SENT_KIB = 138,
    NVML_ABI_FIELD_NVLINK_RECEIVED_KIB = 139,
    NVML_ABI_FIELD_PCIE_SENT_BYTES = 197,
    NVML_ABI_FIELD_PCIE_RECEIVED_BYTES = 198,
};
#define NVML_ABI_FIELD_ALL_LINKS 0xffffffffu
/* What two GPUs have in common: the nearest part of the node to which both are attached. */
enum {
    NVML_ABI_COMMON_BOARD = 0,
    NVML_ABI_COMMON_SWITCH = 10,
    NVML_ABI_COMMON_SWITCHES = 20,
    NVML_ABI_COMMON_HOST_BRIDGE = 30,
    NVML_ABI_COMMON_NUMA_NODE = 40,
    NVML_ABI_COMMON_SYSTEM = 50,
};
#define NVML_ABI_MAX_LINKS 18
/* What is at the other end of an NVLink. */
enum { NVML_ABI_LINK_GPU = 0, NVML_ABI_LINK_NPU = 1, NVML_ABI_LINK_SWITCH = 2, NVML_ABI_LINK_UNKNOWN = 255 };
struct nvml_abi_field {
    uint32_t id, scope; /* requested */
    int64_t timestamp_us, latency_us;
    uint32_t value_type; /* NVML_ABI_VALUE_* */
    int32_t result;      /* of this one alone */
    uint64_t value;      /* of that type, in its first bytes */
};
/* Types of events; a set is registered for the sum of the wanted ones. */
enum { NVML_ABI_EVENT_XID = 0x8, NVML_ABI_EVENT_MIG = 0x100 };
/* Drivers from 615 on; the name space is the full path of a group's folder. These structures have no version. */
struct nvml_abi_set_memory_limits {
    const char *name_space;
    uint64_t soft_bytes, hard_bytes;
};
struct nvml_abi_get_memory_limits {
    const char *name_space;
    uint64_t soft_bytes, hard_bytes, used_bytes;
};
#define NVML_ABI_MEMORY_LIMIT_MAX 0xffffffffffffffffull /* with a soft limit of 0: no limit */
/* GPM counters, from Hopper on. A metric is computed from two samples. Only the request has a version, which is not
 * a size. Its array has grown from 98 entries to 333 under the same version: the driver reads as many as are
 * counted, so allocate all. The calls came with 520, that of an instance with 525. */
#define NVML_ABI_GPM_VERSION 1u
#define NVML_ABI_GPM_MOST 333
/* Percent unless stated otherwise. From 248 on newer drivers have counts since the reboot, which are not used here. */
enum {
    NVML_ABI_GPM_GRAPHICS = 1, /* of time in which anything ran */
    NVML_ABI_GPM_SM = 2,
    NVML_ABI_GPM_OCCUPANCY = 3,
    NVML_ABI_GPM_TENSOR = 5, /* of any kind */
    NVML_ABI_GPM_DRAM = 10,
    NVML_ABI_GPM_FP32 = 12,
};
struct nvml_abi_gpm_support {
    uint32_t version, supported;
};
struct nvml_abi_gpm_metric {
    uint32_t id;    /* requested */
    int32_t result; /* of this one alone */
    double value;
    const char *short_name, *long_name, *unit;
};
struct nvml_abi_gpm_request {
    uint32_t version, count;
    void *first, *second; /* samples, the older one first */
    struct nvml_abi_gpm_metric metrics[NVML_ABI_GPM_MOST];
};
struct nvml_abi_event_data {
    nvml_abi_device device;
    uint64_t type, data;
    uint32_t gpu_instance, compute_instance;
};

static_assert(sizeof(struct nvml_abi_memory_v2) == 40, "memory v2");
static_assert(sizeof(struct nvml_abi_process_v1) == 16, "process v1");
static_assert(sizeof(struct nvml_abi_process_v2) == 24, "process v2");
static_assert(sizeof(struct nvml_abi_process_535) == 32, "process 535");
static_assert(sizeof(struct nvml_abi_process_detail_list) == 24, "detail list");
static_assert(sizeof(struct nvml_abi_process_utilization) == 32, "process utilization");
static_assert(sizeof(struct nvml_abi_processes_utilization_entry) == 40, "processes utilization entry");
static_assert(sizeof(struct nvml_abi_processes_utilization) == 24, "processes utilization");
static_assert(sizeof(struct nvml_abi_accounting_v1) == 56, "accounting v1");
static_assert(sizeof(struct nvml_abi_accounting_v2) == 64, "accounting v2");
static_assert(sizeof(struct nvml_abi_sample) == 16, "sample");
static_assert(sizeof(struct nvml_abi_pci_v3) == 68, "pci v3");
static_assert(sizeof(struct nvml_abi_uuid) == 52, "uuid");
static_assert(sizeof(struct nvml_abi_field) == 40, "field");
static_assert(sizeof(struct nvml_abi_set_memory_limits) == 24, "set memory limits");
static_assert(sizeof(struct nvml_abi_get_memory_limits) == 32, "get memory limits");
static_assert(sizeof(struct nvml_abi_gpm_support) == 8, "GPM support");
static_assert(sizeof(struct nvml_abi_gpm_metric) == 40, "GPM metric");
static_assert(sizeof(struct nvml_abi_gpm_request) == 13344, "GPM request");
static_assert(sizeof(struct nvml_abi_event_data) == 32, "event data");

/* A scripted NVML program: one command in, one line of JSON out, with the driver's result, the count that it returned
 * and what it wrote. It finds NVML as most programs do: dlopen, then dlsym. GPU 0, unless the command is `bad`.
 * CAPACITY is the capacity of the array; -1 means no array with a sufficient capacity, -2 no count. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../../native/abi/nvml.h"

#define MOST 4096
#define CANARY 0x5c

static void *library;
static unsigned char area[MOST * 64];

static void *find(const char *name) {
    void *function = dlsym(library, name);
    if (!function) {
        fprintf(stderr, "nvml: no %s: %s\n", name, dlerror());
        exit(3);
    }
    return function;
}
#define CALL(name, types, ...) ((nvml_abi_return(*) types)find(name))(__VA_ARGS__)

/* The array that a caller of that capacity passes. */
static void *array(long capacity) {
    memset(area, CANARY, sizeof area);
    return capacity < 0 ? NULL : area;
}

/* Was anything written beyond the capacity, or, after a failure, at all? */
static bool spilled(nvml_abi_return result, long capacity, size_t size) {
    size_t from = result == NVML_ABI_SUCCESS && capacity > 0 ? (size_t)capacity * size : 0;
    for (size_t i = from; i < sizeof area; i++) {
        if (area[i] != CANARY) return true;
    }
    return false;
}

static void begin(nvml_abi_return result, unsigned count, bool spill) {
    printf("{\"result\":%d,\"count\":%u,\"spilled\":%s,\"rows\":[", result, count, spill ? "true" : "false");
}

static unsigned word(size_t at) {
    unsigned value;
    memcpy(&value, area + at, sizeof value);
    return value;
}
static uint64_t wide(size_t at) {
    uint64_t value;
    memcpy(&value, area + at, sizeof value);
    return value;
}

/* list NAME CAPACITY SIZE: entries of SIZE bytes */
static void list(nvml_abi_device device, const char *name, long capacity, size_t size) {
    unsigned count = capacity < 0 ? MOST : (unsigned)capacity;
    nvml_abi_return result =
        CALL(name, (nvml_abi_device, unsigned *, void *), device, capacity == -2 ? NULL : &count, array(capacity));
    begin(result, count, spilled(result, capacity, size));
    for (unsigned i = 0; result == NVML_ABI_SUCCESS && capacity >= 0 && i < count; i++) {
        printf("%s[%u,%" PRIu64 "]", i ? "," : "", word(i * size), wide(i * size + 8));
    }
}

/* detail VERSION MODE CAPACITY */
static void detail(nvml_abi_device device, unsigned version, unsigned mode, long capacity) {
    struct nvml_abi_process_detail_list request = {.version = version,
                                                   .mode = mode,
                                                   .count = capacity < 0 ? MOST : (unsigned)capacity,
                                                   .entries = array(capacity)};
    nvml_abi_return result =
        CALL("nvmlDeviceGetRunningProcessDetailList", (nvml_abi_device, struct nvml_abi_process_detail_list *), device,
             capacity == -2 ? NULL : &request);
    begin(result, request.count, spilled(result, capacity, 32));
    for (unsigned i = 0; result == NVML_ABI_SUCCESS && capacity >= 0 && i < request.count; i++) {
        printf("%s[%u,%" PRIu64 "]", i ? "," : "", word(i * 32ul), wide(i * 32ul + 8));
    }
}

/* rows LAST-SEEN CAPACITY */
static void rows(nvml_abi_device device, unsigned long long last_seen, long capacity) {
    unsigned count = capacity < 0 ? MOST : (unsigned)capacity;
    nvml_abi_return result =
        CALL("nvmlDeviceGetProcessUtilization", (nvml_abi_device, void *, unsigned *, unsigned long long), device,
             array(capacity), capacity == -2 ? NULL : &count, last_seen);
    begin(result, count, spilled(result, capacity, 32));
    for (unsigned i = 0; result == NVML_ABI_SUCCESS && capacity >= 0 && i < count; i++) {
        printf("%s[%u,%u]", i ? "," : "", word(i * 32ul), word(i * 32ul + 16));
    }
}

/* table VERSION LAST-SEEN CAPACITY */
static void table(nvml_abi_device device, unsigned version, unsigned long long last_seen, long capacity) {
    struct nvml_abi_processes_utilization request = {.version = version,
                                                     .count = capacity < 0 ? MOST : (unsigned)capacity,
                                                     .last_seen_us = last_seen,
                                                     .entries = array(capacity)};
    nvml_abi_return result =
        CALL("nvmlDeviceGetProcessesUtilizationInfo", (nvml_abi_device, struct nvml_abi_processes_utilization *),
             device, capacity == -2 ? NULL : &request);
    begin(result, request.count, spilled(result, capacity, 40));
    for (unsigned i = 0; result == NVML_ABI_SUCCESS && capacity >= 0 && i < request.count; i++) {
        printf("%s[%u,%u]", i ? "," : "", word(i * 40ul + 8), word(i * 40ul + 12));
    }
}

/* samples TYPE CAPACITY */
static void samples(nvml_abi_device device, int type, long capacity) {
    unsigned count = capacity < 0 ? MOST : (unsigned)capacity;
    int kind = -1;
    nvml_abi_return result =
        CALL("nvmlDeviceGetSamples", (nvml_abi_device, int, unsigned long long, int *, unsigned *, void *), device,
             type, 0ull, &kind, capacity == -2 ? NULL : &count, array(capacity));
    begin(result, count, spilled(result, capacity, 16));
}

/* pids CAPACITY */
static void pids(nvml_abi_device device, long capacity) {
    unsigned count = capacity < 0 ? MOST : (unsigned)capacity;
    nvml_abi_return result = CALL("nvmlDeviceGetAccountingPids", (nvml_abi_device, unsigned *, void *), device,
                                  capacity == -2 ? NULL : &count, array(capacity));
    begin(result, count, spilled(result, capacity, 4));
    for (unsigned i = 0; result == NVML_ABI_SUCCESS && capacity >= 0 && i < count; i++) {
        printf("%s[%u]", i ? "," : "", word(i * 4ul));
    }
}

/* stats PID CAPACITY, stats-second PID CAPACITY: the peak */
static void stats(nvml_abi_device device, bool second, unsigned pid, long capacity) {
    array(0);
    nvml_abi_return result;
    if (second) {
        struct nvml_abi_accounting_v2 *out = (struct nvml_abi_accounting_v2 *)area;
        out->pid = pid;
        result = CALL("nvmlDeviceGetAccountingStats_v2", (nvml_abi_device, void *), device, capacity < 0 ? NULL : out);
        out->pid = CANARY * 0x01010101u;
        begin(result, 0, spilled(result, 1, sizeof *out));
        if (result == NVML_ABI_SUCCESS) printf("[%u,%" PRIu64 "]", pid, out->max_bytes);
    } else {
        struct nvml_abi_accounting_v1 *out = (struct nvml_abi_accounting_v1 *)area;
        result = CALL("nvmlDeviceGetAccountingStats", (nvml_abi_device, unsigned, void *), device, pid,
                      capacity < 0 ? NULL : out);
        begin(result, 0, spilled(result, 1, sizeof *out));
        if (result == NVML_ABI_SUCCESS) printf("[%u,%" PRIu64 "]", pid, out->max_bytes);
    }
}

/* memory CAPACITY, memory-second VERSION CAPACITY: total, free, used, reserved */
static void memory(nvml_abi_device device, bool second, unsigned version, long capacity) {
    array(0);
    nvml_abi_return result;
    if (second) {
        struct nvml_abi_memory_v2 *out = (struct nvml_abi_memory_v2 *)area;
        out->version = version;
        result = CALL("nvmlDeviceGetMemoryInfo_v2", (nvml_abi_device, void *), device, capacity < 0 ? NULL : out);
        out->version = CANARY * 0x01010101u;
        begin(result, 0, spilled(result, 1, sizeof *out));
        if (result == NVML_ABI_SUCCESS)
            printf("[%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", out->total, out->free, out->used,
                   out->reserved);
    } else {
        struct nvml_abi_memory_v1 *out = (struct nvml_abi_memory_v1 *)area;
        result = CALL("nvmlDeviceGetMemoryInfo", (nvml_abi_device, void *), device, capacity < 0 ? NULL : out);
        begin(result, 0, spilled(result, 1, sizeof *out));
        if (result == NVML_ABI_SUCCESS)
            printf("[%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",0]", out->total, out->free, out->used);
    }
}

/* rates CAPACITY */
static void rates(nvml_abi_device device, long capacity) {
    struct nvml_abi_utilization *out = (struct nvml_abi_utilization *)area;
    array(0);
    nvml_abi_return result =
        CALL("nvmlDeviceGetUtilizationRates", (nvml_abi_device, void *), device, capacity < 0 ? NULL : out);
    begin(result, 0, spilled(result, 1, sizeof *out));
    if (result == NVML_ABI_SUCCESS) printf("[%u,%u]", out->gpu, out->memory);
}

/* by NAME IDENTITY: the handle's index, and its total memory */
static void by(const char *name, const char *identity) {
    nvml_abi_device device = NULL;
    struct nvml_abi_uuid uuid = {.version = NVML_ABI_STRUCT_VERSION(struct nvml_abi_uuid, 1),
                                 .type = NVML_ABI_UUID_ASCII};
    snprintf(uuid.text, sizeof uuid.text, "%s", identity);
    const void *by = strcmp(name, "nvmlDeviceGetHandleByUUIDV") != 0 ? (const void *)identity : &uuid;
    nvml_abi_return result = CALL(name, (const void *, nvml_abi_device *), by, &device);
    begin(result, 0, result != NVML_ABI_SUCCESS && device);
    struct nvml_abi_memory_v1 memory;
    unsigned index;
    if (result == NVML_ABI_SUCCESS && !CALL("nvmlDeviceGetIndex", (nvml_abi_device, unsigned *), device, &index) &&
        !CALL("nvmlDeviceGetMemoryInfo", (nvml_abi_device, void *), device, &memory))
        printf("[%u,%" PRIu64 "]", index, memory.total);
}

/* near CAPACITY, set CAPACITY: indices of the GPUs near the current one, or near a CPU */
static void near(nvml_abi_device device, bool set, long capacity) {
    unsigned count = (unsigned)capacity, index;
    nvml_abi_device found[16] = {0};
    nvml_abi_return result =
        set ? CALL("nvmlSystemGetTopologyGpuSet", (unsigned, unsigned *, nvml_abi_device *), 0u, &count, found)
            : CALL("nvmlDeviceGetTopologyNearestGpus", (nvml_abi_device, int, unsigned *, nvml_abi_device *), device,
                   50, &count, found);
    begin(result, count, found[capacity] != NULL);
    for (unsigned i = 0; result == NVML_ABI_SUCCESS && i < (unsigned)capacity && i < count; i++) {
        if (!CALL("nvmlDeviceGetIndex", (nvml_abi_device, unsigned *), found[i], &index))
            printf("%s[%u]", i ? "," : "", index);
    }
}

int main(void) {
    char line[256];
    nvml_abi_device device = NULL;
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return fprintf(stderr, "nvml: %s\n", dlerror()), 3;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        char what[64] = "", name[96] = "", identity[96] = "";
        long long a = 0, b = 0, c = 0;
        if (sscanf(line, "%63s %lld %lld %lld", what, &a, &b, &c) < 1) continue;
        if (!strcmp(what, "init")) {
            nvml_abi_return result = CALL("nvmlInit_v2", (void));
            if (!result) result = CALL("nvmlDeviceGetHandleByIndex_v2", (unsigned, nvml_abi_device *), 0u, &device);
            begin(result, 0, false);
        } else if (!strcmp(what, "bad")) {
            device = &library;
            begin(0, 0, false);
        } else if (!strcmp(what, "list") && sscanf(line, "list %95s %lld %lld", name, &a, &b) == 3) {
            list(device, name, (long)a, (size_t)b);
        } else if (!strcmp(what, "by") && sscanf(line, "by %95s %95s", name, identity) == 2) {
            by(name, identity);
        } else if (!strcmp(what, "near") || !strcmp(what, "set")) {
            near(device, !strcmp(what, "set"), (long)a);
        } else if (!strcmp(what, "detail")) {
            detail(device, (unsigned)a, (unsigned)b, (long)c);
        } else if (!strcmp(what, "rows")) {
            rows(device, (unsigned long long)a, (long)b);
        } else if (!strcmp(what, "table")) {
            table(device, (unsigned)a, (unsigned long long)b, (long)c);
        } else if (!strcmp(what, "samples")) {
            samples(device, (int)a, (long)b);
        } else if (!strcmp(what, "pids")) {
            pids(device, (long)a);
        } else if (!strcmp(what, "stats")) {
            stats(device, false, (unsigned)a, (long)b);
        } else if (!strcmp(what, "stats-second")) {
            stats(device, true, (unsigned)a, (long)b);
        } else if (!strcmp(what, "memory")) {
            memory(device, false, 0, (long)a);
        } else if (!strcmp(what, "memory-second")) {
            memory(device, true, (unsigned)a, (long)b);
        } else if (!strcmp(what, "rates")) {
            rates(device, (long)a);
        } else {
            fprintf(stderr, "nvml: no such command: %s\n", line);
            return 2;
        }
        puts("]}");
    }
    return 0;
}

/* NVML: initialization, handles, sizes, versions of structures, and memory. */
#define SUBJECT "management"
#include "../management.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../memory.h"

#define EXPECT_NVML(want, call) SAME(want, call)
#define NVML_OK(call) SAME(NVML_SUCCESS, call)

static nvmlDevice_t device_of_rule(void) {
    nvmlDevice_t device = NULL;
    NVML_OK(nvmlInit_v2());
    NVML_OK(nvmlDeviceGetHandleByIndex_v2(0, &device));
    return device;
}

/* With a context of this process on the device. */
static nvmlDevice_t busy_device(void) {
    primary_context();
    return device_of_rule();
}

/* Each initialization needs a shutdown of its own before NVML is shut down. */
RULE(init_is_counted, .source = NVML "nvmlInit_v2", .calls = "nvmlInit_v2 nvmlShutdown") {
    unsigned count;
    NVML_OK(nvmlInit_v2());
    NVML_OK(nvmlInit_v2());
    NVML_OK(nvmlShutdown());
    NVML_OK(nvmlDeviceGetCount_v2(&count));
    NVML_OK(nvmlShutdown());
    EXPECT_NVML(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2(&count));
}

RULE(shutdown_without_init, .source = NVML "nvmlShutdown", .calls = "nvmlShutdown") {
    EXPECT_NVML(NVML_ERROR_UNINITIALIZED, nvmlShutdown());
}

RULE(init_again_after_shutdown, .source = NVML "nvmlInit_v2", .calls = "nvmlInit_v2 nvmlShutdown") {
    unsigned count = 0;
    NVML_OK(nvmlInit_v2());
    NVML_OK(nvmlShutdown());
    NVML_OK(nvmlInit_v2());
    NVML_OK(nvmlDeviceGetCount_v2(&count));
    TRUE(count > 0);
}

RULE(init_with_flags, .source = NVML "nvmlInitWithFlags", .calls = "nvmlInitWithFlags") {
    unsigned count = 0;
    NVML_OK(nvmlInitWithFlags(0));
    NVML_OK(nvmlDeviceGetCount_v2(&count));
}

/* Before initialization each question about the system or a device is answered with uninitialized. */
RULE(questions_before_init, .source = NVML "Initialization and Cleanup",
     .calls = "nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex_v2") {
    char text[96];
    unsigned count;
    nvmlDevice_t device;
    nvmlEventSet_t set;
    EXPECT_NVML(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2(&count));
    EXPECT_NVML(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetHandleByIndex_v2(0, &device));
    EXPECT_NVML(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetHandleByUUID("GPU-0", &device));
    EXPECT_NVML(NVML_ERROR_UNINITIALIZED, nvmlSystemGetDriverVersion(text, 96));
    EXPECT_NVML(NVML_ERROR_UNINITIALIZED, nvmlEventSetCreate(&set));
}

RULE(nvml_version_before_init, .source = NVML "nvmlSystemGetNVMLVersion", .calls = "nvmlSystemGetNVMLVersion") {
    char text[80] = "";
    NVML_OK(nvmlSystemGetNVMLVersion(text, 80));
    TRUE(strlen(text) > 2);
}

RULE(error_strings, .source = NVML "nvmlErrorString", .calls = "nvmlErrorString") {
    for (int code = 0; code <= 25; code++) TRUE(nvmlErrorString(code) && strlen(nvmlErrorString(code)) > 3);
    TRUE(nvmlErrorString(999) != NULL);
}

RULE(driver_version_sizes, .source = NVML "nvmlSystemGetDriverVersion", .calls = "nvmlSystemGetDriverVersion") {
    char text[80] = "";
    device_of_rule();
    NVML_OK(nvmlSystemGetDriverVersion(text, 80));
    TRUE(strlen(text) > 2);
    EXPECT_NVML(NVML_ERROR_INSUFFICIENT_SIZE, nvmlSystemGetDriverVersion(text, 2));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlSystemGetDriverVersion(NULL, 80));
}

RULE(nvml_version_sizes, .source = NVML "nvmlSystemGetNVMLVersion", .calls = "nvmlSystemGetNVMLVersion") {
    char text[80];
    device_of_rule();
    EXPECT_NVML(NVML_ERROR_INSUFFICIENT_SIZE, nvmlSystemGetNVMLVersion(text, 2));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlSystemGetNVMLVersion(NULL, 80));
}

/* The version of CUDA that NVML reports is the driver's. */
RULE(cuda_version, .source = NVML "nvmlSystemGetCudaDriverVersion", .calls = "nvmlSystemGetCudaDriverVersion") {
    int version = 0, driver = 0;
    device_of_rule();
    NVML_OK(nvmlSystemGetCudaDriverVersion(&version));
    OK(cuDriverGetVersion(&driver));
    SAME(driver, version);
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlSystemGetCudaDriverVersion(NULL));
}

RULE(process_name, .source = NVML "nvmlSystemGetProcessName", .calls = "nvmlSystemGetProcessName") {
    char name[256];
    device_of_rule();
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlSystemGetProcessName((unsigned)getpid(), NULL, 256));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlSystemGetProcessName((unsigned)getpid(), name, 0));
    EXPECT_NVML(NVML_ERROR_NOT_FOUND, nvmlSystemGetProcessName(0x3ffffff, name, 256));
    NVML_OK(nvmlSystemGetProcessName((unsigned)getpid(), name, 256));
    TRUE(strstr(name, "conformance") != NULL);
}

/* A name is cropped to the length that was given. */
RULE(process_name_cropped, .source = NVML "nvmlSystemGetProcessName", .calls = "nvmlSystemGetProcessName") {
    char name[8] = "zzzzzzz";
    device_of_rule();
    NVML_OK(nvmlSystemGetProcessName((unsigned)getpid(), name, 4));
    TRUE(strlen(name) <= 3 && name[5] == 'z');
}

RULE(count_null, .source = NVML "nvmlDeviceGetCount_v2", .calls = "nvmlDeviceGetCount_v2") {
    device_of_rule();
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetCount_v2(NULL));
}

RULE(handle_by_index, .source = NVML "nvmlDeviceGetHandleByIndex_v2", .calls = "nvmlDeviceGetHandleByIndex_v2") {
    unsigned count = 0, index = 9;
    nvmlDevice_t device = device_of_rule();
    NVML_OK(nvmlDeviceGetCount_v2(&count));
    NVML_OK(nvmlDeviceGetIndex(device, &index));
    SAME(0, index);
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(count, &device));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(0, NULL));
}

RULE(handle_by_uuid, .source = NVML "nvmlDeviceGetHandleByUUID", .calls = "nvmlDeviceGetHandleByUUID") {
    char uuid[96] = "";
    nvmlDevice_t device = device_of_rule(), found = NULL;
    NVML_OK(nvmlDeviceGetUUID(device, uuid, 96));
    TRUE(!strncmp(uuid, "GPU-", 4) && strlen(uuid) == 40);
    NVML_OK(nvmlDeviceGetHandleByUUID(uuid, &found));
    TRUE(found == device);
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByUUID(NULL, &found));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByUUID(uuid, NULL));
    EXPECT_NVML(NVML_ERROR_NOT_FOUND, nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-00000000ffff", &found));
}

RULE(handle_by_uuid_versioned, .source = NVML "nvmlDeviceGetHandleByUUIDV", .calls = "nvmlDeviceGetHandleByUUIDV") {
    char text[96] = "";
    nvmlUUID_t uuid = {.version = NVML_VERSION_OF(nvmlUUID_t, 1), .type = 1};
    nvmlDevice_t device = device_of_rule(), found = NULL;
    NVML_OK(nvmlDeviceGetUUID(device, text, 96));
    snprintf(uuid.value.str, sizeof(uuid.value.str), "%.40s", text);
    NVML_OK(nvmlDeviceGetHandleByUUIDV(&uuid, &found));
    TRUE(found == device);
    uuid.type = 7;
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByUUIDV(&uuid, &found));
    uuid.version = 1;
    EXPECT_NVML(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetHandleByUUIDV(&uuid, &found));
}

RULE(handle_by_bus_id, .source = NVML "nvmlDeviceGetHandleByPciBusId_v2", .calls = "nvmlDeviceGetHandleByPciBusId_v2") {
    nvmlPciInfo_t pci;
    char id[64];
    nvmlDevice_t device = device_of_rule(), found = NULL;
    NVML_OK(nvmlDeviceGetPciInfo_v3(device, &pci));
    NVML_OK(nvmlDeviceGetHandleByPciBusId_v2(pci.busId, &found));
    TRUE(found == device);
    snprintf(id, sizeof(id), "%x:%x:%x", pci.domain, pci.bus, pci.device);
    NVML_OK(nvmlDeviceGetHandleByPciBusId_v2(id, &found));
    if (!pci.domain) {
        snprintf(id, sizeof(id), "%x:%x.0", pci.bus, pci.device);
        NVML_OK(nvmlDeviceGetHandleByPciBusId_v2(id, &found));
    }
    EXPECT_NVML(NVML_ERROR_NOT_FOUND, nvmlDeviceGetHandleByPciBusId_v2("00fe:fe:1e.0", &found));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByPciBusId_v2(NULL, &found));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByPciBusId_v2(pci.busId, NULL));
}

/* The text of a bus ID is made of the numbers beside it: eight digits of the domain, in the legacy form four. */
RULE(bus_id_format, .source = NVML "nvmlPciInfo_t", .calls = "nvmlDeviceGetPciInfo_v3") {
    nvmlPciInfo_t pci;
    char id[64];
    NVML_OK(nvmlDeviceGetPciInfo_v3(device_of_rule(), &pci));
    snprintf(id, sizeof(id), "%08X:%02X:%02X.0", pci.domain, pci.bus, pci.device);
    TRUE(!strcmp(id, pci.busId));
    snprintf(id, sizeof(id), "%04X:%02X:%02X.0", pci.domain, pci.bus, pci.device);
    TRUE(!strcmp(id, pci.busIdLegacy));
}

RULE(name_sizes, .source = NVML "nvmlDeviceGetName", .calls = "nvmlDeviceGetName") {
    char name[96] = "";
    nvmlDevice_t device = device_of_rule();
    NVML_OK(nvmlDeviceGetName(device, name, 96));
    TRUE(strlen(name) > 2);
    EXPECT_NVML(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetName(device, name, 2));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetName(device, NULL, 96));
}

RULE(uuid_sizes, .source = NVML "nvmlDeviceGetUUID", .calls = "nvmlDeviceGetUUID") {
    char uuid[96];
    nvmlDevice_t device = device_of_rule();
    EXPECT_NVML(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetUUID(device, uuid, 10));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetUUID(device, NULL, 96));
}

/* CUDA and NVML report the same UUID of the same device. */
RULE(uuid_of_cuda, .source = NVML "nvmlDeviceGetUUID", .calls = "nvmlDeviceGetUUID cuDeviceGetUuid_v2") {
    char text[96] = "", hex[33] = "";
    size_t digits = 0;
    CUuuid uuid;
    primary_context();
    OK(cuDeviceGetUuid_v2(&uuid, 0));
    NVML_OK(nvmlDeviceGetUUID(device_of_rule(), text, 96));
    for (size_t i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", (unsigned char)uuid.bytes[i]);
    for (const char *from = text + 4; *from; from++) {
        if (*from == '-') continue;
        TRUE(digits < 32 && hex[digits] == *from);
        digits++;
    }
    SAME(32, digits);
}

/* A null device is an invalid argument of every question. */
RULE(null_device, .source = NVML "Device Queries", .calls = "nvmlDeviceGetName nvmlDeviceGetMemoryInfo") {
    char text[96];
    unsigned value;
    nvmlMemory_t memory;
    nvmlUtilization_t utilization;
    nvmlPciInfo_t pci;
    device_of_rule();
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetName(NULL, text, 96));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetUUID(NULL, text, 96));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetIndex(NULL, &value));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMemoryInfo(NULL, &memory));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetUtilizationRates(NULL, &utilization));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetPciInfo_v3(NULL, &pci));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetPowerUsage(NULL, &value));
}

/* So is a null place for an answer. */
RULE(null_answers, .source = NVML "Device Queries", .calls = "nvmlDeviceGetMemoryInfo nvmlDeviceGetPowerUsage") {
    int value;
    unsigned mode;
    nvmlDevice_t device = device_of_rule();
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMemoryInfo(device, NULL));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMemoryInfo_v2(device, NULL));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetUtilizationRates(device, NULL));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetPciInfo_v3(device, NULL));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetIndex(device, NULL));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetPowerUsage(device, NULL));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMinorNumber(device, NULL));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetCudaComputeCapability(device, &value, NULL));
    int result = nvmlDeviceGetMigMode(device, &mode, NULL);
    TRUE(result == NVML_ERROR_INVALID_ARGUMENT || result == NVML_ERROR_NOT_SUPPORTED);
}

/* In the first form free and used are the total; in the second, with what is reserved. */
RULE(memory_sums, .source = NVML "nvmlMemory_t, nvmlMemory_v2_t",
     .calls = "nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2") {
    nvmlMemory_t one;
    nvmlMemory_v2_t two = {.version = NVML_VERSION_OF(nvmlMemory_v2_t, 2)};
    nvmlDevice_t device = device_of_rule();
    NVML_OK(nvmlDeviceGetMemoryInfo(device, &one));
    NVML_OK(nvmlDeviceGetMemoryInfo_v2(device, &two));
    SAME(one.total, one.free + one.used);
    SAME(one.total, two.total);
    TRUE(two.total >= two.free + two.used + two.reserved);
}

/* What a program allocates is used memory of its device. */
RULE(memory_follows_allocations, .source = NVML "nvmlDeviceGetMemoryInfo",
     .calls = "nvmlDeviceGetMemoryInfo cuMemAlloc_v2") {
    nvmlMemory_t before, after;
    nvmlDevice_t device = busy_device();
    NVML_OK(nvmlDeviceGetMemoryInfo(device, &before));
    new_memory((size_t)64 << 20);
    NVML_OK(nvmlDeviceGetMemoryInfo(device, &after));
    TRUE(after.used >= before.used + (64 << 20));
}

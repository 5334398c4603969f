/* NVML: lists of processes, samples, fields and events. */
#define SUBJECT "monitoring"
#include "../management.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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

/* With no room a list of processes reports how much it needs. */
RULE(processes_size, .source = NVML "nvmlDeviceGetComputeRunningProcesses_v3",
     .calls = "nvmlDeviceGetComputeRunningProcesses_v3") {
    unsigned count = 0;
    nvmlProcessInfo_t list[64];
    nvmlDevice_t device = busy_device();
    EXPECT_NVML(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL));
    TRUE(count >= 1);
    count = 64;
    NVML_OK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list));
    TRUE(count >= 1 && count <= 64);
}

/* A process with a context is listed with its memory, in the first form and in the newest. */
RULE(processes_list_this_one, .source = NVML "nvmlDeviceGetComputeRunningProcesses_v3",
     .calls = "nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetComputeRunningProcesses") {
    unsigned count = 64, found = 0;
    nvmlProcessInfo_t list[64];
    nvmlProcessInfo_v1_t first[64];
    nvmlDevice_t device = busy_device();
    new_memory((size_t)64 << 20);
    NVML_OK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list));
    for (unsigned i = 0; i < count; i++)
        found += list[i].pid == (unsigned)getpid() && list[i].usedGpuMemory >= (64 << 20);
    SAME(1, found);
    count = 64;
    NVML_OK(nvmlDeviceGetComputeRunningProcesses(device, &count, first));
    for (unsigned i = 0; i < count; i++) found += first[i].pid == (unsigned)getpid();
    SAME(2, found);
}

RULE(processes_without_context, .source = NVML "nvmlDeviceGetComputeRunningProcesses_v3",
     .calls = "nvmlDeviceGetComputeRunningProcesses_v3") {
    unsigned count = 64;
    nvmlProcessInfo_t list[64];
    nvmlDevice_t device = device_of_rule();
    NVML_OK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list));
    for (unsigned i = 0; i < count; i++) TRUE(list[i].pid != (unsigned)getpid());
}

RULE(processes_null, .source = NVML "nvmlDeviceGetComputeRunningProcesses_v3",
     .calls = "nvmlDeviceGetComputeRunningProcesses_v3") {
    unsigned count = 4096; /* enough for all processes: too few are another error */
    nvmlProcessInfo_t list[4];
    nvmlDevice_t device = busy_device();
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetComputeRunningProcesses_v3(device, NULL, list));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL));
}

/* A program that computes is not in the list of programs that draw, whose size is then no error. */
RULE(processes_that_draw, .source = NVML "nvmlDeviceGetGraphicsRunningProcesses_v3",
     .calls = "nvmlDeviceGetGraphicsRunningProcesses_v3") {
    unsigned count = 0;
    NVML_OK(nvmlDeviceGetGraphicsRunningProcesses_v3(busy_device(), &count, NULL));
    SAME(0, count);
}

RULE(process_details, .source = NVML "nvmlDeviceGetRunningProcessDetailList",
     .calls = "nvmlDeviceGetRunningProcessDetailList") {
    nvmlProcessDetailList_t list = {.version = NVML_VERSION_OF(nvmlProcessDetailList_t, 1)};
    nvmlDevice_t device = busy_device();
    int result = nvmlDeviceGetRunningProcessDetailList(device, &list);
    NEEDS(result != NVML_ERROR_NOT_SUPPORTED, "for Hopper or newer devices");
    SAME(NVML_ERROR_INSUFFICIENT_SIZE, result);
    TRUE(list.numProcArrayEntries >= 1);
    list.version = 1;
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetRunningProcessDetailList(device, &list));
    list = (nvmlProcessDetailList_t){.version = NVML_VERSION_OF(nvmlProcessDetailList_t, 1), .mode = 99};
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetRunningProcessDetailList(device, &list));
}

/* Without samples since the time that was given there is nothing to be found. */
RULE(process_utilization_none, .source = NVML "nvmlDeviceGetProcessUtilization",
     .calls = "nvmlDeviceGetProcessUtilization") {
    unsigned count = 1024;
    nvmlProcessUtilizationSample_t samples[1024];
    unsigned long long tomorrow = ((unsigned long long)time(NULL) + 86400) * 1000000;
    EXPECT_NVML(NVML_ERROR_NOT_FOUND, nvmlDeviceGetProcessUtilization(device_of_rule(), samples, &count, tomorrow));
}

RULE(processes_utilization_version, .source = NVML "nvmlDeviceGetProcessesUtilizationInfo",
     .calls = "nvmlDeviceGetProcessesUtilizationInfo") {
    nvmlProcessesUtilizationInfo_t list = {.version = 3};
    nvmlDevice_t device = device_of_rule();
    EXPECT_NVML(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetProcessesUtilizationInfo(device, &list));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetProcessesUtilizationInfo(device, NULL));
}

/* The first question, without a place for samples, is about their number. */
RULE(samples_size, .source = NVML "nvmlDeviceGetSamples", .calls = "nvmlDeviceGetSamples",
     .granted = "samples of utilization name no process, and are not supported") {
    int type = -1;
    unsigned count = 0;
    nvmlSample_t sample;
    nvmlDevice_t device = device_of_rule();
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetSamples(device, 1, 0, &type, NULL, &sample));
    if (is_granted()) {
        EXPECT_NVML(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetSamples(device, 1, 0, &type, &count, NULL));
        return;
    }
    NVML_OK(nvmlDeviceGetSamples(device, 1, 0, &type, &count, NULL));
    TRUE(count > 0);
    count = 0;
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetSamples(device, 1, 0, &type, &count, &sample));
}

/* Each field has a result of its own: one that the device lacks does not spoil the others. */
RULE(fields_one_by_one, .source = NVML "nvmlDeviceGetFieldValues", .calls = "nvmlDeviceGetFieldValues") {
    nvmlFieldValue_t values[2] = {{.fieldId = 83}, {.fieldId = 9999}};
    nvmlDevice_t device = device_of_rule();
    NVML_OK(nvmlDeviceGetFieldValues(device, 2, values));
    SAME(NVML_SUCCESS, values[0].nvmlReturn);
    TRUE(values[1].nvmlReturn != NVML_SUCCESS);
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetFieldValues(device, 1, NULL));
}

RULE(events_wait_in_vain, .source = NVML "nvmlEventSetWait_v2",
     .calls = "nvmlEventSetCreate nvmlEventSetWait_v2 nvmlEventSetFree") {
    nvmlEventSet_t set = NULL;
    nvmlEventData_t data;
    device_of_rule();
    NVML_OK(nvmlEventSetCreate(&set));
    EXPECT_NVML(NVML_ERROR_TIMEOUT, nvmlEventSetWait_v2(set, &data, 1));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlEventSetWait_v2(set, NULL, 1));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlEventSetWait_v2(NULL, &data, 1));
    NVML_OK(nvmlEventSetFree(set));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlEventSetCreate(NULL));
}

/* What a device supports can be registered, a set that is null cannot. */
RULE(events_registered, .source = NVML "nvmlDeviceRegisterEvents",
     .calls = "nvmlDeviceGetSupportedEventTypes nvmlDeviceRegisterEvents") {
    unsigned long long types = 0;
    nvmlEventSet_t set = NULL;
    nvmlDevice_t device = device_of_rule();
    NVML_OK(nvmlDeviceGetSupportedEventTypes(device, &types));
    NVML_OK(nvmlEventSetCreate(&set));
    NVML_OK(nvmlDeviceRegisterEvents(device, types, set));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceRegisterEvents(device, types, NULL));
    EXPECT_NVML(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetSupportedEventTypes(device, NULL));
}

/* Types that the device lacks are not supported, and the set can be used after that. */
RULE(events_not_supported, .source = NVML "nvmlDeviceRegisterEvents", .calls = "nvmlDeviceRegisterEvents") {
    unsigned long long types = 0;
    nvmlEventSet_t set = NULL;
    nvmlEventData_t data;
    nvmlDevice_t device = device_of_rule();
    NVML_OK(nvmlDeviceGetSupportedEventTypes(device, &types));
    NVML_OK(nvmlEventSetCreate(&set));
    int result = nvmlDeviceRegisterEvents(device, types | 1ull << 60, set);
    TRUE(result == NVML_ERROR_NOT_SUPPORTED || result == NVML_ERROR_INVALID_ARGUMENT);
    EXPECT_NVML(NVML_ERROR_TIMEOUT, nvmlEventSetWait_v2(set, &data, 1));
}

/* A device without MIG says that the mode is not supported, and otherwise that it is on or off. */
RULE(mig_mode, .source = NVML "nvmlDeviceGetMigMode", .calls = "nvmlDeviceGetMigMode") {
    unsigned now = 9, later = 9;
    int result = nvmlDeviceGetMigMode(device_of_rule(), &now, &later);
    TRUE(result == NVML_ERROR_NOT_SUPPORTED || (result == NVML_SUCCESS && now <= 1 && later <= 1));
}

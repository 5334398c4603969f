/* The part of NVML's binary interface that the rules use, written by hand: names, values and layouts that the public
 * header of CUDA 13.5 fixes. Independent of native/abi, as driver.h is. */
#pragma once

#include <stddef.h>

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;
typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;
typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;
typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;
typedef struct {
    unsigned version, mode, numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_t;
typedef struct {
    unsigned pid;
    unsigned long long timeStamp;
    unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;
typedef struct {
    unsigned long long timeStamp;
    unsigned pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_t;
typedef struct {
    unsigned version, processSamplesCount;
    unsigned long long lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_t *procUtilArray;
} nvmlProcessesUtilizationInfo_t;
typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct {
    unsigned version, type;
    union {
        char str[41];
        unsigned char bytes[16];
    } value;
} nvmlUUID_t;
typedef struct {
    unsigned long long timeStamp;
    union {
        double dVal;
        unsigned uiVal;
        unsigned long long ullVal;
    } sampleValue;
} nvmlSample_t;
typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType, nvmlReturn;
    unsigned long long value;
} nvmlFieldValue_t;
typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};
/* The version of a structure: its size, and a number above it. */
#define NVML_VERSION_OF(type, number) ((unsigned)(sizeof(type) | (number) << 24))

#define NVML_CALLS(CALL)                                                                                   \
    CALL(nvmlInit_v2, (void))                                                                              \
    CALL(nvmlInitWithFlags, (unsigned))                                                                    \
    CALL(nvmlShutdown, (void))                                                                             \
    CALL(nvmlSystemGetDriverVersion, (char *, unsigned))                                                   \
    CALL(nvmlSystemGetNVMLVersion, (char *, unsigned))                                                     \
    CALL(nvmlSystemGetCudaDriverVersion, (int *))                                                          \
    CALL(nvmlSystemGetProcessName, (unsigned, char *, unsigned))                                           \
    CALL(nvmlDeviceGetCount_v2, (unsigned *))                                                              \
    CALL(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *))                                        \
    CALL(nvmlDeviceGetHandleByUUID, (const char *, nvmlDevice_t *))                                        \
    CALL(nvmlDeviceGetHandleByUUIDV, (const nvmlUUID_t *, nvmlDevice_t *))                                 \
    CALL(nvmlDeviceGetHandleByPciBusId_v2, (const char *, nvmlDevice_t *))                                 \
    CALL(nvmlDeviceGetName, (nvmlDevice_t, char *, unsigned))                                              \
    CALL(nvmlDeviceGetIndex, (nvmlDevice_t, unsigned *))                                                   \
    CALL(nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned))                                              \
    CALL(nvmlDeviceGetMinorNumber, (nvmlDevice_t, unsigned *))                                             \
    CALL(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t, nvmlPciInfo_t *))                                         \
    CALL(nvmlDeviceGetMemoryInfo, (nvmlDevice_t, nvmlMemory_t *))                                          \
    CALL(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, nvmlMemory_v2_t *))                                    \
    CALL(nvmlDeviceGetUtilizationRates, (nvmlDevice_t, nvmlUtilization_t *))                               \
    CALL(nvmlDeviceGetPowerUsage, (nvmlDevice_t, unsigned *))                                              \
    CALL(nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t, int *, int *))                                 \
    CALL(nvmlDeviceGetComputeRunningProcesses, (nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *))         \
    CALL(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, nvmlProcessInfo_t *))         \
    CALL(nvmlDeviceGetGraphicsRunningProcesses_v3, (nvmlDevice_t, unsigned *, nvmlProcessInfo_t *))        \
    CALL(nvmlDeviceGetRunningProcessDetailList, (nvmlDevice_t, nvmlProcessDetailList_t *))                 \
    CALL(nvmlDeviceGetProcessUtilization,                                                                  \
         (nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *, unsigned long long))                 \
    CALL(nvmlDeviceGetProcessesUtilizationInfo, (nvmlDevice_t, nvmlProcessesUtilizationInfo_t *))          \
    CALL(nvmlDeviceGetSamples, (nvmlDevice_t, int, unsigned long long, int *, unsigned *, nvmlSample_t *)) \
    CALL(nvmlDeviceGetFieldValues, (nvmlDevice_t, int, nvmlFieldValue_t *))                                \
    CALL(nvmlDeviceGetMigMode, (nvmlDevice_t, unsigned *, unsigned *))                                     \
    CALL(nvmlDeviceGetSupportedEventTypes, (nvmlDevice_t, unsigned long long *))                           \
    CALL(nvmlDeviceRegisterEvents, (nvmlDevice_t, unsigned long long, nvmlEventSet_t))                     \
    CALL(nvmlEventSetCreate, (nvmlEventSet_t *))                                                           \
    CALL(nvmlEventSetWait_v2, (nvmlEventSet_t, nvmlEventData_t *, unsigned))                               \
    CALL(nvmlEventSetFree, (nvmlEventSet_t))

#define CALL(name, parameters) extern int(*name) parameters;
NVML_CALLS(CALL)
#undef CALL
extern const char *(*nvmlErrorString)(int);

_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "nvmlProcessInfo_t");
_Static_assert(sizeof(nvmlProcessDetail_v1_t) == 32, "nvmlProcessDetail_v1_t");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(nvmlUUID_t) == 52, "nvmlUUID_t");

/* Initialization, devices, their attributes and identities, and names of errors. */
#define SUBJECT "devices"
#include "../memory.h"

#include <stdio.h>
#include <string.h>

/* The flags must be 0. */
RULE(init_flags, .source = DRIVER_API "Initialization, cuInit", .calls = "cuInit") {
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    OK(cuInit(0));
}

/* Repeated calls have no further effect. */
RULE(init_often, .source = DRIVER_API "Initialization, cuInit", .calls = "cuInit") {
    for (int i = 0; i < 5; i++) OK(cuInit(0));
}

/* Before it, functions are not initialized. */
RULE(init_missing, .source = DRIVER_API "Initialization, cuInit",
     .calls = "cuDeviceGet cuDeviceGetCount cuDeviceGetName cuDeviceGetAttribute cuDevicePrimaryCtxRetain "
              "cuEventCreate") {
    CUdevice device;
    CUcontext context;
    CUevent event;
    int value;
    char name[64];
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGet(&device, 0));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&value));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetName(name, 64, 0));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDevicePrimaryCtxRetain(&context, 0));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&context));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuEventCreate(&event, 0));
}

/* The version is 1000 times the major and 10 times the minor, before cuInit too. */
RULE(version_reported, .source = DRIVER_API "Version Management, cuDriverGetVersion", .calls = "cuDriverGetVersion") {
    int version = 0;
    OK(cuDriverGetVersion(&version));
    TRUE(version >= 9000 && version % 10 == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDriverGetVersion(NULL));
}

/* Ordinals go from 0 to the count less one. */
RULE(device_ordinals, .source = DRIVER_API "Device Management, cuDeviceGet", .calls = "cuDeviceGetCount cuDeviceGet") {
    primary_context();
    CUdevice device;
    int count = 0;
    OK(cuDeviceGetCount(&count));
    TRUE(count > 0);
    for (int i = 0; i < count; i++) OK(cuDeviceGet(&device, i));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, count));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, -1));
}

/* Null places for answers are invalid values. */
RULE(device_nulls, .source = DRIVER_API "Device Management, cuDeviceGet, cuDeviceGetCount",
     .calls = "cuDeviceGet cuDeviceGetCount cuDeviceGetName cuDeviceTotalMem_v2 cuDeviceGetAttribute "
              "cuDeviceGetUuid_v2") {
    primary_context();
    int value;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGet(NULL, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetCount(NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetName(NULL, 64, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceTotalMem_v2(NULL, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(NULL, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetUuid_v2(NULL, 0));
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
}

/* A device that does not exist is an invalid device. */
RULE(device_unknown, .source = DRIVER_API "Device Management, cuDeviceGetAttribute and others",
     .calls = "cuDeviceGetName cuDeviceTotalMem_v2 cuDeviceGetAttribute cuDeviceGetUuid_v2 "
              "cuDeviceGetPCIBusId") {
    primary_context();
    char name[64];
    int value;
    size_t bytes;
    CUuuid uuid;
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetName(name, 64, 100));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceTotalMem_v2(&bytes, 100));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 100));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetUuid_v2(&uuid, 100));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetPCIBusId(name, 64, 100));
}

/* A name is cut to the length that was given, and ends with a zero. */
RULE(device_name_cut, .source = DRIVER_API "Device Management, cuDeviceGetName", .calls = "cuDeviceGetName") {
    primary_context();
    char name[128] = "", cut[8];
    OK(cuDeviceGetName(name, 128, 0));
    TRUE(strlen(name) > 4);
    memset(cut, 'x', sizeof cut);
    OK(cuDeviceGetName(cut, 5, 0));
    TRUE(cut[4] == 0 && !strncmp(cut, name, 4) && cut[5] == 'x');
}

/* An attribute that does not exist is an invalid value. */
RULE(device_attribute_unknown, .source = DRIVER_API "Device Management, cuDeviceGetAttribute",
     .calls = "cuDeviceGetAttribute") {
    primary_context();
    int value;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&value, 100000, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&value, 0, 0));
}

/* Every attribute of CUDA 11.0 and before has an answer. */
RULE(device_attributes_all, .source = DRIVER_API "Data types, int", .calls = "cuDeviceGetAttribute") {
    primary_context();
    for (int which = 1; which <= 117; which++) {
        int value;
        if (which == 92 || which == 93 || which == 94 || which == 102) continue;
        OK(cuDeviceGetAttribute(&value, which, 0));
    }
}

/* A warp has 32 threads, a block at least 512, all kinds of a device are positive. */
RULE(device_shape, .source = GUIDE "Compute Capabilities", .calls = "cuInit", .recalled = true) {
    primary_context();
    TRUE(device_attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE) == 32);
    TRUE(device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) == 1024);
    TRUE(device_attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X) == 2147483647);
    TRUE(device_attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y) == 65535);
    TRUE(device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) > 0);
    TRUE(device_attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) == 1);
}

/* The compute capability is that of the attributes. */
RULE(device_capability, .source = DRIVER_API "Device Management, cuDeviceComputeCapability",
     .calls = "cuDeviceComputeCapability") {
    primary_context();
    int major = -1, minor = -1;
    OK(cuDeviceComputeCapability(&major, &minor, 0));
    TRUE(major == device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) &&
         minor == device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
}

/* The old structure reports what the attributes do. */
RULE(device_properties, .source = DRIVER_API "Device Management, cuDeviceGetProperties",
     .calls = "cuDeviceGetProperties") {
    primary_context();
    CUdevprop properties;
    OK(cuDeviceGetProperties(&properties, 0));
    TRUE(properties.maxThreadsPerBlock == device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
    TRUE(properties.sharedMemPerBlock == device_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
    TRUE(properties.SIMDWidth == 32);
}

/* The UUID is not empty and does not change. */
RULE(device_uuid, .source = DRIVER_API "Device Management, cuDeviceGetUuid", .calls = "cuDeviceGetUuid_v2") {
    primary_context();
    CUuuid a, b;
    memset(&a, 0, sizeof a);
    OK(cuDeviceGetUuid_v2(&a, 0));
    OK(cuDeviceGetUuid_v2(&b, 0));
    int sum = 0;
    for (int i = 0; i < 16; i++) sum |= a.bytes[i];
    TRUE(sum && !memcmp(&a, &b, sizeof a));
}

/* A device is found by the bus ID that it reports. */
RULE(pci_round_trip, .source = DRIVER_API "Memory Management, cuDeviceGetPCIBusId, cuDeviceGetByPCIBusId",
     .calls = "cuDeviceGetPCIBusId cuDeviceGetByPCIBusId") {
    primary_context();
    char id[32] = "";
    CUdevice device = -1;
    OK(cuDeviceGetPCIBusId(id, 32, 0));
    OK(cuDeviceGetByPCIBusId(&device, id));
    TRUE(device == 0);
}

/* A bus ID fits in 13 characters with its zero: domain, bus, device, function. */
RULE(pci_format, .source = DRIVER_API "Memory Management, cuDeviceGetPCIBusId", .calls = "cuDeviceGetPCIBusId") {
    primary_context();
    char id[13] = "";
    unsigned domain, bus, device, function;
    OK(cuDeviceGetPCIBusId(id, 13, 0));
    TRUE(sscanf(id, "%x:%x:%x.%x", &domain, &bus, &device, &function) == 4);
    TRUE((int)bus == device_attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) &&
         (int)device == device_attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID) &&
         (int)domain == device_attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID));
}

/* The function, and the domain, may be left out. */
RULE(pci_short_forms, .source = DRIVER_API "Memory Management, cuDeviceGetByPCIBusId",
     .calls = "cuDeviceGetByPCIBusId") {
    primary_context();
    char id[32];
    CUdevice device = -1;
    int bus = device_attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
        slot = device_attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID),
        domain = device_attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
    snprintf(id, sizeof id, "%x:%x:%x", domain, bus, slot);
    OK(cuDeviceGetByPCIBusId(&device, id));
    TRUE(device == 0);
    NEEDS(domain == 0, "needs a device of PCI domain 0");
    device = -1;
    snprintf(id, sizeof id, "%x:%x.0", bus, slot);
    OK(cuDeviceGetByPCIBusId(&device, id));
    TRUE(device == 0);
}

/* A bus ID of no device, or no bus ID at all, finds nothing. */
RULE(pci_unknown, .source = DRIVER_API "Memory Management, cuDeviceGetByPCIBusId", .calls = "cuDeviceGetByPCIBusId") {
    primary_context();
    CUdevice device;
    ONE_OF(cuDeviceGetByPCIBusId(&device, "00ff:fe:1f.0"), CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE);
    ONE_OF(cuDeviceGetByPCIBusId(&device, "no bus ID"), CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_DEVICE);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetByPCIBusId(&device, NULL));
}

/* The name of an error is that of the enumerator. The public header of CUDA 13.0 lacks five of 13.5's, and what a
 * driver does not recognize is an invalid value. */
static bool is_newer_error(int code) {
    return code == 227 || code == 47 || (code >= 917 && code <= 919);
}
RULE(error_names, .source = DRIVER_API "Error Handling, cuGetErrorName", .calls = "cuGetErrorName") {
    static const struct {
        int code;
        const char *name;
    } errors[] = {
#include "error_names.h"
    };
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        const char *name = NULL;
        CUresult result = cuGetErrorName((CUresult)errors[i].code, &name);
        if (result == CUDA_ERROR_INVALID_VALUE && driver_version() < 13050 && is_newer_error(errors[i].code)) continue;
        OK(result);
        TRUE(name && !strcmp(name, errors[i].name));
    }
}

/* Each error has a description. */
RULE(error_strings, .source = DRIVER_API "Error Handling, cuGetErrorString", .calls = "cuGetErrorString") {
    static const int codes[] = {0,   1,   2,   3,   4,   100, 101, 200, 201, 205, 208, 209, 215, 217, 218,
                                301, 400, 401, 500, 600, 700, 704, 705, 712, 713, 719, 800, 801, 900, 999};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        const char *text = NULL;
        OK(cuGetErrorString((CUresult)codes[i], &text));
        TRUE(text && strlen(text) > 3);
    }
}

static int no_result = 12345; /* an int in the binary interface */

/* An error that does not exist is an invalid value, and its text null. */
RULE(error_unknown, .source = DRIVER_API "Error Handling", .calls = "cuGetErrorName cuGetErrorString") {
    const char *text = "before";
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorName(no_result, &text));
    TRUE(text == NULL);
    text = "before";
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorString(no_result, &text));
    TRUE(text == NULL);
}

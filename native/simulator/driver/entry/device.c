/* Devices: properties and capabilities. Attributes that no simulated kernel can use are 0. */
#include <stdio.h>
#include <string.h>

#include "../sim.h"

SIM_EXPORT abi_result cuInit(unsigned flags) {
    SIM_ENTER("cuInit");
    if (flags != 0) return ABI_ERROR_INVALID_VALUE;
    return sim_start();
}

SIM_EXPORT abi_result cuDriverGetVersion(int *version) {
    SIM_ENTER("cuDriverGetVersion");
    if (!version) return ABI_ERROR_INVALID_VALUE;
    *version = sim_library_cuda;
    return ABI_SUCCESS;
}

static const struct sim_gpu_facts *facts_of(abi_device device) {
    return device >= 0 && device < sim.device_count ? &sim.facts->gpus[sim.gpu_of[device]] : NULL;
}

#define FACTS(facts, device)                              \
    const struct sim_gpu_facts *facts = facts_of(device); \
    if (!facts) return ABI_ERROR_INVALID_DEVICE

SIM_EXPORT abi_result cuDeviceGetCount(int *count) {
    SIM_ENTER("cuDeviceGetCount");
    if (!count) return ABI_ERROR_INVALID_VALUE;
    *count = sim.device_count;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuDeviceGet(abi_device *device, int ordinal) {
    SIM_ENTER("cuDeviceGet");
    if (!device) return ABI_ERROR_INVALID_VALUE;
    if (ordinal < 0 || ordinal >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuDeviceGetName(char *name, int length, abi_device device) {
    SIM_ENTER("cuDeviceGetName");
    FACTS(facts, device);
    if (!name || length <= 0) return ABI_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, "%s", facts->name);
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuDeviceGetUuid_v2(abi_uuid *uuid, abi_device device) {
    SIM_ENTER("cuDeviceGetUuid_v2");
    FACTS(facts, device);
    if (!uuid) return ABI_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, facts->uuid, sizeof uuid->bytes);
    return ABI_SUCCESS;
}

SIM_ROW(cuDeviceGetUuid, (abi_uuid * uuid, abi_device device), cuDeviceGetUuid_v2(uuid, device))

SIM_EXPORT abi_result cuDeviceTotalMem_v2(size_t *bytes, abi_device device) {
    SIM_ENTER("cuDeviceTotalMem_v2");
    FACTS(facts, device);
    if (!bytes) return ABI_ERROR_INVALID_VALUE;
    *bytes = facts->total_bytes - facts->reserved_bytes;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuDeviceTotalMem(unsigned *bytes, abi_device device) {
    SIM_ENTER("cuDeviceTotalMem");
    size_t wide;
    abi_result result = cuDeviceTotalMem_v2(&wide, device);
    if (result == ABI_SUCCESS) *bytes = wide > 0xffffffffu ? 0xffffffffu : (unsigned)wide;
    return result;
}

SIM_EXPORT abi_result cuDeviceGetPCIBusId(char *id, int length, abi_device device) {
    SIM_ENTER("cuDeviceGetPCIBusId");
    FACTS(facts, device);
    if (!id || length <= 0) return ABI_ERROR_INVALID_VALUE;
    snprintf(id, (size_t)length, "%04X:%02X:%02X.0", facts->pci_domain, facts->pci_bus, facts->pci_device);
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuDeviceGetByPCIBusId(abi_device *device, const char *id) {
    SIM_ENTER("cuDeviceGetByPCIBusId");
    unsigned domain = 0, bus, slot, function;
    if (!device || !id) return ABI_ERROR_INVALID_VALUE;
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0; /* bus:device.function */
        if (sscanf(id, "%x:%x.%x", &bus, &slot, &function) != 3) return ABI_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < sim.device_count; i++) {
        const struct sim_gpu_facts *facts = facts_of(i);
        if (facts->pci_domain == domain && facts->pci_bus == bus && facts->pci_device == slot) {
            *device = i;
            return ABI_SUCCESS;
        }
    }
    return ABI_ERROR_INVALID_DEVICE;
}

SIM_EXPORT abi_result cuDeviceComputeCapability(int *major, int *minor, abi_device device) {
    SIM_ENTER("cuDeviceComputeCapability");
    FACTS(facts, device);
    if (!major || !minor) return ABI_ERROR_INVALID_VALUE;
    *major = (int)facts->cc_major;
    *minor = (int)facts->cc_minor;
    return ABI_SUCCESS;
}

enum { MOST_ATTRIBUTE = 255 }; /* CUDA 13.5 has 161; those of later drivers are 0 */

/* Attributes that are the same on every simulated GPU: attribute, value. */
static const int COMMON[][2] = {
    {1, 1024},    {2, 1024},        {3, 1024},
    {4, 64},      {5, 2147483647},  {6, 65535},
    {7, 65535},   {8, 49152},       {9, 65536},
    {10, 32},     {11, 2147483647}, {12, 65536},
    {14, 512},    {15, 1},          {19, 1},
    {21, 131072}, {22, 131072},     {23, 65536},
    {24, 16384},  {25, 16384},      {26, 16384},
    {27, 32768},  {28, 32768},      {29, 2048},
    {30, 512},    {31, 1},          {39, SIM_THREADS_PER_SM},
    {40, 2},      {41, 1},          {51, 32},
    {78, 1},      {79, 1},          {80, 1},
    {81, 102400}, {82, 65536},      {83, 1},
    {89, 1},      {90, 1},          {91, 1},
    {95, 1},      {112, 1},         {121, 1},
    {97, 101376}, {99, 1},          {102, 1},
    {103, 1},     {106, 24},        {111, 1024},
    {115, 1},     {122, 0},         {130, 0},
    {131, -1},    {134, -1},        {142, 1},
    {144, 1},
};

SIM_EXPORT abi_result cuDeviceGetAttribute(int *value, int attribute, abi_device device) {
    SIM_ENTER("cuDeviceGetAttribute");
    FACTS(facts, device);
    if (!value || attribute <= 0 || attribute > MOST_ATTRIBUTE) return ABI_ERROR_INVALID_VALUE;
    switch (attribute) {
    case 13: *value = (int)facts->sm_mhz * 1000; return ABI_SUCCESS;
    case 16: *value = (int)facts->sm_count; return ABI_SUCCESS;
    case 33: *value = (int)facts->pci_bus; return ABI_SUCCESS;
    case 34: *value = (int)facts->pci_device; return ABI_SUCCESS;
    case 36: *value = (int)facts->memory_mhz * 1000; return ABI_SUCCESS;
    case 37: *value = (int)facts->bus_bits; return ABI_SUCCESS;
    case 38: *value = (int)facts->l2_kib * 1024; return ABI_SUCCESS;
    case 108: *value = facts->cc_major >= 8 ? (int)facts->l2_kib * 768 : 0; return ABI_SUCCESS;
    case 50: *value = (int)facts->pci_domain; return ABI_SUCCESS;
    case 75: *value = (int)facts->cc_major; return ABI_SUCCESS;
    case 76: *value = (int)facts->cc_minor; return ABI_SUCCESS;
    case 119:
        *value = ABI_HANDLE_POSIX_FD | (facts->cc_major >= SIM_FABRIC_CC ? ABI_HANDLE_FABRIC : 0);
        return ABI_SUCCESS;
    case 128: *value = facts->cc_major >= SIM_FABRIC_CC; return ABI_SUCCESS;
    default: break;
    }
    *value = 0;
    for (size_t i = 0; i < sizeof COMMON / sizeof *COMMON; i++) {
        if (COMMON[i][0] == attribute) *value = COMMON[i][1];
    }
    return ABI_SUCCESS;
}

/* CUdevprop: the old form of some attributes, in their order there. */
SIM_EXPORT abi_result cuDeviceGetProperties(int *properties, abi_device device) {
    SIM_ENTER("cuDeviceGetProperties");
    static const int ATTRIBUTES[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    if (!properties) return ABI_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sizeof ATTRIBUTES / sizeof *ATTRIBUTES; i++)
        SIM_TRY(cuDeviceGetAttribute(&properties[i], ATTRIBUTES[i], device));
    return ABI_SUCCESS;
}

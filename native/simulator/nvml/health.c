/* Errors, remapped rows and retired pages, reasons for low clocks, bytes over links. */
#include "nvml.h"

#define HBM_WARMER_C 9 /* above the GPU's temperature; an arbitrary difference */
#define AMPERE 8       /* lowest major compute capability that remaps rows; earlier GPUs retire pages */

static nvml_abi_return health_of(uint32_t gpu, struct sim_health *health) {
    struct sim_reply reply;
    return nvml_ask(SIM_HEALTH, gpu, 0, &reply, health, sizeof *health);
}

NVML_EXPORT nvmlDeviceGetTotalEccErrors(nvml_abi_device device, unsigned type, unsigned counter, uint64_t *count) {
    NVML_ENTER_GPU("nvmlDeviceGetTotalEccErrors", device, gpu);
    struct sim_health health;
    if (!count || type > NVML_ABI_ECC_UNCORRECTED || counter > NVML_ABI_ECC_SINCE_PRODUCTION)
        return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = health_of(gpu, &health);
    if (result == NVML_ABI_SUCCESS) *count = health.ecc[type][counter];
    return result;
}

NVML_EXPORT nvmlDeviceGetRemappedRows(nvml_abi_device device, unsigned *corrected, unsigned *uncorrected,
                                      unsigned *pending, unsigned *failed) {
    NVML_ENTER_GPU("nvmlDeviceGetRemappedRows", device, gpu);
    struct sim_health health;
    if (nvml_facts->gpus[gpu].cc_major < AMPERE) return NVML_ABI_NOT_SUPPORTED;
    if (!corrected || !uncorrected || !pending || !failed) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = health_of(gpu, &health);
    if (result != NVML_ABI_SUCCESS) return result;
    *corrected = health.rows[0];
    *uncorrected = health.rows[1];
    *pending = health.rows_pending;
    *failed = health.rows_failed;
    return NVML_ABI_SUCCESS;
}

/* Page addresses are invented. */
NVML_EXPORT nvmlDeviceGetRetiredPages(nvml_abi_device device, unsigned cause, unsigned *count, uint64_t *addresses) {
    NVML_ENTER_GPU("nvmlDeviceGetRetiredPages", device, gpu);
    struct sim_health health;
    if (nvml_facts->gpus[gpu].cc_major >= AMPERE) return NVML_ABI_NOT_SUPPORTED;
    if (!count || cause > NVML_ABI_PAGES_UNCORRECTED) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = health_of(gpu, &health);
    if (result != NVML_ABI_SUCCESS) return result;
    unsigned capacity = *count;
    *count = health.rows[cause];
    if (capacity < *count) return NVML_ABI_INSUFFICIENT_SIZE;
    if (!addresses && *count) return NVML_ABI_INVALID_ARGUMENT;
    for (unsigned i = 0; i < *count; i++) addresses[i] = (uint64_t)(cause + 1) << 32 | i << 12;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetRetiredPagesPendingStatus(nvml_abi_device device, unsigned *pending) {
    NVML_ENTER_GPU("nvmlDeviceGetRetiredPagesPendingStatus", device, gpu);
    struct sim_health health;
    if (nvml_facts->gpus[gpu].cc_major >= AMPERE) return NVML_ABI_NOT_SUPPORTED;
    if (!pending) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = health_of(gpu, &health);
    if (result == NVML_ABI_SUCCESS) *pending = health.rows_pending;
    return result;
}

static nvml_abi_return clock_reasons(uint32_t gpu, uint64_t *reasons) {
    struct sim_health health;
    if (!reasons) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = health_of(gpu, &health);
    if (result == NVML_ABI_SUCCESS) *reasons = health.throttle;
    return result;
}
NVML_EXPORT nvmlDeviceGetCurrentClocksEventReasons(nvml_abi_device device, uint64_t *reasons) {
    NVML_ENTER_GPU("nvmlDeviceGetCurrentClocksEventReasons", device, gpu);
    return clock_reasons(gpu, reasons);
}
NVML_EXPORT nvmlDeviceGetCurrentClocksThrottleReasons(nvml_abi_device device, uint64_t *reasons) {
    NVML_ENTER_GPU("nvmlDeviceGetCurrentClocksThrottleReasons", device, gpu);
    return clock_reasons(gpu, reasons);
}

/* Only fields that Cotenant or its tests ask for. GPUs with HBM have NVLink and a memory temperature. */
static void fill_field(uint32_t gpu, const struct sim_health *health, struct nvml_abi_field *field) {
    bool linked = nvml_facts->gpus[gpu].bus_bits >= 4096;
    struct sim_gpu_state state;
    if (field->id == NVML_ABI_FIELD_MEMORY_TEMPERATURE && linked) {
        field->value_type = NVML_ABI_VALUE_UNSIGNED;
        field->result = nvml_gpu_state(gpu, &state);
        if (field->result == NVML_ABI_SUCCESS) field->value = state.temperature_c + HBM_WARMER_C;
        return;
    }
    field->value_type = NVML_ABI_VALUE_LONG_LONG;
    field->result = NVML_ABI_SUCCESS;
    if (field->id == NVML_ABI_FIELD_PCIE_RECEIVED_BYTES) field->value = health->pcie_bytes[0];
    else if (field->id == NVML_ABI_FIELD_PCIE_SENT_BYTES) field->value = health->pcie_bytes[1];
    else if (field->id == NVML_ABI_FIELD_NVLINK_RECEIVED_KIB && linked) field->value = health->nvlink_bytes[0] >> 10;
    else if (field->id == NVML_ABI_FIELD_NVLINK_SENT_KIB && linked) field->value = health->nvlink_bytes[1] >> 10;
    else field->result = NVML_ABI_NOT_SUPPORTED;
}
NVML_EXPORT nvmlDeviceGetFieldValues(nvml_abi_device device, int count, struct nvml_abi_field *fields) {
    NVML_ENTER_GPU("nvmlDeviceGetFieldValues", device, gpu);
    struct sim_health health;
    if (count <= 0 || !fields) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = health_of(gpu, &health);
    if (result != NVML_ABI_SUCCESS) return result;
    for (int i = 0; i < count; i++) fill_field(gpu, &health, &fields[i]);
    return NVML_ABI_SUCCESS;
}

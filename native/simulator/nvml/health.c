/* Errors, remapped rows and retired pages, reasons for low clocks, bytes over links. */
#include "nvml.h"

#define HBM_WARMER_C 9 /* above the GPU's temperature; an arbitrary difference */
#define AMPERE 8       /* lowest major compute capability that remaps rows; earlier GPUs retire pages */
#define REMAPS_ROWS (NVML_FACTS->cc_major >= AMPERE)

NVML_EXPORT nvmlDeviceGetTotalEccErrors(nvml_abi_device device, unsigned type, unsigned counter, uint64_t *count) {
    NVML_ENTER_GPU(count && type <= NVML_ABI_ECC_UNCORRECTED && counter <= NVML_ABI_ECC_SINCE_PRODUCTION);
    *count = NVML_HEALTH.ecc[type][counter];
    return NVML_ABI_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetRemappedRows(nvml_abi_device device, unsigned *corrected, unsigned *uncorrected,
                                      unsigned *pending, unsigned *failed) {
    NVML_ENTER_GPU(true);
    NVML_REQUIRE(REMAPS_ROWS, NVML_ABI_NOT_SUPPORTED);
    NVML_REQUIRE(corrected && uncorrected && pending && failed, NVML_ABI_INVALID_ARGUMENT);
    const struct sim_health health = NVML_HEALTH;
    *corrected = health.rows[0];
    *uncorrected = health.rows[1];
    *pending = health.rows_pending;
    *failed = health.rows_failed;
    return NVML_ABI_SUCCESS;
}

/* Page addresses are invented. */
NVML_EXPORT nvmlDeviceGetRetiredPages(nvml_abi_device device, unsigned cause, unsigned *count, uint64_t *addresses) {
    NVML_ENTER_GPU(true);
    NVML_REQUIRE(!REMAPS_ROWS, NVML_ABI_NOT_SUPPORTED);
    NVML_REQUIRE(count && cause <= NVML_ABI_PAGES_UNCORRECTED, NVML_ABI_INVALID_ARGUMENT);
    unsigned retired = NVML_HEALTH.rows[cause];
    NVML_TRY(nvml_list(count, retired, addresses));
    for (unsigned i = 0; i < retired; i++) addresses[i] = (uint64_t)(cause + 1) << 32 | i << 12;
    return NVML_ABI_SUCCESS;
}
NVML_VALUE_BY(nvml_gpu, nvmlDeviceGetRetiredPagesPendingStatus, unsigned, !REMAPS_ROWS, NVML_HEALTH.rows_pending)

NVML_VALUE(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, NVML_HEALTH.throttle)
NVML_VALUE(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, NVML_HEALTH.throttle)

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
    if (field->id == NVML_ABI_FIELD_ENERGY_MILLIJOULES) {
        field->result = nvml_gpu_state(gpu, &state);
        if (field->result == NVML_ABI_SUCCESS) field->value = state.energy_mj;
        return;
    }
    field->result = NVML_ABI_SUCCESS;
    if (field->id == NVML_ABI_FIELD_PCIE_RECEIVED_BYTES) field->value = health->pcie_bytes[0];
    else if (field->id == NVML_ABI_FIELD_PCIE_SENT_BYTES) field->value = health->pcie_bytes[1];
    else if (field->id == NVML_ABI_FIELD_NVLINK_RECEIVED_KIB && linked) field->value = health->nvlink_bytes[0] >> 10;
    else if (field->id == NVML_ABI_FIELD_NVLINK_SENT_KIB && linked) field->value = health->nvlink_bytes[1] >> 10;
    else field->result = NVML_ABI_NOT_SUPPORTED;
}
NVML_EXPORT nvmlDeviceGetFieldValues(nvml_abi_device device, int count, struct nvml_abi_field *fields) {
    NVML_ENTER_GPU(count > 0 && fields);
    const struct sim_health health = NVML_HEALTH;
    for (int i = 0; i < count; i++) fill_field(gpu, &health, &fields[i]);
    return NVML_ABI_SUCCESS;
}

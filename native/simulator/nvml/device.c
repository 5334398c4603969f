/* Facts and readings of one card. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

nvml_abi_return nvml_card_state(uint32_t card, struct sim_card_state *state) {
    struct sim_reply reply;
    nvml_abi_return result = nvml_ask(SIM_CARD_STATE, card, 0, &reply, state, sizeof *state);
    if (result != NVML_ABI_SUCCESS) return result;
    for (uint32_t i = 0; i < nvml_facts->card_count; i++) {
        if (nvml_facts->cards[i].parent == card + 1)
            state->used_bytes += atomic_load((_Atomic uint64_t *)&nvml_facts->cards[i].used_bytes);
    }
    return NVML_ABI_SUCCESS;
}

static nvml_abi_return give_text(char *to, unsigned length, const char *text) {
    if (!to) return NVML_ABI_INVALID_ARGUMENT;
    size_t bytes = strlen(text) + 1;
    if (length < bytes) return NVML_ABI_INSUFFICIENT_SIZE;
    memcpy(to, text, bytes);
    return NVML_ABI_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetName(nvml_abi_device device, char *name, unsigned length) {
    NVML_ENTER_ANY("nvmlDeviceGetName", device, card);
    return give_text(name, length, nvml_facts->cards[card].name);
}
NVML_EXPORT nvmlDeviceGetUUID(nvml_abi_device device, char *uuid, unsigned length) {
    NVML_ENTER_ANY("nvmlDeviceGetUUID", device, card);
    char text[SIM_UUID_TEXT];
    sim_uuid_text(&nvml_facts->cards[card], text);
    return give_text(uuid, length, text);
}
NVML_EXPORT nvmlDeviceGetHandleByUUID(const char *uuid, nvml_abi_device *device) {
    NVML_ENTER("nvmlDeviceGetHandleByUUID");
    if (!uuid || !device) return NVML_ABI_INVALID_ARGUMENT;
    for (uint32_t card = 0; card < nvml_facts->card_count; card++) {
        char text[SIM_UUID_TEXT];
        sim_uuid_text(&nvml_facts->cards[card], text);
        uint32_t seen;
        if (strcmp(text, uuid) != 0 || nvml_card_or_instance(nvml_handle(card), &seen)) continue;
        *device = nvml_handle(card);
        return NVML_ABI_SUCCESS;
    }
    return NVML_ABI_NOT_FOUND;
}

static void pci_of(uint32_t card, struct nvml_abi_pci_v3 *pci) {
    const struct sim_card_facts *facts = &nvml_facts->cards[card];
    *pci = (struct nvml_abi_pci_v3){
        .domain = facts->pci_domain, .bus = facts->pci_bus, .device = facts->pci_device, .device_id = facts->pci_id};
    snprintf(pci->legacy_id, sizeof pci->legacy_id, "%04X:%02X:%02X.0", facts->pci_domain & 0xffff,
             facts->pci_bus & 0xff, facts->pci_device & 0xff);
    snprintf(pci->id, sizeof pci->id, "%08X:%02X:%02X.0", facts->pci_domain, facts->pci_bus, facts->pci_device);
}
NVML_EXPORT nvmlDeviceGetPciInfo_v3(nvml_abi_device device, struct nvml_abi_pci_v3 *pci) {
    NVML_ENTER_CARD("nvmlDeviceGetPciInfo_v3", device, card);
    if (!pci) return NVML_ABI_INVALID_ARGUMENT;
    pci_of(card, pci);
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvml_abi_device *device) {
    NVML_ENTER("nvmlDeviceGetHandleByPciBusId_v2");
    unsigned domain, bus, slot;
    if (!id || !device || sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) return NVML_ABI_INVALID_ARGUMENT;
    for (uint32_t index = 0; index < nvml_card_count; index++) {
        const struct sim_card_facts *facts = &nvml_facts->cards[nvml_cards[index]];
        if (facts->pci_domain != domain || facts->pci_bus != bus || facts->pci_device != slot) continue;
        *device = nvml_handle(nvml_cards[index]);
        return NVML_ABI_SUCCESS;
    }
    return NVML_ABI_NOT_FOUND;
}

/* The first form counts the driver's own memory as used; the second names it. */
NVML_EXPORT nvmlDeviceGetMemoryInfo(nvml_abi_device device, struct nvml_abi_memory_v1 *out) {
    NVML_ENTER_ANY("nvmlDeviceGetMemoryInfo", device, card);
    struct sim_card_state state;
    if (!out) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = nvml_card_state(card, &state);
    if (result != NVML_ABI_SUCCESS) return result;
    const struct sim_card_facts *facts = &nvml_facts->cards[card];
    *out = (struct nvml_abi_memory_v1){.total = facts->total_bytes,
                                       .used = state.used_bytes + facts->reserved_bytes,
                                       .free = facts->total_bytes - facts->reserved_bytes - state.used_bytes};
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetMemoryInfo_v2(nvml_abi_device device, struct nvml_abi_memory_v2 *out) {
    NVML_ENTER_ANY("nvmlDeviceGetMemoryInfo_v2", device, card);
    struct sim_card_state state;
    if (!out) return NVML_ABI_INVALID_ARGUMENT;
    if (out->version != NVML_ABI_STRUCT_VERSION(struct nvml_abi_memory_v2, 2))
        return NVML_ABI_ARGUMENT_VERSION_MISMATCH;
    nvml_abi_return result = nvml_card_state(card, &state);
    if (result != NVML_ABI_SUCCESS) return result;
    const struct sim_card_facts *facts = &nvml_facts->cards[card];
    *out = (struct nvml_abi_memory_v2){.version = out->version,
                                       .total = facts->total_bytes,
                                       .reserved = facts->reserved_bytes,
                                       .used = state.used_bytes,
                                       .free = facts->total_bytes - facts->reserved_bytes - state.used_bytes};
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetBAR1MemoryInfo(nvml_abi_device device, uint64_t *total_free_used) {
    NVML_ENTER_CARD("nvmlDeviceGetBAR1MemoryInfo", device, card);
    if (!total_free_used) return NVML_ABI_INVALID_ARGUMENT;
    total_free_used[0] = 256ull << 20;
    total_free_used[1] = 254ull << 20;
    total_free_used[2] = 2ull << 20;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetUtilizationRates(nvml_abi_device device, struct nvml_abi_utilization *out) {
    NVML_ENTER_CARD("nvmlDeviceGetUtilizationRates", device, card);
    NVML_UNDIVIDED(card);
    struct sim_card_state state;
    if (!out) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = nvml_card_state(card, &state);
    if (result == NVML_ABI_SUCCESS) *out = (struct nvml_abi_utilization){state.sm_percent, state.memory_percent};
    return result;
}

/* One unsigned value that is read from the card's live state. */
#define READING(name, field)                                            \
    NVML_EXPORT name(nvml_abi_device device, unsigned *value) {         \
        NVML_ENTER_CARD(#name, device, card);                           \
        struct sim_card_state state;                                    \
        if (!value) return NVML_ABI_INVALID_ARGUMENT;                   \
        nvml_abi_return result = nvml_card_state(card, &state);         \
        if (result == NVML_ABI_SUCCESS) *value = (unsigned)state.field; \
        return result;                                                  \
    }
/* One unsigned value that does not change. */
#define FACT(name, expression)                                  \
    NVML_EXPORT name(nvml_abi_device device, unsigned *value) { \
        NVML_ENTER_CARD(#name, device, card);                   \
        if (!value) return NVML_ABI_INVALID_ARGUMENT;           \
        *value = (unsigned)(expression);                        \
        return NVML_ABI_SUCCESS;                                \
    }
/* A call that these cards do not have. */
#define MISSING(name)                          \
    NVML_EXPORT name(nvml_abi_device device) { \
        NVML_ENTER_CARD(#name, device, card);  \
        return NVML_ABI_NOT_SUPPORTED;         \
    }

static uint32_t index_of(uint32_t card) {
    uint32_t index = 0;
    while (nvml_cards[index] != card) index++;
    return index;
}

READING(nvmlDeviceGetPowerUsage, power_mw)
FACT(nvmlDeviceGetIndex, index_of(card))
FACT(nvmlDeviceGetMinorNumber, card)
FACT(nvmlDeviceGetEnforcedPowerLimit, nvml_facts->cards[card].power_limit_mw)
FACT(nvmlDeviceGetPowerManagementLimit, nvml_facts->cards[card].power_limit_mw)
FACT(nvmlDeviceGetPowerManagementDefaultLimit, nvml_facts->cards[card].power_limit_mw)
FACT(nvmlDeviceGetPerformanceState, 0)
FACT(nvmlDeviceGetPersistenceMode, 1)
FACT(nvmlDeviceGetDisplayMode, 0)
FACT(nvmlDeviceGetDisplayActive, 0)
FACT(nvmlDeviceGetComputeMode, 0)
FACT(nvmlDeviceGetBrand, 0)
FACT(nvmlDeviceGetMemoryBusWidth, nvml_facts->cards[card].bus_bits)
FACT(nvmlDeviceGetNumGpuCores, nvml_facts->cards[card].sm_count * 128)
FACT(nvmlDeviceGetMaxPcieLinkGeneration, 4)
FACT(nvmlDeviceGetMaxPcieLinkWidth, 16)
FACT(nvmlDeviceGetCurrPcieLinkGeneration, 4)
FACT(nvmlDeviceGetCurrPcieLinkWidth, 16)
MISSING(nvmlDeviceGetFanSpeed)
MISSING(nvmlDeviceGetSerial)
MISSING(nvmlDeviceGetCurrentDriverModel)
MISSING(nvmlDeviceGetDriverModel)
MISSING(nvmlDeviceGetNvLinkRemoteDeviceType)
MISSING(nvmlDeviceGetNvLinkRemotePciInfo_v2)

NVML_EXPORT nvmlDeviceGetTotalEnergyConsumption(nvml_abi_device device, uint64_t *mj) {
    NVML_ENTER_CARD("nvmlDeviceGetTotalEnergyConsumption", device, card);
    struct sim_card_state state;
    if (!mj) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = nvml_card_state(card, &state);
    if (result == NVML_ABI_SUCCESS) *mj = state.energy_mj;
    return result;
}
/* Sensor 0 is the GPU's own. */
NVML_EXPORT nvmlDeviceGetTemperature(nvml_abi_device device, unsigned sensor, unsigned *celsius) {
    NVML_ENTER_CARD("nvmlDeviceGetTemperature", device, card);
    struct sim_card_state state;
    if (!celsius || sensor != 0) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = nvml_card_state(card, &state);
    if (result == NVML_ABI_SUCCESS) *celsius = state.temperature_c;
    return result;
}
/* Clocks: 0 graphics, 1 SM, 2 memory, 3 video. */
NVML_EXPORT nvmlDeviceGetClockInfo(nvml_abi_device device, unsigned type, unsigned *mhz) {
    NVML_ENTER_CARD("nvmlDeviceGetClockInfo", device, card);
    struct sim_card_state state;
    if (!mhz || type > 3) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = nvml_card_state(card, &state);
    if (result == NVML_ABI_SUCCESS) *mhz = type == 2 ? state.memory_mhz : state.sm_mhz;
    return result;
}
NVML_EXPORT nvmlDeviceGetMaxClockInfo(nvml_abi_device device, unsigned type, unsigned *mhz) {
    NVML_ENTER_CARD("nvmlDeviceGetMaxClockInfo", device, card);
    if (!mhz || type > 3) return NVML_ABI_INVALID_ARGUMENT;
    *mhz = type == 2 ? nvml_facts->cards[card].memory_mhz : nvml_facts->cards[card].sm_mhz;
    return NVML_ABI_SUCCESS;
}
static nvml_abi_return codec(unsigned *percent, unsigned *period_us) {
    if (!percent || !period_us) return NVML_ABI_INVALID_ARGUMENT;
    *percent = 0;
    *period_us = 167000;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetEncoderUtilization(nvml_abi_device device, unsigned *percent, unsigned *period_us) {
    NVML_ENTER_CARD("nvmlDeviceGetEncoderUtilization", device, card);
    NVML_UNDIVIDED(card);
    return codec(percent, period_us);
}
NVML_EXPORT nvmlDeviceGetDecoderUtilization(nvml_abi_device device, unsigned *percent, unsigned *period_us) {
    NVML_ENTER_CARD("nvmlDeviceGetDecoderUtilization", device, card);
    NVML_UNDIVIDED(card);
    return codec(percent, period_us);
}
NVML_EXPORT nvmlDeviceGetCudaComputeCapability(nvml_abi_device device, int *major, int *minor) {
    NVML_ENTER_CARD("nvmlDeviceGetCudaComputeCapability", device, card);
    if (!major || !minor) return NVML_ABI_INVALID_ARGUMENT;
    *major = (int)nvml_facts->cards[card].cc_major;
    *minor = (int)nvml_facts->cards[card].cc_minor;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetPcieThroughput(nvml_abi_device device, unsigned counter, unsigned *kb_per_second) {
    NVML_ENTER_CARD("nvmlDeviceGetPcieThroughput", device, card);
    if (!kb_per_second || counter > 1) return NVML_ABI_INVALID_ARGUMENT;
    *kb_per_second = 0;
    return NVML_ABI_SUCCESS;
}

#include "health.h"

namespace {

void read_ecc(nvml::Library &library, nvml::Device device, Health &out) {
    static const char *const NAMES[2][2] = {{"eccCorrectedVolatile", "eccCorrectedAggregate"},
                                            {"eccUncorrectedVolatile", "eccUncorrectedAggregate"}};
    uint64_t count = 0;
    for (uint32_t type = 0; type < 2; type++) {
        for (uint32_t lifetime = 0; lifetime < 2; lifetime++) {
            if (library.wide(device, "nvmlDeviceGetTotalEccErrors", type, lifetime, count))
                out.emplace_back(NAMES[type][lifetime], count);
        }
    }
}

// GPUs from Ampere on remap rows, those before retire pages; none does both.
void read_repairs(nvml::Library &library, nvml::Device device, Health &out) {
    static const char *const ROWS[4] = {"rowsCorrected", "rowsUncorrected", "rowsPending", "rowsFailed"};
    uint32_t rows[4] = {};
    if (library.remapped_rows(device, rows)) {
        for (int i = 0; i < 4; i++) out.emplace_back(ROWS[i], i < 2 ? rows[i] : rows[i] != 0);
        return;
    }
    static const char *const PAGES[2] = {"pagesCorrected", "pagesUncorrected"};
    uint32_t count = 0, pending = 0;
    for (uint32_t cause = 0; cause < 2; cause++) {
        if (library.retired_pages(device, cause, count)) out.emplace_back(PAGES[cause], count);
    }
    if (library.number(device, "nvmlDeviceGetRetiredPagesPendingStatus", pending))
        out.emplace_back("pagesPending", pending != 0);
}

void read_gauges(nvml::Library &library, nvml::Device device, Health &out) {
    uint32_t value = 0;
    uint64_t wide = 0;
    if (library.number(device, "nvmlDeviceGetTemperature", 0u, value)) out.emplace_back("temperatureC", value);
    if (library.number(device, "nvmlDeviceGetPowerUsage", value)) out.emplace_back("powerMw", value);
    if (library.wide(device, "nvmlDeviceGetTotalEnergyConsumption", wide)) out.emplace_back("energyMj", wide);
    if (library.number(device, "nvmlDeviceGetClockInfo", 1u, value)) out.emplace_back("smMhz", value);
    if (library.number(device, "nvmlDeviceGetClockInfo", 2u, value)) out.emplace_back("memoryMhz", value);
}

void read_limits(nvml::Library &library, nvml::Device device, Health &out) {
    uint32_t value = 0;
    if (library.number(device, "nvmlDeviceGetEnforcedPowerLimit", value)) out.emplace_back("powerLimitMw", value);
    if (library.number(device, "nvmlDeviceGetMaxClockInfo", 1u, value)) out.emplace_back("maxSmMhz", value);
    if (library.number(device, "nvmlDeviceGetMaxClockInfo", 2u, value)) out.emplace_back("maxMemoryMhz", value);
}

void read_fields(nvml::Library &library, nvml::Device device, Health &out) {
    static const struct {
        uint32_t id, scope;
        const char *name;
        uint64_t unit;
    } FIELDS[] = {
        {NVML_ABI_FIELD_PCIE_RECEIVED_BYTES, 0, "pcieReceivedBytes", 1},
        {NVML_ABI_FIELD_PCIE_SENT_BYTES, 0, "pcieSentBytes", 1},
        {NVML_ABI_FIELD_NVLINK_RECEIVED_KIB, NVML_ABI_FIELD_ALL_LINKS, "nvlinkReceivedBytes", 1024},
        {NVML_ABI_FIELD_NVLINK_SENT_KIB, NVML_ABI_FIELD_ALL_LINKS, "nvlinkSentBytes", 1024},
        {NVML_ABI_FIELD_MEMORY_TEMPERATURE, 0, "memoryTemperatureC", 1},
    };
    constexpr size_t COUNT = sizeof FIELDS / sizeof *FIELDS;
    nvml_abi_field fields[COUNT] = {};
    for (size_t i = 0; i < COUNT; i++) {
        fields[i].id = FIELDS[i].id;
        fields[i].scope = FIELDS[i].scope;
        fields[i].result = NVML_ABI_NOT_SUPPORTED;
    }
    if (!library.fields(device, fields, COUNT)) return;
    for (size_t i = 0; i < COUNT; i++) {
        uint64_t value = 0;
        if (nvml::whole_number(fields[i], value) && value <= UINT64_MAX / 1024)
            out.emplace_back(FIELDS[i].name, value * FIELDS[i].unit);
    }
}

} // namespace

Health read_health(nvml::Library &library, nvml::Device device) {
    Health out;
    uint64_t reasons = 0;
    // The second is the first's old name.
    const char *newer = "nvmlDeviceGetCurrentClocksEventReasons";
    if ((library.has(newer) && library.wide(device, newer, reasons)) ||
        library.wide(device, "nvmlDeviceGetCurrentClocksThrottleReasons", reasons))
        out.emplace_back("throttleReasons", reasons);
    read_gauges(library, device, out);
    read_limits(library, device, out);
    read_ecc(library, device, out);
    read_repairs(library, device, out);
    read_fields(library, device, out);
    return out;
}

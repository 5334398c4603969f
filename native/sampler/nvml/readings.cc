#include "readings.h"

#include <algorithm>
#include <iterator>

namespace {

// Parameters of the call after the device.
enum class Shape {
    Number,       // (uint32_t *)
    Selected,     // (uint32_t selector, uint32_t *)
    Number64,     // (uint64_t *)
    Selected64,   // (uint32_t selector, uint32_t second selector, uint64_t *)
    FirstPercent, // (uint32_t *percent, uint32_t *)
    Field,        // a field of nvmlDeviceGetFieldValues: ID and scope
};

struct Reading {
    const char *name; // JSON name
    Shape shape;
    const char *call;
    uint32_t selectors[2] = {};
    uint64_t factor = 1;            // from NVML's unit to that in the name
    const char *new_call = nullptr; // newer name of the call, preferred where it exists
};

constexpr uint32_t CORRECTED = 0, UNCORRECTED = 1, VOLATILE = 0, AGGREGATE = 1, SM_CLOCK = 1, MEMORY_CLOCK = 2,
                   CORE = 0;

constexpr const char *FIELD_CALL = "nvmlDeviceGetFieldValues", *ECC_CALL = "nvmlDeviceGetTotalEccErrors",
                     *THROTTLE_CALL = "nvmlDeviceGetCurrentClocksThrottleReasons",
                     *NEW_THROTTLE_CALL = "nvmlDeviceGetCurrentClocksEventReasons";
constexpr uint32_t ALL_LINKS = NVML_ABI_FIELD_ALL_LINKS;

constexpr Reading EVERY_ROUND[] = {
    {"encoderPercent", Shape::FirstPercent, "nvmlDeviceGetEncoderUtilization"},
    {"decoderPercent", Shape::FirstPercent, "nvmlDeviceGetDecoderUtilization"},
};

constexpr Reading SLOWLY[] = {
    {"throttleReasons", Shape::Number64, THROTTLE_CALL, {}, 1, NEW_THROTTLE_CALL},
    {"temperatureC", Shape::Selected, "nvmlDeviceGetTemperature", {CORE}},
    {"powerMilliwatts", Shape::Number, "nvmlDeviceGetPowerUsage"},
    {"energyMillijoules", Shape::Number64, "nvmlDeviceGetTotalEnergyConsumption"},
    {"smMhz", Shape::Selected, "nvmlDeviceGetClockInfo", {SM_CLOCK}},
    {"memoryMhz", Shape::Selected, "nvmlDeviceGetClockInfo", {MEMORY_CLOCK}},
    {"powerLimitMilliwatts", Shape::Number, "nvmlDeviceGetEnforcedPowerLimit"},
    {"eccCorrectedVolatile", Shape::Selected64, ECC_CALL, {CORRECTED, VOLATILE}},
    {"eccCorrectedAggregate", Shape::Selected64, ECC_CALL, {CORRECTED, AGGREGATE}},
    {"eccUncorrectedVolatile", Shape::Selected64, ECC_CALL, {UNCORRECTED, VOLATILE}},
    {"eccUncorrectedAggregate", Shape::Selected64, ECC_CALL, {UNCORRECTED, AGGREGATE}},
    {"pcieReceivedBytes", Shape::Field, FIELD_CALL, {NVML_ABI_FIELD_PCIE_RECEIVED_BYTES, 0}},
    {"pcieSentBytes", Shape::Field, FIELD_CALL, {NVML_ABI_FIELD_PCIE_SENT_BYTES, 0}},
    {"nvlinkReceivedBytes", Shape::Field, FIELD_CALL, {NVML_ABI_FIELD_NVLINK_RECEIVED_KIB, ALL_LINKS}, 1024},
    {"nvlinkSentBytes", Shape::Field, FIELD_CALL, {NVML_ABI_FIELD_NVLINK_SENT_KIB, ALL_LINKS}, 1024},
    {"memoryTemperatureC", Shape::Field, FIELD_CALL, {NVML_ABI_FIELD_MEMORY_TEMPERATURE, 0}},
};
constexpr Reading ONCE[] = {
    {"maxSmMhz", Shape::Selected, "nvmlDeviceGetMaxClockInfo", {SM_CLOCK}},
    {"maxMemoryMhz", Shape::Selected, "nvmlDeviceGetMaxClockInfo", {MEMORY_CLOCK}},
};
constexpr uint64_t MAX_FACTOR = 1024;

bool call(nvml::Library &library, nvml::Device device, const Reading &reading, const char *name, uint64_t &value) {
    uint32_t narrow = 0, ignored = 0;
    const auto [first, second] = reading.selectors;
    bool known = false;
    switch (reading.shape) {
    case Shape::Number64: return library.ask(device, name, &value);
    case Shape::Selected64: return library.ask(device, {name, uint64_t{first} << 32 | second}, first, second, &value);
    case Shape::Number: known = library.ask(device, name, &narrow); break;
    case Shape::Selected: known = library.ask(device, {name, first}, first, &narrow); break;
    case Shape::FirstPercent: known = library.ask(device, name, &narrow, &ignored) && narrow <= 100; break;
    case Shape::Field: break;
    }
    if (known) value = narrow;
    return known;
}

void read(nvml::Library &library, nvml::Device device, const Reading &reading, Readings &out) {
    uint64_t value = 0;
    const bool has_new = reading.new_call && library.has(reading.new_call);
    if ((has_new && call(library, device, reading, reading.new_call, value)) ||
        call(library, device, reading, reading.call, value))
        out.emplace_back(reading.name, value * reading.factor);
}

// All fields of the table in one call.
void read_fields(nvml::Library &library, nvml::Device device, Readings &out) {
    nvml_abi_field fields[std::size(SLOWLY)] = {};
    const char *names[std::size(SLOWLY)];
    uint64_t factors[std::size(SLOWLY)];
    int count = 0;
    for (const Reading &reading : SLOWLY) {
        if (reading.shape != Shape::Field) continue;
        fields[count].id = reading.selectors[0];
        fields[count].scope = reading.selectors[1];
        fields[count].result = NVML_ABI_NOT_SUPPORTED;
        names[count] = reading.name;
        factors[count++] = reading.factor;
    }
    if (!library.ask(device, FIELD_CALL, count, &fields[0])) return;
    for (int i = 0; i < count; i++) {
        uint64_t value = 0;
        if (nvml::whole_number(fields[i], value) && value <= UINT64_MAX / MAX_FACTOR)
            out.emplace_back(names[i], value * factors[i]);
    }
}

// GPUs from Ampere on remap rows, earlier ones retire pages; none does both. One call reports all four figures of rows.
void read_repairs(nvml::Library &library, nvml::Device device, Readings &out) {
    static const char *const ROWS[4] = {"rowsCorrected", "rowsUncorrected", "rowsPending", "rowsFailed"};
    uint32_t rows[4] = {};
    if (library.ask(device, "nvmlDeviceGetRemappedRows", &rows[0], &rows[1], &rows[2], &rows[3])) {
        for (int i = 0; i < 4; i++) out.emplace_back(ROWS[i], i < 2 ? rows[i] : rows[i] != 0);
        return;
    }
    static const char *const PAGES[2] = {"pagesCorrected", "pagesUncorrected"};
    uint32_t pending = 0;
    for (uint32_t cause = 0; cause < 2; cause++) {
        // The answer for too small an array is the number of entries.
        const nvml::Library::Call call("nvmlDeviceGetRetiredPages", cause, NVML_ABI_INSUFFICIENT_SIZE);
        uint32_t count = 0;
        uint64_t *no_array = nullptr;
        if (library.ask(device, call, cause, &count, no_array)) out.emplace_back(PAGES[cause], count);
    }
    if (library.ask(device, "nvmlDeviceGetRetiredPagesPendingStatus", &pending))
        out.emplace_back("pagesPending", pending != 0);
}

} // namespace

void read_fast(nvml::Library &library, nvml::Device device, Readings &out) {
    for (const Reading &reading : EVERY_ROUND) read(library, device, reading, out);
}

Readings read_slow(nvml::Library &library, nvml::Device device) {
    Readings out;
    for (const Reading &reading : SLOWLY) read(library, device, reading, out);
    read_repairs(library, device, out);
    read_fields(library, device, out);
    return out;
}

void read_constants(nvml::Library &library, nvml::Device device, Readings &known) {
    for (const Reading &reading : ONCE) {
        if (std::none_of(known.begin(), known.end(), [&](const auto &one) { return one.first == reading.name; }))
            read(library, device, reading, known);
    }
}

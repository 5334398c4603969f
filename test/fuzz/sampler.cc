// A sample of the sampler above an NVML that returns anything: unterminated names, counts beyond the array, PIDs that
// no process has, missing functions. Whatever it returns, the sample is one line of JSON in printable ASCII that the
// agent accepts, and what it says of processes follows from the lines before: a line that the agent cannot read ends
// the sampler.
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <set>
#include <string>

#include "../../native/sampler/sampler.h"

extern "C" {
#include "input.h"
}

namespace {

input in;
time_t seconds;

int code() {
    const uint8_t kind = input_byte(&in);
    return kind < 208 ? NVML_ABI_SUCCESS : kind < 224 ? NVML_ABI_NOT_FOUND : static_cast<int>(input_word(&in));
}

int fill(char *text, unsigned size) {
    input_bytes(&in, text, input_byte(&in) % 4 == 0 ? size : input_byte(&in) % size);
    return code();
}

// ---- NVML ----

int init() {
    return code();
}
int shut_down() {
    return 0;
}
const char *describe(int) {
    return "said \"so\"\n";
}
int system_text(char *text, unsigned size) {
    return fill(text, size);
}
int cuda_version(int *version) {
    *version = static_cast<int>(input_word(&in));
    return code();
}
int count(unsigned *out) {
    *out = input_byte(&in) % 6;
    return code();
}
int by_index(unsigned index, nvml_abi_device *device) {
    static char devices[8];
    *device = &devices[index % 8];
    return code();
}
int instance(nvml_abi_device, unsigned index, nvml_abi_device *device) {
    static char devices[4];
    *device = &devices[index % 4];
    return code();
}
int device_text(nvml_abi_device, char *text, unsigned size) {
    return fill(text, size);
}
int pci(nvml_abi_device, nvml_abi_pci_v3 *out) {
    input_bytes(&in, out, sizeof *out);
    return code();
}
int number(nvml_abi_device, uint32_t *out) {
    *out = input_word(&in);
    return code();
}
int selected(nvml_abi_device, uint32_t, uint32_t *out) {
    *out = input_word(&in);
    return code();
}
int wide(nvml_abi_device, uint64_t *out) {
    *out = input_long(&in);
    return code();
}
int selected_wide(nvml_abi_device, uint32_t, uint32_t, uint64_t *out) {
    *out = input_long(&in);
    return code();
}
int four(nvml_abi_device, uint32_t *first, uint32_t *second, uint32_t *third, uint32_t *fourth) {
    *first = input_word(&in);
    *second = input_word(&in);
    *third = input_word(&in);
    *fourth = input_word(&in);
    return code();
}
int retired(nvml_abi_device, uint32_t, uint32_t *entries, uint64_t *) {
    *entries = input_word(&in);
    return code();
}
int fields(nvml_abi_device, int entries, nvml_abi_field *out) {
    for (int i = 0; i < entries; i++) {
        out[i].value_type = input_byte(&in) % 5;
        out[i].result = code();
        out[i].value = input_long(&in);
    }
    return code();
}
int pair(nvml_abi_device, uint32_t *first, uint32_t *second) {
    *first = input_word(&in);
    *second = input_word(&in);
    return code();
}
int memory_v1(nvml_abi_device, nvml_abi_memory_v1 *out) {
    input_bytes(&in, out, sizeof *out);
    return code();
}
int memory_v2(nvml_abi_device, nvml_abi_memory_v2 *out) {
    input_bytes(&in, out, sizeof *out);
    return code();
}
int utilization(nvml_abi_device, nvml_abi_utilization *out) {
    input_bytes(&in, out, sizeof *out);
    return code();
}
// Entries of any stride; a pid may be this process's own.
int processes(nvml_abi_device, unsigned *entries, void *out) {
    static const size_t STRIDES[] = {16, 24, 32};
    const size_t stride = STRIDES[input_byte(&in) % 3];
    const unsigned there = *entries;
    *entries = input_byte(&in) % 4;
    for (unsigned i = 0; i < *entries; i++) {
        char entry[32];
        input_bytes(&in, entry, sizeof entry);
        std::memcpy(static_cast<char *>(out) + i * stride, entry, stride);
    }
    if (input_byte(&in) == 255) *entries = there + input_word(&in);
    return code();
}
int used_by(nvml_abi_device, nvml_abi_process_utilization *rows, unsigned *entries, unsigned long long) {
    const unsigned there = *entries;
    *entries = input_byte(&in) % 4;
    for (unsigned i = 0; i < *entries; i++) input_bytes(&in, &rows[i], sizeof rows[i]);
    if (input_byte(&in) == 255) *entries = there + input_word(&in);
    return code();
}
int all_used_by(nvml_abi_device, nvml_abi_processes_utilization *out) {
    const unsigned there = out->count;
    out->count = input_byte(&in) % 4;
    for (unsigned i = 0; i < out->count; i++) input_bytes(&in, &out->entries[i], sizeof out->entries[i]);
    if (input_byte(&in) == 255) out->count = there + input_word(&in);
    return code();
}

int gpm_supported(nvml_abi_device, nvml_abi_gpm_support *out) {
    out->supported = input_byte(&in) % 8;
    return code();
}
int gpm_sample(void **sample) {
    static char samples[2];
    *sample = input_byte(&in) % 8 == 7 ? nullptr : &samples[input_byte(&in) % 2];
    return code();
}
int gpm_free(void *sample) {
    if (!sample) std::abort();
    return code();
}
int gpm_take(nvml_abi_device, void *sample) {
    if (!sample) std::abort();
    return code();
}
int gpm_take_instance(nvml_abi_device, unsigned, void *sample) {
    if (!sample) std::abort();
    return code();
}
// Any value, NaN included.
int gpm_metrics(nvml_abi_gpm_request *request) {
    for (uint32_t i = 0; i < request->count; i++) {
        request->metrics[i].result = code();
        const uint64_t bits = input_long(&in);
        std::memcpy(&request->metrics[i].value, &bits, sizeof bits);
        if (input_byte(&in) % 2) request->metrics[i].value = input_byte(&in) / 2.0;
    }
    return code();
}

bool begins(const char *name, const char *with) {
    return std::strncmp(name, with, std::strlen(with)) == 0;
}

template <typename Function> void *address(Function *function) {
    return reinterpret_cast<void *>(function);
}

void *function_of(const char *name) {
    static const struct {
        const char *begin;
        void *function;
    } FUNCTIONS[] = {
        {"nvmlInit", address(init)},
        {"nvmlShutdown", address(shut_down)},
        {"nvmlErrorString", address(describe)},
        {"nvmlSystemGetCudaDriverVersion", address(cuda_version)},
        {"nvmlSystemGet", address(system_text)},
        {"nvmlDeviceGetCount", address(count)},
        {"nvmlDeviceGetHandleByIndex", address(by_index)},
        {"nvmlDeviceGetMigMode", address(pair)},
        {"nvmlDeviceGetMaxMigDeviceCount", address(number)},
        {"nvmlDeviceGetMigDeviceHandleByIndex", address(instance)},
        {"nvmlDeviceGetGpuInstanceId", address(number)},
        {"nvmlDeviceGetComputeInstanceId", address(number)},
        {"nvmlDeviceGetUUID", address(device_text)},
        {"nvmlDeviceGetName", address(device_text)},
        {"nvmlDeviceGetPciInfo", address(pci)},
        {"nvmlDeviceGetMinorNumber", address(number)},
        {"nvmlDeviceGetMemoryInfo_v2", address(memory_v2)},
        {"nvmlDeviceGetMemoryInfo", address(memory_v1)},
        {"nvmlDeviceGetUtilizationRates", address(utilization)},
        {"nvmlDeviceGetEncoder", address(pair)},
        {"nvmlDeviceGetDecoder", address(pair)},
        {"nvmlDeviceGetTemperature", address(selected)},
        {"nvmlDeviceGetClockInfo", address(selected)},
        {"nvmlDeviceGetMaxClockInfo", address(selected)},
        {"nvmlDeviceGetPowerUsage", address(number)},
        {"nvmlDeviceGetEnforcedPowerLimit", address(number)},
        {"nvmlDeviceGetTotalEnergyConsumption", address(wide)},
        {"nvmlDeviceGetCurrentClocks", address(wide)},
        {"nvmlDeviceGetTotalEccErrors", address(selected_wide)},
        {"nvmlDeviceGetRemappedRows", address(four)},
        {"nvmlDeviceGetRetiredPagesPendingStatus", address(number)},
        {"nvmlDeviceGetRetiredPages", address(retired)},
        {"nvmlDeviceGetFieldValues", address(fields)},
        {"nvmlDeviceGetComputeRunning", address(processes)},
        {"nvmlDeviceGetGraphicsRunning", address(processes)},
        {"nvmlDeviceGetMPSCompute", address(processes)},
        {"nvmlDeviceGetProcessesUtilizationInfo", address(all_used_by)},
        {"nvmlDeviceGetProcessUtilization", address(used_by)},
        {"nvmlGpmQueryDeviceSupport", address(gpm_supported)},
        {"nvmlGpmSampleAlloc", address(gpm_sample)},
        {"nvmlGpmSampleFree", address(gpm_free)},
        {"nvmlGpmSampleGet", address(gpm_take)},
        {"nvmlGpmMigSampleGet", address(gpm_take_instance)},
        {"nvmlGpmMetricsGet", address(gpm_metrics)},
    };
    for (const auto &entry : FUNCTIONS) {
        if (begins(name, entry.begin)) return entry.function;
    }
    return nullptr;
}

// ---- the line ----

// Parses one value; aborts if it is not JSON, or has a number that is negative or not an integer.
const char *through(const char *at) {
    if (*at == '{' || *at == '[') {
        const bool named = *at == '{';
        const char end = named ? '}' : ']';
        if (*++at == end) return at + 1;
        for (;;) {
            if (named) {
                if (*at != '"') std::abort();
                at = through(at);
                if (*at++ != ':') std::abort();
            }
            at = through(at);
            if (*at == end) return at + 1;
            if (*at++ != ',') std::abort();
        }
    }
    if (*at == '"') {
        for (at++; *at != '"'; at++) {
            if (*at < 0x20 || *at > 0x7e) std::abort();
            if (*at != '\\') continue;
            const char escaped = *++at;
            if (escaped != 'u' && escaped != '"' && escaped != '\\') std::abort();
            for (int i = 0; escaped == 'u' && i < 4; i++) {
                if (!std::isxdigit(static_cast<unsigned char>(*++at))) std::abort();
            }
        }
        return at + 1;
    }
    if (begins(at, "true")) return at + 4;
    if (begins(at, "false")) return at + 5;
    if (!std::isdigit(static_cast<unsigned char>(*at))) std::abort();
    while (std::isdigit(static_cast<unsigned char>(*at))) at++;
    return at;
}

// The value of this name in the line. In text the quotation marks would be escaped.
const char *behind(const std::string &line, const char *name) {
    const size_t at = line.find(name);
    if (at == std::string::npos) std::abort();
    return line.c_str() + at + std::strlen(name);
}

// The processes that the agent knows after the line, as src/agent/sampling/delta-decoder.ts computes them; aborts where
// that would refuse the line.
void follow(const std::string &line, std::set<long> &known) {
    char *at = const_cast<char *>(behind(line, ",\"removedPids\":["));
    while (*at != ']') {
        if (known.erase(std::strtol(at, &at, 10)) != 1) std::abort();
        if (*at == ',') at++;
    }
    const std::string entries(behind(line, ",\"processes\":["), behind(line, ",\"removedPids\":["));
    static const std::string ENTRY = "{\"pid\":";
    long last = 0;
    for (size_t from = 0; (from = entries.find(ENTRY, from)) != std::string::npos;) {
        char *end;
        const long pid = std::strtol(entries.c_str() + from + ENTRY.size(), &end, 10);
        if (pid <= last) std::abort();
        last = pid;
        if (begins(end, ",\"gone\":true") || begins(end, ",\"startTicks\":")) known.insert(pid);
        else if (!begins(end, ",\"gpus\":[") || !known.count(pid)) std::abort();
        from += ENTRY.size();
    }
    if (std::strtoul(behind(line, ",\"processCount\":"), nullptr, 10) != known.size()) std::abort();
}

} // namespace

// The names that the sampler is compiled with. GPM samples are compared after seconds.
// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): libc's header declares it
extern "C" int fuzz_clock_gettime(clockid_t, timespec *now) {
    *now = {++seconds, 0};
    return 0;
}
extern "C" void *fuzz_dlopen(const char *, int) {
    return &in;
}
extern "C" int fuzz_dlclose(void *) {
    return 0;
}
extern "C" void *fuzz_dlsym(void *, const char *name) {
    return input_byte(&in) % 16 == 15 ? nullptr : function_of(name);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    in = {data, size};
    seconds = 1000000;
    Sampler sampler("libnvidia-ml.so.1", {.utilization_ms = 0, .readings_ms = 0});
    std::set<long> known;
    for (int round = 0; round < 4; round++) {
        const std::string line = sampler.take();
        const char *end = through(line.c_str());
        if (std::strcmp(end, "\n") != 0) std::abort();
        follow(line, known);
    }
    return 0;
}

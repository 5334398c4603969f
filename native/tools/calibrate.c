/* cotenant-calibrate: measures what contexts and allocations cost on this driver and GPU, by the driver's own count per
 * process:
 *   cotenant-calibrate [--cuda libcuda.so.1] [--nvml libnvidia-ml.so.1]
 * It measures the first visible device (CUDA_VISIBLE_DEVICES) and prints one line of JSON:
 *   {"uuid": ..., "contextBytes": ..., "granuleBytes": ..., "releasesLate": ..., "usableBytes": ..., "driverVersion":
 * ...} It uses a context and a few MiB for about a second, changes no setting, and must not run under the interposer.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../abi/cuda.h"
#include "../abi/nvml.h"

#define MIB (1ull << 20)

static void *cuda, *nvml;
static nvml_abi_device gpu;

static int fail(const char *what, int code) {
    fprintf(stderr, "cotenant-calibrate: %s (%d)\n", what, code);
    return 1;
}

#define CUDA(name, types, ...)                                              \
    ({                                                                      \
        abi_result(*call_) types = (abi_result(*) types)dlsym(cuda, #name); \
        call_ ? call_(__VA_ARGS__) : (abi_result)ABI_ERROR_NOT_FOUND;       \
    })
#define NVML(name, types, ...)                                                        \
    ({                                                                                \
        nvml_abi_return(*call_) types = (nvml_abi_return(*) types)dlsym(nvml, #name); \
        call_ ? call_(__VA_ARGS__) : (nvml_abi_return)NVML_ABI_FUNCTION_NOT_FOUND;    \
    })

#define MAX_PROCESSES 1024
#define FILLER 0xaa

/* The forms of the process list, newest first, with the nominal size of an entry. Drivers before 510 lack the third
 * form, those before 470 the second. */
static const struct {
    const char *name;
    size_t length;
} FORMS[] = {{"nvmlDeviceGetComputeRunningProcesses_v3", sizeof(struct nvml_abi_process_v2)},
             {"nvmlDeviceGetComputeRunningProcesses_v2", sizeof(struct nvml_abi_process_v2)},
             {"nvmlDeviceGetComputeRunningProcesses", sizeof(struct nvml_abi_process_v1)}};

/* The size of an entry has changed under one name, so the end of what the driver wrote over the filler decides. */
static size_t entry_length(const unsigned char *buffer, size_t size, unsigned count, size_t nominal) {
    static const size_t LENGTHS[] = {sizeof(struct nvml_abi_process_v1), sizeof(struct nvml_abi_process_v2),
                                     sizeof(struct nvml_abi_process_535)};
    size_t end = size;
    while (end > 0 && buffer[end - 1] == FILLER) end--;
    if (count == 0 || (end > (count - 1) * nominal && end <= count * nominal)) return nominal;
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++)
        if (end > (count - 1) * LENGTHS[i] && end <= count * LENGTHS[i]) return LENGTHS[i];
    return end > count * nominal ? sizeof(struct nvml_abi_process_535) : nominal;
}

/* Bytes that the driver counts for this process. */
static bool driver_bytes(uint64_t *bytes) {
    static unsigned char buffer[MAX_PROCESSES * sizeof(struct nvml_abi_process_535)];
    for (size_t form = 0; form < sizeof FORMS / sizeof *FORMS; form++) {
        nvml_abi_return (*list)(nvml_abi_device, unsigned *, void *) =
            (nvml_abi_return (*)(nvml_abi_device, unsigned *, void *))dlsym(nvml, FORMS[form].name);
        unsigned count = MAX_PROCESSES;
        memset(buffer, FILLER, sizeof buffer);
        nvml_abi_return code = list ? list(gpu, &count, buffer) : (nvml_abi_return)NVML_ABI_FUNCTION_NOT_FOUND;
        if (code == NVML_ABI_FUNCTION_NOT_FOUND) continue; /* a library may export a function that its driver lacks */
        if (code != NVML_ABI_SUCCESS || count > MAX_PROCESSES) return false;
        size_t length = entry_length(buffer, sizeof buffer, count, FORMS[form].length);
        *bytes = 0;
        for (unsigned i = 0; i < count; i++) {
            uint32_t pid;
            uint64_t held;
            memcpy(&pid, buffer + i * length, sizeof pid);
            memcpy(&held, buffer + i * length + 8, sizeof held);
            if (pid == (uint32_t)getpid() && held != NVML_ABI_NOT_AVAILABLE_U64) *bytes = held;
        }
        return true;
    }
    return false;
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void pause_ms(long ms) {
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

/* Launches an empty kernel: the cost of the first launch belongs to the context. Skipped if the driver cannot compile
 * it. */
static void launch_once(void) {
    static const char TEXT[] =
        ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing()\n{\n ret;\n}\n";
    abi_module module;
    abi_function function;
    if (CUDA(cuModuleLoadData, (abi_module *, const void *), &module, TEXT) != ABI_SUCCESS) return;
    if (CUDA(cuModuleGetFunction, (abi_function *, abi_module, const char *), &function, module, "nothing") !=
        ABI_SUCCESS)
        return;
    CUDA(cuLaunchKernel,
         (abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, abi_stream, void **,
          void **),
         function, 1u, 1u, 1u, 1u, 1u, 1u, 0u, (abi_stream)NULL, (void **)NULL, (void **)NULL);
    CUDA(cuCtxSynchronize, (void));
}

/* The largest size that every growth is a multiple of. */
static bool measure_granule(uint64_t *granule) {
    static const uint64_t SIZES[] = {1, MIB, MIB + 1, 2 * MIB + 1, 3 * MIB, 5 * MIB, 7 * MIB + 4097};
    abi_devptr held[sizeof SIZES / sizeof *SIZES];
    uint64_t before, after;
    *granule = 0;
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        if (!driver_bytes(&before)) return false;
        if (CUDA(cuMemAlloc_v2, (abi_devptr *, size_t), &held[i], (size_t)SIZES[i]) != ABI_SUCCESS ||
            !driver_bytes(&after))
            return false;
        if (after > before) *granule = common_divisor(after - before, *granule);
    }
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) CUDA(cuMemFree_v2, (abi_devptr), held[i]);
    return *granule != 0;
}

/* Whether freed memory leaves the driver's count at once. One late release out of several counts as late. */
static bool measure_release(bool *late) {
    uint64_t floor, held, after;
    *late = false;
    pause_ms(300);
    if (!driver_bytes(&floor)) return false;
    for (int i = 0; i < 8; i++) {
        abi_devptr block;
        if (CUDA(cuMemAlloc_v2, (abi_devptr *, size_t), &block, (size_t)(16 * MIB)) != ABI_SUCCESS ||
            !driver_bytes(&held))
            return false;
        if (CUDA(cuMemFree_v2, (abi_devptr), block) != ABI_SUCCESS || !driver_bytes(&after)) return false;
        if (after > floor) *late = true;
        for (int waited = 0; after > floor && waited < 100; waited++) {
            pause_ms(10);
            if (!driver_bytes(&after)) return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    const char *cuda_name = "libcuda.so.1", *nvml_name = "libnvidia-ml.so.1";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--cuda")) cuda_name = argv[i + 1];
        else if (!strcmp(argv[i], "--nvml")) nvml_name = argv[i + 1];
        else return fail("usage: cotenant-calibrate [--cuda PATH] [--nvml PATH]", 2);
    }
    cuda = dlopen(cuda_name, RTLD_NOW);
    nvml = dlopen(nvml_name, RTLD_NOW);
    if (!cuda || !nvml) return fail(dlerror(), 0);
    if (dlsym(cuda, "cotenant_interposer")) return fail("it runs under the interposer and would measure its grant", 0);
    int code = NVML(nvmlInit_v2, (void));
    if (code) return fail("NVML does not start", code);
    abi_uuid uuid;
    abi_context context;
    if ((code = CUDA(cuInit, (unsigned), 0u))) return fail("CUDA does not start", code);
    if ((code = CUDA(cuDeviceGetUuid, (abi_uuid *, abi_device), &uuid, (abi_device)0)))
        return fail("cannot read the UUID of the device", code);
    const unsigned char *u = uuid.bytes;
    char text[48];
    snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    if ((code = NVML(nvmlDeviceGetHandleByUUID, (const char *, nvml_abi_device *), text, &gpu)))
        return fail("NVML does not know the device", code);
    if ((code = CUDA(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), &context, (abi_device)0)))
        return fail("cannot create a context", code);
    if ((code = CUDA(cuCtxSetCurrent, (abi_context), context))) return fail("cannot use the context", code);
    size_t usable = 0;
    if ((code = CUDA(cuDeviceTotalMem_v2, (size_t *, abi_device), &usable, (abi_device)0)))
        return fail("cannot read the memory of the device", code);
    launch_once();
    uint64_t context_bytes = 0, granule = 0;
    bool late = false;
    if (!driver_bytes(&context_bytes) || context_bytes == 0)
        return fail("the driver does not count this process's memory", 0);
    if (!measure_granule(&granule) || !measure_release(&late)) return fail("memory cannot be measured", 0);
    char driver[NVML_ABI_VERSION_BYTES] = "";
    NVML(nvmlSystemGetDriverVersion, (char *, unsigned), driver, (unsigned)sizeof driver);
    printf("{\"uuid\":\"%s\",\"contextBytes\":%" PRIu64 ",\"granuleBytes\":%" PRIu64
           ",\"releasesLate\":%s,\"usableBytes\":%zu,\"driverVersion\":\"%s\"}\n",
           text, context_bytes, granule, late ? "true" : "false", usable, driver);
    return 0;
}

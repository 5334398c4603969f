/* A scripted NVML program for GPM counters: one command in, one line of JSON out, with the driver's result and its
 * values in thousandths of a percent. A function that the driver lacks is result 13. GPU 0, two samples. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../../native/abi/nvml.h"

static void *library;

#define CALL(name, types, ...) \
    (dlsym(library, name) ? ((nvml_abi_return(*) types)dlsym(library, name))(__VA_ARGS__) : NVML_ABI_FUNCTION_NOT_FOUND)

static nvml_abi_return metrics(unsigned version, void *first, void *second, struct nvml_abi_gpm_request *request) {
    static const uint32_t IDS[] = {NVML_ABI_GPM_GRAPHICS, NVML_ABI_GPM_SM,   NVML_ABI_GPM_OCCUPANCY,
                                   NVML_ABI_GPM_TENSOR,   NVML_ABI_GPM_DRAM, NVML_ABI_GPM_FP32,
                                   NVML_ABI_GPM_MOST - 1};
    memset(request, 0, sizeof *request);
    request->version = version;
    request->count = sizeof IDS / sizeof *IDS;
    request->first = first;
    request->second = second;
    for (uint32_t i = 0; i < request->count; i++) request->metrics[i].id = IDS[i];
    return CALL("nvmlGpmMetricsGet", (struct nvml_abi_gpm_request *), request);
}

int main(void) {
    char line[256];
    nvml_abi_device device = NULL;
    void *samples[2] = {NULL, NULL};
    static struct nvml_abi_gpm_request request;
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return fprintf(stderr, "gpm: %s\n", dlerror()), 3;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        char what[64] = "";
        unsigned a = 0, b = 0;
        nvml_abi_return result;
        request.count = 0;
        int words = sscanf(line, "%63s %u %u", what, &a, &b);
        if (words < 1) continue;
        void **sample = &samples[a & 1];
        if (!strcmp(what, "init")) {
            result = CALL("nvmlInit_v2", (void));
            if (!result) result = CALL("nvmlDeviceGetHandleByIndex_v2", (unsigned, nvml_abi_device *), 0u, &device);
        } else if (!strcmp(what, "support")) { /* of version 1: 1 or 0 */
            struct nvml_abi_gpm_support support = {.version = NVML_ABI_GPM_VERSION};
            result = CALL("nvmlGpmQueryDeviceSupport", (nvml_abi_device, void *), device, &support);
            printf("{\"result\":%d,\"rows\":[[%u]]}\n", result, support.supported);
            continue;
        } else if (!strcmp(what, "alloc")) { /* alloc WHICH */
            result = CALL("nvmlGpmSampleAlloc", (void **), sample);
        } else if (!strcmp(what, "free")) { /* free WHICH */
            result = CALL("nvmlGpmSampleFree", (void *), *sample);
            *sample = NULL;
        } else if (!strcmp(what, "take")) { /* take WHICH [INSTANCE] */
            result = words == 3 ? CALL("nvmlGpmMigSampleGet", (nvml_abi_device, unsigned, void *), device, b, *sample)
                                : CALL("nvmlGpmSampleGet", (nvml_abi_device, void *), device, *sample);
        } else if (!strcmp(what, "metrics")) { /* metrics VERSION */
            result = metrics(a, samples[0], samples[1], &request);
        } else if (!strcmp(what, "reversed")) {
            result = metrics(NVML_ABI_GPM_VERSION, samples[1], samples[0], &request);
        } else {
            return fprintf(stderr, "gpm: no such command: %s\n", line), 2;
        }
        printf("{\"result\":%d,\"rows\":[", result);
        for (uint32_t i = 0; result == NVML_ABI_SUCCESS && i < request.count; i++)
            printf("%s[%u,%d,%.0f]", i ? "," : "", request.metrics[i].id, request.metrics[i].result,
                   request.metrics[i].value * 1000);
        puts("]}");
    }
    for (int i = 0; i < 2; i++) {
        if (samples[i]) CALL("nvmlGpmSampleFree", (void *), samples[i]);
    }
    return 0;
}

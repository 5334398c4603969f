/* cotenant-limits: reads and sets the driver's memory limits of cgroups, which drivers from 615 on have:
 *   cotenant-limits [--library libnvidia-ml.so.1] < commands
 * one command a line: `get UUID FOLDER`, or `set UUID SOFT HARD FOLDER` in bytes, `max` for no limit. One line of JSON
 * for each:
 *   {"result": NVML's, "softBytes": ..., "hardBytes": ..., "usedBytes": ...}
 * A hard limit of null means none. A driver without these calls: {"result": 13} (not found) for each. */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../abi/nvml.h"

typedef nvml_abi_return set_limits(nvml_abi_device gpu, struct nvml_abi_set_memory_limits *limits);
typedef nvml_abi_return get_limits(nvml_abi_device gpu, struct nvml_abi_get_memory_limits *limits);

static void *nvml;
static set_limits *set;
static get_limits *get;

#define NVML(name, types, ...)                                                        \
    ({                                                                                \
        nvml_abi_return(*call_) types = (nvml_abi_return(*) types)dlsym(nvml, #name); \
        call_ ? call_(__VA_ARGS__) : (nvml_abi_return)NVML_ABI_FUNCTION_NOT_FOUND;    \
    })

static int fail(const char *what, int code) {
    fprintf(stderr, "cotenant-limits: %s (%d)\n", what, code);
    return 1;
}

/* The next word, terminated in place; the last one is the rest of the line. */
static char *word(char **rest, bool last) {
    char *at = *rest;
    if (!at) return NULL;
    char *space = last ? NULL : strchr(at, ' ');
    if (space) *space = 0;
    *rest = space ? space + 1 : NULL;
    return *at ? at : NULL;
}

static bool bytes_of(const char *text, uint64_t *bytes) {
    char *end;
    if (!text) return false;
    if (!strcmp(text, "max")) {
        *bytes = NVML_ABI_MEMORY_LIMIT_MAX;
        return true;
    }
    errno = 0;
    *bytes = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == 0 && *text != '-';
}

/* False: not a command. */
static bool obey(char *line) {
    char *rest = line;
    const char *verb = word(&rest, false), *uuid = word(&rest, false);
    struct nvml_abi_set_memory_limits wanted = {0};
    struct nvml_abi_get_memory_limits found = {0};
    const bool setting = verb && !strcmp(verb, "set");
    if (!verb || !uuid || (!setting && strcmp(verb, "get") != 0)) return false;
    if (setting &&
        (!bytes_of(word(&rest, false), &wanted.soft_bytes) || !bytes_of(word(&rest, false), &wanted.hard_bytes)))
        return false;
    found.name_space = wanted.name_space = word(&rest, true);
    if (!wanted.name_space) return false;
    nvml_abi_device gpu;
    nvml_abi_return result = get && set ? NVML_ABI_SUCCESS : NVML_ABI_FUNCTION_NOT_FOUND;
    if (result == NVML_ABI_SUCCESS)
        result = NVML(nvmlDeviceGetHandleByUUID, (const char *, nvml_abi_device *), uuid, &gpu);
    if (result == NVML_ABI_SUCCESS) result = setting ? set(gpu, &wanted) : get(gpu, &found);
    printf("{\"result\":%d", result);
    if (result == NVML_ABI_SUCCESS && !setting) {
        printf(",\"softBytes\":%" PRIu64 ",\"usedBytes\":%" PRIu64, found.soft_bytes, found.used_bytes);
        if (found.hard_bytes == NVML_ABI_MEMORY_LIMIT_MAX) fputs(",\"hardBytes\":null", stdout);
        else printf(",\"hardBytes\":%" PRIu64, found.hard_bytes);
    }
    puts("}");
    return true;
}

int main(int argc, char **argv) {
    const char *name = "libnvidia-ml.so.1";
    if (argc == 3 && !strcmp(argv[1], "--library")) name = argv[2];
    else if (argc != 1) return fail("usage: cotenant-limits [--library PATH] < commands", 2);
    nvml = dlopen(name, RTLD_NOW);
    if (!nvml) return fail(dlerror(), 0);
    if (dlsym(nvml, "cotenant_nvml")) return fail("it runs inside a grant, where limits are not its own to set", 0);
    set = (set_limits *)dlsym(nvml, "nvmlDeviceSetMemoryLimits_v1");
    get = (get_limits *)dlsym(nvml, "nvmlDeviceGetMemoryLimits_v1");
    const int code = NVML(nvmlInit_v2, (void));
    if (code) return fail("NVML does not start", code);
    static char line[8192];
    while (fgets(line, sizeof line, stdin)) {
        const size_t length = strlen(line);
        if (length == 0 || line[length - 1] != '\n') return fail("a line is too long, or does not end", 0);
        line[length - 1] = 0;
        if (!obey(line)) return fail("want get UUID FOLDER, or set UUID SOFT HARD FOLDER", 0);
    }
    NVML(nvmlShutdown, (void));
    return 0;
}

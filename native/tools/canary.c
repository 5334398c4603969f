/* cotenant-canary: tries to exceed a grant, as a tenant's program would, and prints the driver's results:
 *   cotenant-canary --within BYTES --beyond BYTES [--cuda libcuda.so.1] [--group FOLDER]
 * in that cgroup of the unified hierarchy, if given, and on the first visible device (CUDA_VISIBLE_DEVICES). Its caller
 * starts it with or without isolation. It prints one line of JSON:
 *   {"loaded": ..., "within": ..., "beyond": {"handle": ..., "default": ..., "table": ...}}
 * with results of the driver, or {"loaded": ..., "failed": "what", "code": ...} if it fails earlier. It frees what it
 * allocates at once, and judges nothing. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../abi/cuda.h"

typedef abi_result allocate(abi_devptr *at, size_t bytes);
typedef abi_result release(abi_devptr at);

static void *cuda;
static bool loaded;

static int failed(const char *what, int code) {
    printf("{\"loaded\":%s,\"failed\":\"%s\",\"code\":%d}\n", loaded ? "true" : "false", what, code);
    return 1;
}

#define CUDA(name, types, ...)                                              \
    ({                                                                      \
        abi_result(*call_) types = (abi_result(*) types)dlsym(cuda, #name); \
        call_ ? call_(__VA_ARGS__) : (abi_result)ABI_ERROR_NOT_FOUND;       \
    })

static abi_result try_allocate(allocate *call, uint64_t bytes) {
    abi_devptr at;
    if (!call) return ABI_ERROR_NOT_FOUND;
    const abi_result result = call(&at, (size_t)bytes);
    if (result == ABI_SUCCESS) CUDA(cuMemFree_v2, (abi_devptr), at);
    return result;
}

static bool parse_bytes(const char *text, uint64_t *bytes) {
    char *end;
    errno = 0;
    *bytes = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == 0 && *bytes > 0;
}

/* Enters the cgroup before it uses the driver. Returns 0 or errno. */
static int enter(const char *folder) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/cgroup.procs", folder) >= (int)sizeof path) return ENAMETOOLONG;
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    const int code = write(fd, "0", 1) == 1 ? 0 : errno;
    close(fd);
    return code;
}

int main(int argc, char **argv) {
    const char *name = "libcuda.so.1", *group = NULL;
    uint64_t within = 0, beyond = 0;
    bool good = true;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--cuda")) name = value;
        else if (!strcmp(argv[i], "--group")) group = value;
        else if (!strcmp(argv[i], "--within")) good = good && parse_bytes(value, &within);
        else if (!strcmp(argv[i], "--beyond")) good = good && parse_bytes(value, &beyond);
        else good = false;
    }
    if (!good || !within || !beyond) {
        fputs("usage: cotenant-canary --within BYTES --beyond BYTES [--cuda PATH] [--group FOLDER]\n", stderr);
        return 2;
    }
    loaded = dlsym(RTLD_DEFAULT, "cotenant_interposer") != NULL;
    const int enter_error = group ? enter(group) : 0;
    if (enter_error) return failed("entering the group", enter_error);
    /* RTLD_GLOBAL, as for programs that are linked with the driver. */
    cuda = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!cuda) return failed("opening the driver's library", 0);
    abi_context context;
    int code = CUDA(cuInit, (unsigned), 0u);
    if (code) return failed("starting CUDA", code);
    if ((code = CUDA(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), &context, (abi_device)0)))
        return failed("making a context", code);
    if ((code = CUDA(cuCtxSetCurrent, (abi_context), context))) return failed("entering the context", code);
    /* The ways in which programs find the driver: by its handle, by linking, by cuGetProcAddress. */
    allocate *const by_handle = (allocate *)dlsym(cuda, "cuMemAlloc_v2");
    allocate *const by_default = (allocate *)dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    allocate *by_table = NULL;
    CUDA(cuGetProcAddress, (const char *, allocate **, int, uint64_t), "cuMemAlloc", &by_table, 11030, (uint64_t)0);
    const abi_result given = try_allocate(by_handle, within);
    printf("{\"loaded\":%s,\"within\":%d,\"beyond\":{\"handle\":%d,\"default\":%d,\"table\":%d}}\n",
           loaded ? "true" : "false", given, try_allocate(by_handle, beyond), try_allocate(by_default, beyond),
           try_allocate(by_table, beyond));
    return 0;
}

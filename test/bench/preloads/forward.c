/* The least that a preloaded object can do: it answers the look-up of what is measured with functions of its own, which
 * call the driver's and do nothing else. What the interposer adds is shown beside what this adds. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "../../../native/abi/cuda.h"

#define EXPORT __attribute__((visibility("default")))
#if defined(__aarch64__)
#define LIBC_VERSION "GLIBC_2.17"
#else
#define LIBC_VERSION "GLIBC_2.2.5"
#endif

static void *(*real_dlsym)(void *, const char *);
static void *real_launch, *real_alloc, *real_free, *real_get;

EXPORT abi_result cuLaunchKernel(abi_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, abi_stream stream, void **parameters, void **extra) {
    return ((abi_result (*)(abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            abi_stream, void **, void **))real_launch)(function, gx, gy, gz, bx, by, bz, shared, stream,
                                                                       parameters, extra);
}
EXPORT abi_result cuMemAlloc_v2(abi_devptr *at, size_t bytes) {
    return ((abi_result (*)(abi_devptr *, size_t))real_alloc)(at, bytes);
}
EXPORT abi_result cuMemFree_v2(abi_devptr at) {
    return ((abi_result (*)(abi_devptr))real_free)(at);
}
EXPORT abi_result cuGetProcAddress_v2(const char *base, void **address, int version, uint64_t flags, int *status) {
    return ((abi_result (*)(const char *, void **, int, uint64_t, int *))real_get)(base, address, version, flags,
                                                                                   status);
}

static const struct {
    const char *name;
    void *own, **real;
} FORWARDED[] = {
    {"cuLaunchKernel", (void *)cuLaunchKernel, &real_launch},
    {"cuMemAlloc_v2", (void *)cuMemAlloc_v2, &real_alloc},
    {"cuMemFree_v2", (void *)cuMemFree_v2, &real_free},
    {"cuGetProcAddress_v2", (void *)cuGetProcAddress_v2, &real_get},
};

EXPORT void *dlsym(void *handle, const char *name) {
    if (!real_dlsym) real_dlsym = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", LIBC_VERSION);
    void *found = real_dlsym(handle, name);
    if (found && name[0] == 'c' && name[1] == 'u') {
        for (size_t i = 0; i < sizeof FORWARDED / sizeof *FORWARDED; i++) {
            if (strcmp(name, FORWARDED[i].name) != 0) continue;
            *FORWARDED[i].real = found;
            return FORWARDED[i].own;
        }
    }
    return found;
}

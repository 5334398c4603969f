/* A plugin linked with -lcuda, for routes.c: what the object that a program loads later finds. */
#include <dlfcn.h>

#include "../../../native/abi/cuda.h"

extern abi_result cuInit(unsigned);
extern abi_result cuDevicePrimaryCtxRetain(abi_context *, abi_device);
extern abi_result cuCtxSetCurrent(abi_context);
extern abi_result cuMemGetInfo_v2(size_t *, size_t *);

__attribute__((visibility("default"))) size_t plugin_total_mib(void) {
    size_t left = 0, total = 0;
    abi_context context;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 0;
    return cuMemGetInfo_v2(&left, &total) == ABI_SUCCESS ? total >> 20 : 0;
}

/* By name, for conformance.c: as this object finds it, and the library that stands here as the driver. */
__attribute__((visibility("default"))) void *plugin_find(const char *name) {
    return dlsym(RTLD_DEFAULT, name);
}
__attribute__((visibility("default"))) void *plugin_driver(void) {
    return dlopen("libcuda.so.1", RTLD_NOW);
}

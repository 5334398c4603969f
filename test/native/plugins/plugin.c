/* A plugin linked with -lcuda, for routes.c: which driver an object that is loaded later finds. */
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

/* For conformance.c: by name as this object finds it, the library that stands here as the driver, and what that has by
 * a name. No call is a jump: libc finds the caller and its namespace by the return address. */
__attribute__((visibility("default"))) void *plugin_find(const char *name) {
    void *volatile found = dlsym(RTLD_DEFAULT, name);
    return found;
}
__attribute__((visibility("default"))) void *plugin_driver(void) {
    void *volatile driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver;
}
__attribute__((visibility("default"))) void *plugin_find_in_driver(const char *name) {
    void *volatile found = dlsym(plugin_driver(), name);
    return found;
}

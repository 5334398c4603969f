/* The driver for Java: opened by name, as bindings for Java do it, and called with plain numbers. Failures are the
 * driver's results. JNI hands two pointers over first, and numbers as they are, so no header of a JDK is needed. Knows
 * nothing of Cotenant. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

static void *library, *context;

static void *find(const char *name) {
    return dlsym(library, name);
}

EXPORT int32_t Java_Driver_start(void *env, void *class) {
    int device = 0, result;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return -1;
    result = ((int (*)(unsigned))find("cuInit"))(0);
    if (result == 0) result = ((int (*)(int *, int))find("cuDeviceGet"))(&device, 0);
    return result ? result : ((int (*)(void **, int))find("cuDevicePrimaryCtxRetain"))(&context, device);
}
EXPORT int32_t Java_Driver_enter(void *env, void *class) {
    return ((int (*)(void *))find("cuCtxSetCurrent"))(context);
}
EXPORT int64_t Java_Driver_free(void *env, void *class) {
    size_t free_bytes = 0, total = 0;
    int result = ((int (*)(size_t *, size_t *))find("cuMemGetInfo_v2"))(&free_bytes, &total);
    return result ? -result : (int64_t)free_bytes;
}
EXPORT int64_t Java_Driver_total(void *env, void *class) {
    size_t free_bytes = 0, total = 0;
    int result = ((int (*)(size_t *, size_t *))find("cuMemGetInfo_v2"))(&free_bytes, &total);
    return result ? -result : (int64_t)total;
}
/* The address, or the driver's result below zero. */
EXPORT int64_t Java_Driver_allocate(void *env, void *class, int64_t bytes) {
    uint64_t address = 0;
    int result = ((int (*)(uint64_t *, size_t))find("cuMemAlloc_v2"))(&address, (size_t)bytes);
    return result ? -result : (int64_t)address;
}
EXPORT int32_t Java_Driver_release(void *env, void *class, int64_t address) {
    return ((int (*)(uint64_t))find("cuMemFree_v2"))((uint64_t)address);
}
/* Writes a number into memory of the GPU and reads it back. */
EXPORT int64_t Java_Driver_echo(void *env, void *class, int64_t address, int64_t value) {
    int64_t back = 0;
    int result = ((int (*)(uint64_t, const void *, size_t))find("cuMemcpyHtoD_v2"))((uint64_t)address, &value, 8);
    if (result == 0) result = ((int (*)(void *, uint64_t, size_t))find("cuMemcpyDtoH_v2"))(&back, (uint64_t)address, 8);
    return result ? -1 : back;
}

/* A driver that looks up its own entry points, like the one of WSL, when it is loaded and when it is called; its
 * version is the number of look-ups that found itself. */
#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))

static int own;

EXPORT int cuMemAlloc_v2(unsigned long *pointer, unsigned long bytes);
EXPORT int cuMemAlloc_v2(unsigned long *pointer, unsigned long bytes) {
    return 801;
}

static void count(void) {
    void *itself = dlopen("libcuda.so.1", RTLD_LAZY);
    own += dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == (void *)cuMemAlloc_v2;
    own += itself && dlsym(itself, "cuMemAlloc_v2") == (void *)cuMemAlloc_v2;
}

__attribute__((constructor)) static void loaded(void) {
    count();
}

EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuDriverGetVersion(int *version) {
    count();
    *version = own;
    return 0;
}

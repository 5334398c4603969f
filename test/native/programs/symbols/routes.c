/* Fifteen ways to look up cuMemGetInfo, each used to read the total memory: the result shows whether the interposer was
 * found. Prints one line per way: its name and the total in MiB (0: not found).
 *   routes PLUGIN PLUGIN-DEEPBIND PLUGIN-NEW-NAMESPACE ABSOLUTE-LIBCUDA
 * Linked with -lcuda, so that direct linking is one of the ways. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../../../../native/abi/cuda.h"
#include "driver_lookup.h"

/* What glibc began with on this machine. */
#if defined(__aarch64__)
#define FIRST_VERSION "GLIBC_2.17"
#else
#define FIRST_VERSION "GLIBC_2.2.5"
#endif

typedef abi_result (*get_info)(size_t *, size_t *);
typedef void *(*look_up)(void *, const char *);
typedef abi_result (*address_v2)(const char *, void **, int, uint64_t, int *);

extern abi_result cuInit(unsigned);
extern abi_result cuDevicePrimaryCtxRetain(abi_context *, abi_device);
extern abi_result cuCtxSetCurrent(abi_context);
extern abi_result cuMemGetInfo_v2(size_t *, size_t *);

static void show(const char *way, get_info function) {
    size_t left = 0, total = 0;
    if (function && function(&left, &total) != ABI_SUCCESS) total = 0;
    printf("%s %zu\n", way, total >> 20);
}

static void plugin(const char *way, void *handle) {
    size_t (*total)(void) = handle ? (size_t (*)(void))dlsym(handle, "plugin_total_mib") : NULL;
    printf("%s %zu\n", way, total ? total() : 0);
}

int main(int argc, char **argv) {
    if (argc != 5)
        return fputs("usage: routes PLUGIN PLUGIN-DEEPBIND PLUGIN-NEW-NAMESPACE ABSOLUTE-LIBCUDA\n", stderr), 2;
    abi_context context;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 3;
    const char *name = "cuMemGetInfo_v2";
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *address = NULL;
    show("direct-link", cuMemGetInfo_v2);
    show("dlsym-default", (get_info)dlsym(RTLD_DEFAULT, name));
    show("dlsym-next", (get_info)dlsym(RTLD_NEXT, name));
    show("dlsym-handle", (get_info)dlsym(driver, name));
    address_v2 get = (address_v2)dlsym(driver, "cuGetProcAddress_v2");
    if (get && get("cuMemGetInfo", &address, 12000, 0, NULL) == ABI_SUCCESS)
        show("get-proc-address", (get_info)address);
    address_v2 again = NULL;
    if (get && get("cuGetProcAddress", (void **)&again, 12000, 0, NULL) == ABI_SUCCESS &&
        again("cuMemGetInfo", &address, 12000, 0, NULL) == ABI_SUCCESS) {
        show("get-proc-address-twice", (get_info)address);
    }
    look_up found = (look_up)dlsym(RTLD_NEXT, "dlsym");
    show("dlsym-by-dlsym", (get_info)found(driver, name));
    found = (look_up)dlvsym(RTLD_NEXT, "dlsym", FIRST_VERSION);
    show("dlsym-by-dlvsym", (get_info)(found ? found(driver, name) : NULL));
    found = (look_up)dlsym(dlopen("libc.so.6", RTLD_NOW), "dlsym");
    show("dlsym-of-libc", (get_info)found(driver, name));
    show("own-elf-walk", (get_info)walk(driver, name));
    plugin("plugin", dlopen(argv[1], RTLD_NOW | RTLD_LOCAL));
    plugin("plugin-deepbind", dlopen(argv[2], RTLD_NOW | RTLD_DEEPBIND));
    plugin("plugin-dlmopen", dlmopen(LM_ID_NEWLM, argv[3], RTLD_NOW));
    void *unversioned = dlopen("libcuda.so", RTLD_NOW);
    show("unversioned-name", (get_info)(unversioned ? dlsym(unversioned, name) : NULL));
    void *absolute = dlopen(argv[4], RTLD_NOW);
    show("absolute-path", (get_info)(absolute ? dlsym(absolute, name) : NULL));
    return 0;
}

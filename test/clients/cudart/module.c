/* Kernels: what a program's own code registers when it is loaded, and launches of it. Code goes to the driver at its
 * first use, as with NVIDIA's runtime by default. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "cudart.h"

/* Names that C keeps for itself. */
#define CALLED(name) __asm__("__cuda" name)
EXPORT void **image_register(void *wrapper) CALLED("RegisterFatBinary");
EXPORT void image_end(void **handle) CALLED("RegisterFatBinaryEnd");
EXPORT char image_start(void **handle) CALLED("InitModule");
EXPORT void image_unregister(void **handle) CALLED("UnregisterFatBinary");
EXPORT void kernel_register(void **handle, const char *stub, char *device_stub, const char *name, int threads,
                            void *thread, void *block, rt_dim3 *block_size, rt_dim3 *grid_size, int *warp_size)
    CALLED("RegisterFunction");
EXPORT void variable_register(void **handle, char *variable, char *device_variable, const char *name, int external,
                              size_t bytes, int constant, int global) CALLED("RegisterVar");
EXPORT unsigned configuration_push(rt_dim3 grid, rt_dim3 block, size_t shared, void *stream)
    CALLED("PushCallConfiguration");
EXPORT rt_result configuration_pop(rt_dim3 *grid, rt_dim3 *block, size_t *shared, void **stream)
    CALLED("PopCallConfiguration");

/* One embedded image; programs hold its address. */
struct image {
    const void *wrapper;
    abi_library library; /* under `lock` */
    bool gone;
};
/* One kernel by the address of its stub in the program. */
struct kernel {
    const void *stub;
    const char *name;
    struct image *image;
    _Atomic(abi_function) function;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Open addressing, at most half full. A kernel stays where it is: the table holds pointers. */
static struct kernel **table;
static size_t capacity, count;

static size_t place_of(struct kernel **places, size_t slots, const void *stub) {
    size_t at = ((uintptr_t)stub >> 4) * 0x9e3779b97f4a7c15u >> 20;
    while (places[at % slots] && places[at % slots]->stub != stub) at++;
    return at % slots;
}

static bool grow(void) {
    size_t slots = capacity ? capacity * 2 : 1024;
    struct kernel **places = calloc(slots, sizeof *places);
    if (!places) return false;
    for (size_t i = 0; i < capacity; i++) {
        if (table[i]) places[place_of(places, slots, table[i]->stub)] = table[i];
    }
    free(table);
    table = places;
    capacity = slots;
    return true;
}

EXPORT void **image_register(void *wrapper) {
    struct image *image = calloc(1, sizeof *image);
    if (image) image->wrapper = wrapper;
    return (void **)image;
}
EXPORT void image_end(void **handle) {}
EXPORT char image_start(void **handle) {
    return 1;
}
EXPORT void kernel_register(void **handle, const char *stub, char *device_stub, const char *name, int threads,
                            void *thread, void *block, rt_dim3 *block_size, rt_dim3 *grid_size, int *warp_size) {
    pthread_mutex_lock(&lock);
    if (handle && (count * 2 < capacity || grow())) {
        size_t at = place_of(table, capacity, stub);
        struct kernel *kernel = table[at] ? table[at] : calloc(1, sizeof *kernel);
        if (kernel) {
            if (!table[at]) count++;
            *kernel = (struct kernel){.stub = stub, .name = name, .image = (struct image *)handle};
            table[at] = kernel;
        }
    }
    pthread_mutex_unlock(&lock);
}
/* No entry point here reaches a variable by its name. */
EXPORT void variable_register(void **handle, char *variable, char *device_variable, const char *name, int external,
                              size_t bytes, int constant, int global) {}
EXPORT void image_unregister(void **handle) {
    struct image *image = (struct image *)handle;
    if (!image) return;
    pthread_mutex_lock(&lock);
    image->gone = true; /* its kernels point to it */
    abi_library library = image->library;
    image->library = NULL;
    pthread_mutex_unlock(&lock);
    if (library) DRIVER(cuLibraryUnload, library);
}

/* Under `lock`, and across calls of the driver: a program's threads wait for its first launches as with NVIDIA's. */
static rt_result load(struct kernel *kernel) {
    rt_result result = ABI_SUCCESS;
    void *handle = NULL;
    abi_function function;
    if (kernel->image->gone) return RT_ERROR_INVALID_DEVICE_FUNCTION;
    if (!kernel->image->library)
        result =
            DRIVER(cuLibraryLoadData, &kernel->image->library, kernel->image->wrapper, NULL, NULL, 0, NULL, NULL, 0);
    if (result == ABI_SUCCESS) result = DRIVER(cuLibraryGetKernel, &handle, kernel->image->library, kernel->name);
    if (result == ABI_SUCCESS) result = DRIVER(cuKernelGetFunction, &function, handle);
    if (result == ABI_SUCCESS) atomic_store(&kernel->function, function);
    return result;
}

static rt_result function_of(const void *stub, abi_function *function) {
    rt_result result = rt_enter();
    if (result != ABI_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    struct kernel *kernel = capacity ? table[place_of(table, capacity, stub)] : NULL;
    if (!kernel) result = RT_ERROR_INVALID_DEVICE_FUNCTION;
    else if (!atomic_load(&kernel->function)) result = load(kernel);
    if (result == ABI_SUCCESS) *function = atomic_load(&kernel->function);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT rt_result cudaLaunchKernel(const void *stub, rt_dim3 grid, rt_dim3 block, void **arguments, size_t shared,
                                  abi_stream stream) {
    abi_function function;
    rt_result result = function_of(stub, &function);
    if (result == ABI_SUCCESS)
        result = DRIVER(cuLaunchKernel, function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared,
                        stream, arguments, NULL);
    return rt_answer(result);
}

/* cudaLaunchConfig_t, 56 bytes; attributes are laid out as the driver's. */
struct launch_config {
    rt_dim3 grid, block;
    size_t shared;
    abi_stream stream;
    void *attributes;
    unsigned attribute_count;
};
EXPORT rt_result cudaLaunchKernelExC(const struct launch_config *config, const void *stub, void **arguments) {
    abi_function function;
    rt_result result = config ? function_of(stub, &function) : ABI_ERROR_INVALID_VALUE;
    if (result != ABI_SUCCESS) return rt_answer(result);
    abi_launch_config launch = {.grid_x = config->grid.x,
                                .grid_y = config->grid.y,
                                .grid_z = config->grid.z,
                                .block_x = config->block.x,
                                .block_y = config->block.y,
                                .block_z = config->block.z,
                                .shared_bytes = (unsigned)config->shared,
                                .stream = config->stream,
                                .attributes = config->attributes,
                                .attribute_count = config->attribute_count};
    return rt_answer(DRIVER(cuLaunchKernelEx, &launch, function, arguments, NULL));
}

/* What <<<…>>> puts down and the stub picks up; one inside the other where an argument launches, too. */
enum { CONFIGURATIONS = 16 };
static _Thread_local struct {
    rt_dim3 grid, block;
    size_t shared;
    void *stream;
} configurations[CONFIGURATIONS];
static _Thread_local int depth;

EXPORT unsigned configuration_push(rt_dim3 grid, rt_dim3 block, size_t shared, void *stream) {
    if (depth == CONFIGURATIONS) return ABI_ERROR_INVALID_VALUE;
    configurations[depth].grid = grid;
    configurations[depth].block = block;
    configurations[depth].shared = shared;
    configurations[depth++].stream = stream;
    return 0;
}
EXPORT rt_result configuration_pop(rt_dim3 *grid, rt_dim3 *block, size_t *shared, void **stream) {
    if (depth == 0) return rt_answer(ABI_ERROR_INVALID_VALUE);
    *grid = configurations[--depth].grid;
    *block = configurations[depth].block;
    *shared = configurations[depth].shared;
    *stream = configurations[depth].stream;
    return ABI_SUCCESS;
}

/* cudaFuncAttributes, 144 bytes: three sizes, then numbers. */
struct function_attributes {
    size_t shared, constant, local;
    int threads, registers, ptx, binary, caches_globals, dynamic_shared, carveout;
    int cluster_set, cluster_width, cluster_height, cluster_depth, cluster_policy, odd_clusters;
    int reserved[17];
};
_Static_assert(sizeof(struct function_attributes) == 144, "cudaFuncAttributes");

EXPORT rt_result cudaFuncGetAttributes(struct function_attributes *attributes, const void *stub) {
    abi_function function;
    int shared = 0, constant = 0, local = 0;
    rt_result result = attributes ? function_of(stub, &function) : ABI_ERROR_INVALID_VALUE;
    if (result != ABI_SUCCESS) return rt_answer(result);
    *attributes = (struct function_attributes){0};
    int *numbers[] = {&attributes->threads,
                      &shared,
                      &constant,
                      &local,
                      &attributes->registers,
                      &attributes->ptx,
                      &attributes->binary,
                      &attributes->caches_globals,
                      &attributes->dynamic_shared,
                      &attributes->carveout,
                      &attributes->cluster_set,
                      &attributes->cluster_width,
                      &attributes->cluster_height,
                      &attributes->cluster_depth,
                      &attributes->odd_clusters,
                      &attributes->cluster_policy};
    for (int i = 0; i < 16 && result == ABI_SUCCESS; i++) result = DRIVER(cuFuncGetAttribute, numbers[i], i, function);
    attributes->shared = (size_t)shared;
    attributes->constant = (size_t)constant;
    attributes->local = (size_t)local;
    return rt_answer(result);
}
EXPORT rt_result cudaFuncSetAttribute(const void *stub, int attribute, int value) {
    abi_function function;
    rt_result result = function_of(stub, &function);
    return rt_answer(result == ABI_SUCCESS ? DRIVER(cuFuncSetAttribute, function, attribute, value) : result);
}
EXPORT rt_result cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *stub, int threads,
                                                                        size_t shared, unsigned flags) {
    abi_function function;
    rt_result result = function_of(stub, &function);
    if (result == ABI_SUCCESS)
        result = flags ? DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, blocks, function, threads, shared,
                                flags)
                       : DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor, blocks, function, threads, shared);
    return rt_answer(result);
}

/* External memory: memory of another interface, imported by its file. A file exported from memory by handle is that
 * memory; any other file stands for memory of an interface that is not simulated: it is not accounted before its
 * import, and each import allocates its size on the GPU. */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../sim.h"

struct sim_external {
    struct sim_external *next;
    struct sim_context *context;
    uint64_t block, bytes;
    int fd;
};
static struct sim_external *externals;

static struct sim_external **place_of(const void *handle) {
    struct sim_external **place = &externals;
    while (*place && *place != handle) place = &(*place)->next;
    return place;
}

static void end(struct sim_external **place) {
    struct sim_external *external = *place;
    *place = external->next;
    sim_simple(SIM_RELEASE, external->context->gpu, external->block, 0, NULL);
    close(external->fd);
    free(external);
}

static void release(struct sim_context *context) {
    for (struct sim_external **place = &externals; *place;) {
        if ((*place)->context == context) end(place);
        else place = &(*place)->next;
    }
}

static void inherit(struct sim_context *from, struct sim_context *to) {
    for (struct sim_external *external = externals; external; external = external->next) {
        if (external->context == from) external->context = to;
    }
}
SIM_ON_CONTEXT_END(.inherit = inherit, .release = release)

static int take(struct sim_context *context, int fd, uint64_t bytes, uint64_t *block) {
    struct sim_request import = {.op = SIM_IMPORT}, request = {.op = SIM_ALLOCATE, .gpu = context->gpu};
    struct sim_reply reply;
    int result = sim_request(&import, fd, &reply, NULL);
    if (result != ABI_SUCCESS) {
        request.arg[0] = bytes;
        request.arg[1] = SIM_KIND_EXTERNAL;
        result = sim_request(&request, -1, &reply, NULL);
    } else if (bytes > reply.arg[1]) {
        sim_simple(SIM_RELEASE, context->gpu, reply.arg[0], 0, NULL);
        return ABI_ERROR_INVALID_VALUE;
    }
    *block = reply.arg[0];
    return result;
}

/* On success the driver owns the descriptor. */
SIM_EXPORT abi_result cuImportExternalMemory(abi_external *out, const abi_external_handle *from) {
    SIM_ENTER("cuImportExternalMemory");
    struct stat info;
    SIM_CURRENT(context);
    if (!out || !from || from->size == 0) return ABI_ERROR_INVALID_VALUE;
    if (from->type != ABI_EXTERNAL_OPAQUE_FD && from->type != ABI_EXTERNAL_DMABUF_FD) return ABI_ERROR_NOT_SUPPORTED;
    if (fstat(from->handle.fd, &info) != 0 || (uint64_t)info.st_size < from->size) return ABI_ERROR_INVALID_VALUE;
    struct sim_external *external = calloc(1, sizeof *external);
    if (!external) return ABI_ERROR_OUT_OF_MEMORY;
    *external = (struct sim_external){.context = context, .bytes = from->size, .fd = from->handle.fd};
    pthread_mutex_lock(&sim.lock);
    int result = sim_usable(context); /* another thread may have ended it before this one got the lock */
    if (result == ABI_SUCCESS) result = take(context, external->fd, external->bytes, &external->block);
    if (result == ABI_SUCCESS) {
        external->next = externals;
        externals = external;
    }
    pthread_mutex_unlock(&sim.lock);
    if (result == ABI_SUCCESS) *out = (abi_external)external;
    else free(external);
    return result;
}

SIM_EXPORT abi_result cuDestroyExternalMemory(abi_external handle) {
    SIM_ENTER("cuDestroyExternalMemory");
    pthread_mutex_lock(&sim.lock);
    struct sim_external **place = place_of(handle);
    bool known = *place != NULL;
    if (known) end(place);
    pthread_mutex_unlock(&sim.lock);
    return known ? ABI_SUCCESS : ABI_ERROR_INVALID_HANDLE;
}

SIM_EXPORT abi_result cuExternalMemoryGetMappedBuffer(abi_devptr *out, abi_external handle,
                                                      const abi_external_buffer *buffer) {
    SIM_ENTER("cuExternalMemoryGetMappedBuffer");
    if (!out || !buffer || buffer->flags || buffer->size == 0 || buffer->offset % 4096) return ABI_ERROR_INVALID_VALUE;
    int result = ABI_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&sim.lock);
    struct sim_external *external = *place_of(handle);
    struct sim_region *region;
    if (external) {
        bool inside = buffer->offset <= external->bytes && buffer->size <= external->bytes - buffer->offset;
        result = inside ? sim_region_new(SIM_VIEW, buffer->size, 0, &region) : ABI_ERROR_INVALID_VALUE;
    }
    if (result == ABI_SUCCESS) {
        region->context = external->context;
        region->device = external->context->device;
        *out = sim_region_address(region);
        if (mmap((void *)*out, buffer->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, external->fd,
                 (off_t)buffer->offset) == MAP_FAILED) {
            sim_region_end(region);
            result = ABI_ERROR_MAP_FAILED;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuExternalMemoryGetMappedMipmappedArray(abi_mipmapped *out, abi_external handle,
                                                              const abi_external_mipmapped *chain) {
    SIM_ENTER("cuExternalMemoryGetMappedMipmappedArray");
    if (!out || !chain) return ABI_ERROR_INVALID_VALUE;
    int result = ABI_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&sim.lock);
    struct sim_external *external = *place_of(handle);
    if (external) {
        uint64_t capacity = chain->offset < external->bytes ? external->bytes - chain->offset : 0;
        result = sim_array_view(external->context, &chain->shape, chain->levels, capacity, out);
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

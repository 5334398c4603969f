/* Pools shared between processes: the exported file or fabric handle names the GPU, the exported pointers say the rest.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool.h"

struct pool_file {
    uint64_t magic;
    uint32_t gpu;
};

static int export_file(uint32_t gpu, void *out) {
    struct pool_file file = {SIM_POOL_MAGIC, gpu};
    int fd = memfd_create("simulated-pool", MFD_CLOEXEC);
    if (fd < 0 || write(fd, &file, sizeof file) != sizeof file) {
        if (fd >= 0) close(fd);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    *(int *)out = fd;
    return ABI_SUCCESS;
}

static int import_file(int fd, uint32_t *gpu) {
    struct pool_file file;
    if (pread(fd, &file, sizeof file, 0) != sizeof file || file.magic != SIM_POOL_MAGIC) return ABI_ERROR_INVALID_VALUE;
    *gpu = file.gpu;
    return ABI_SUCCESS;
}

static bool is_one_type(int type) {
    return type == ABI_HANDLE_POSIX_FD || type == ABI_HANDLE_FABRIC;
}

SIM_EXPORT abi_result cuMemPoolExportToShareableHandle(void *out, abi_pool handle, int type, unsigned long long flags) {
    SIM_ENTER("cuMemPoolExportToShareableHandle");
    struct sim_pool *pool = (struct sim_pool *)handle;
    if (!out || flags || !is_one_type(type)) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    bool known = sim_is_pool(pool) && pool->handle_types & type;
    int device = known ? pool->device : 0;
    pthread_mutex_unlock(&sim.lock);
    if (!known) return ABI_ERROR_INVALID_VALUE;
    return type == ABI_HANDLE_FABRIC ? sim_fabric_export_pool(device, out) : export_file(sim.gpu_of[device], out);
}

SIM_EXPORT abi_result cuMemPoolImportFromShareableHandle(abi_pool *out, void *handle, int type,
                                                         unsigned long long flags) {
    SIM_ENTER("cuMemPoolImportFromShareableHandle");
    uint32_t gpu;
    if (!out || flags || !is_one_type(type)) return ABI_ERROR_INVALID_VALUE;
    SIM_TRY(type == ABI_HANDLE_FABRIC ? sim_fabric_import_pool(handle, &gpu)
                                      : import_file((int)(intptr_t)handle, &gpu));
    int device = -1;
    for (int i = 0; i < sim.device_count; i++) {
        if (sim.gpu_of[i] == gpu) device = i;
    }
    if (device < 0) return ABI_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim.lock);
    struct sim_pool *pool = sim_pool_new(device, &(abi_location){ABI_LOCATION_DEVICE, device});
    if (pool) pool->imported = true;
    pthread_mutex_unlock(&sim.lock);
    *out = (abi_pool)pool;
    return pool ? ABI_SUCCESS : ABI_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT abi_result cuMemPoolExportPointer(abi_pool_pointer *out, abi_devptr pointer) {
    SIM_ENTER("cuMemPoolExportPointer");
    struct sim_shared_address place;
    if (!out) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    struct sim_region *region = sim_region_at(pointer);
    bool fits = region && region->kind == SIM_CHUNK && region->pool->handle_types;
    int result = fits ? sim_share(pointer, &place) : ABI_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim.lock);
    if (result != ABI_SUCCESS) return result;
    memset(out, 0, sizeof *out);
    memcpy(out, &place, sizeof place);
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuMemPoolImportPointer(abi_devptr *out, abi_pool handle, abi_pool_pointer *from) {
    SIM_ENTER("cuMemPoolImportPointer");
    struct sim_pool *pool = (struct sim_pool *)handle;
    struct sim_shared_address place;
    if (!out || !from) return ABI_ERROR_INVALID_VALUE;
    memcpy(&place, from, sizeof place);
    return SIM_LOCKED(sim_is_pool(pool) && pool->imported ? sim_open(&place, true, out) : ABI_ERROR_INVALID_VALUE);
}

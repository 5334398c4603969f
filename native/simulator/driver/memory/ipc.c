/* Memory shared between processes by IPC handles: cuIpc*, and pointers of exportable pools (pool.c). When a region is
 * first shared, its contents move into a file that the daemon keeps; a thread that writes into the region at that
 * moment may lose what it wrote. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../sim.h"

#define PLACE_MAGIC 0x31454341504d4953ull

/* Under sim.lock: moves a region from anonymous memory into a file. */
static int move_into_file(struct sim_region *region) {
    char *at = (char *)sim_region_address(region);
    uint64_t length = region->pages * SIM_PAGE;
    int fd = memfd_create("simulated-shared-memory", MFD_CLOEXEC);
    void *copy = MAP_FAILED;
    int result = fd >= 0 && ftruncate(fd, (off_t)length) == 0 ? ABI_SUCCESS : ABI_ERROR_OUT_OF_MEMORY;
    if (result == ABI_SUCCESS) copy = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (copy == MAP_FAILED) result = ABI_ERROR_OUT_OF_MEMORY;
    if (result == ABI_SUCCESS) {
        struct sim_request request = {.op = SIM_SHARE, .arg = {region->block}};
        struct sim_reply reply;
        memcpy(copy, at, region->bytes);
        result = sim_request(&request, fd, &reply, NULL);
    }
    if (result == ABI_SUCCESS && mmap(at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        result = ABI_ERROR_OUT_OF_MEMORY;
    if (copy != MAP_FAILED) munmap(copy, length);
    if (fd >= 0) close(fd);
    region->shared = result == ABI_SUCCESS;
    return result;
}

/* Under sim.lock. */
int sim_share(abi_devptr pointer, struct sim_shared_address *place) {
    struct sim_region *region = sim_region_at(pointer);
    if (!region) return ABI_ERROR_INVALID_VALUE;
    int result = region->shared ? ABI_SUCCESS : move_into_file(region);
    *place = (struct sim_shared_address){PLACE_MAGIC, region->block, pointer - sim_region_address(region)};
    return result;
}

static struct sim_region *opened(uint64_t block) {
    uint32_t index = 0;
    struct sim_region *region;
    while ((region = sim_region_next(&index)) && !(region->kind == SIM_OPENED && region->block == block)) {
    }
    return region;
}

static int open_new(struct sim_context *context, uint64_t block, bool pooled, struct sim_region **out) {
    struct sim_request request = {.op = SIM_OPEN_SHARED, .arg = {block, pooled}};
    struct sim_reply reply;
    struct sim_region *region = NULL;
    int fd = -1, device = -1, result = sim_request(&request, -1, &reply, &fd);
    if (result != ABI_SUCCESS) return result;
    for (int i = 0; i < sim.device_count; i++) {
        if (sim.gpu_of[i] == reply.arg[2]) device = i;
    }
    struct stat info;
    result = device >= 0 ? ABI_SUCCESS : ABI_ERROR_INVALID_DEVICE;
    if (result == ABI_SUCCESS && (fd < 0 || fstat(fd, &info) != 0)) result = ABI_ERROR_MAP_FAILED;
    if (result == ABI_SUCCESS) result = sim_region_new(SIM_OPENED, (uint64_t)info.st_size, 0, &region);
    if (result == ABI_SUCCESS && mmap((void *)sim_region_address(region), region->pages * SIM_PAGE,
                                      PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        sim_region_end(region);
        result = ABI_ERROR_MAP_FAILED;
    }
    if (fd >= 0) close(fd);
    if (result != ABI_SUCCESS) {
        sim_simple(SIM_RELEASE, (uint32_t)reply.arg[2], block, 0, NULL);
        return result;
    }
    region->block = block;
    region->context = context;
    region->device = device;
    *out = region;
    return ABI_SUCCESS;
}

/* Under sim.lock. A region that is open already is opened again at the same address. */
int sim_open(const struct sim_shared_address *place, bool pooled, abi_devptr *pointer) {
    struct sim_context *context;
    int result = sim_current(&context);
    if (result != ABI_SUCCESS) return result;
    if (place->magic != PLACE_MAGIC) return ABI_ERROR_INVALID_VALUE;
    struct sim_region *region = opened(place->block);
    if (!region) result = open_new(context, place->block, pooled, &region);
    if (result != ABI_SUCCESS) return result;
    if (place->offset >= region->bytes) return ABI_ERROR_INVALID_VALUE;
    region->opens++;
    region->pooled = pooled;
    *pointer = sim_region_address(region) + place->offset;
    return ABI_SUCCESS;
}

/* Under sim.lock. */
int sim_close(struct sim_region *region) {
    if (--region->opens > 0) return ABI_SUCCESS;
    sim_simple(SIM_RELEASE, sim.gpu_of[region->device], region->block, 0, NULL);
    sim_region_end(region);
    return ABI_SUCCESS;
}

/* Only memory of cuMemAlloc: neither managed nor pooled memory, nor memory by handle. An address inside of it stands
 * for all of it: UCX (cuda_ipc_md.c, cuda_ipc_ep.c) takes handles of such addresses, and adds their distance from the
 * first one to what it opened. */
SIM_EXPORT abi_result cuIpcGetMemHandle(abi_ipc_handle *out, abi_devptr pointer) {
    SIM_ENTER("cuIpcGetMemHandle");
    if (!out) return ABI_ERROR_INVALID_VALUE;
    struct sim_shared_address place;
    int result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    struct sim_region *region = sim_region_at(pointer);
    abi_devptr start = region ? sim_region_address(region) : 0;
    uint64_t bytes;
    if (region &&
        (region->kind == SIM_LARGE || (region->kind == SIM_SMALLS && sim_small_range(region, pointer, &start, &bytes))))
        result = sim_share(start, &place);
    pthread_mutex_unlock(&sim.lock);
    if (result != ABI_SUCCESS) return result;
    memset(out, 0, sizeof *out);
    memcpy(out, &place, sizeof place);
    return ABI_SUCCESS;
}

static int ipc_open(abi_devptr *out, const abi_ipc_handle *handle) {
    struct sim_shared_address place;
    if (!out) return ABI_ERROR_INVALID_VALUE;
    memcpy(&place, handle, sizeof place);
    return SIM_LOCKED(sim_open(&place, false, out));
}
enum { LAZY_PEER_ACCESS = 1 }; /* the one flag, which must be given */

SIM_EXPORT abi_result cuIpcOpenMemHandle_v2(abi_devptr *out, abi_ipc_handle handle, unsigned flags) {
    SIM_ENTER("cuIpcOpenMemHandle_v2");
    return flags == LAZY_PEER_ACCESS ? ipc_open(out, &handle) : ABI_ERROR_INVALID_VALUE;
}
SIM_EXPORT abi_result cuIpcOpenMemHandle(abi_devptr *out, abi_ipc_handle handle, unsigned flags) {
    SIM_ENTER("cuIpcOpenMemHandle");
    return flags == LAZY_PEER_ACCESS ? ipc_open(out, &handle) : ABI_ERROR_INVALID_VALUE;
}

SIM_EXPORT abi_result cuIpcCloseMemHandle(abi_devptr pointer) {
    SIM_ENTER("cuIpcCloseMemHandle");
    pthread_mutex_lock(&sim.lock);
    struct sim_region *region = sim_region_at(pointer);
    int result = region && region->kind == SIM_OPENED && !region->pooled ? sim_close(region) : ABI_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

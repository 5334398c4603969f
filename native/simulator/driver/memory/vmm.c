/* Memory by handle: address ranges and physical memory. Physical memory is a memfd, so that mapping it twice, exporting
 * it and importing it in another process are real. It lives until its last handle, mapping and importer are gone. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../sim.h"

#define HOST_PAGE 4096u

static uint64_t vmm_granule(uint32_t gpu) {
    uint64_t granule = sim.facts->gpus[gpu].granule_bytes;
    return granule < SIM_PAGE ? SIM_PAGE : granule;
}

struct sim_physical *sim_physical_of(abi_vmm_handle handle) {
    for (struct sim_physical *known = sim.physicals; known; known = known->next) {
        if ((abi_vmm_handle)(uintptr_t)known == handle && known->handles > 0) return known;
    }
    return NULL;
}

void sim_physical_end_if_unused(struct sim_physical *physical) {
    if (physical->handles > 0 || physical->maps > 0) return;
    for (struct sim_physical **place = &sim.physicals; *place; place = &(*place)->next) {
        if (*place == physical) {
            *place = physical->next;
            break;
        }
    }
    if (physical->block) sim_simple(SIM_RELEASE, 0, physical->block, 0, NULL);
    close(physical->memfd);
    free(physical);
}

/* Locality domains came with CUDA 13.4. No driver has type 7: it stands for a future one, with the device in its second
 * byte. */
int sim_device_of_location(const abi_location *location) {
    int device = location->id, since = 0;
    switch (location->type) {
    case ABI_LOCATION_HOST:
    case ABI_LOCATION_HOST_NUMA:
    case ABI_LOCATION_HOST_NUMA_CURRENT: return SIM_HOST;
    case ABI_LOCATION_DEVICE: break;
    case ABI_LOCATION_DEVICE_LOCALITY_DOMAIN:
        device = location->id & 0xff;
        since = 13040;
        break;
    case 7:
        device = location->id >> 8 & 0xff;
        since = 14000;
        break;
    default: return SIM_UNKNOWN_LOCATION;
    }
    if (sim_library_cuda < since) return SIM_UNKNOWN_LOCATION;
    return device >= 0 && device < sim.device_count ? device : SIM_NO_DEVICE;
}

SIM_EXPORT abi_result cuMemGetAllocationGranularity(size_t *granularity, const abi_vmm_prop *prop, int option) {
    SIM_ENTER("cuMemGetAllocationGranularity");
    if (!granularity || !prop || (option != ABI_GRANULARITY_MINIMUM && option != ABI_GRANULARITY_RECOMMENDED))
        return ABI_ERROR_INVALID_VALUE;
    int device = sim_device_of_location(&prop->location);
    if (device == SIM_UNKNOWN_LOCATION) return ABI_ERROR_INVALID_VALUE;
    if (device == SIM_NO_DEVICE) return ABI_ERROR_INVALID_DEVICE;
    *granularity = device >= 0 ? vmm_granule(sim.gpu_of[device]) : SIM_PAGE;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuMemAddressReserve(abi_devptr *pointer, size_t bytes, size_t alignment, abi_devptr hint,
                                          unsigned long long flags) {
    SIM_ENTER("cuMemAddressReserve");
    if (!pointer || bytes == 0 || bytes % SIM_PAGE || hint % HOST_PAGE || flags || (alignment & (alignment - 1)))
        return ABI_ERROR_INVALID_VALUE;
    struct sim_region *region;
    pthread_mutex_lock(&sim.lock);
    int result = sim_region_new(SIM_RESERVED, bytes, alignment, &region);
    if (result == ABI_SUCCESS) {
        region->mapped = calloc(region->pages, sizeof *region->mapped);
        region->starts = calloc(region->pages, sizeof *region->starts);
        region->access = calloc(region->pages, sizeof *region->access);
        if (region->mapped && region->starts && region->access) {
            *pointer = sim_region_address(region);
        } else {
            sim_region_end(region);
            result = ABI_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuMemAddressFree(abi_devptr pointer, size_t bytes) {
    SIM_ENTER("cuMemAddressFree");
    int result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    struct sim_region *region = sim_region_at(pointer);
    if (region && region->kind == SIM_RESERVED && sim_region_address(region) == pointer && region->bytes == bytes) {
        bool empty = true;
        for (uint64_t i = 0; i < region->pages; i++) empty = empty && !region->mapped[i];
        if (empty) {
            sim_region_end(region);
            result = ABI_SUCCESS;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuMemCreate(abi_vmm_handle *handle, size_t bytes, const abi_vmm_prop *prop,
                                  unsigned long long flags) {
    SIM_ENTER("cuMemCreate");
    if (!handle || !prop || flags || bytes == 0 || prop->type != ABI_ALLOCATION_PINNED) return ABI_ERROR_INVALID_VALUE;
    if (prop->location.type == ABI_LOCATION_HOST_NUMA_CURRENT ||
        (prop->location.type == ABI_LOCATION_HOST && prop->requested_handle_types))
        return ABI_ERROR_INVALID_VALUE;
    int device = sim_device_of_location(&prop->location);
    if (device == SIM_UNKNOWN_LOCATION) return ABI_ERROR_INVALID_VALUE;
    if (device == SIM_NO_DEVICE) return ABI_ERROR_INVALID_DEVICE;
    bool on_device = device >= 0;
    uint32_t gpu = on_device ? sim.gpu_of[device] : 0;
    if (bytes % (on_device ? vmm_granule(gpu) : SIM_PAGE)) return ABI_ERROR_INVALID_VALUE;
    if (prop->requested_handle_types & ABI_HANDLE_FABRIC) SIM_TRY(sim_fabric_allowed(device));
    struct sim_physical *physical = calloc(1, sizeof *physical);
    int fd = memfd_create("simulated-device-memory", MFD_CLOEXEC);
    int result = physical && fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 ? ABI_SUCCESS : ABI_ERROR_OUT_OF_MEMORY;
    struct sim_reply reply = {0};
    if (result == ABI_SUCCESS && on_device) {
        struct sim_request request = {.op = SIM_ALLOCATE, .gpu = gpu, .arg = {bytes, SIM_KIND_VMM}};
        result = sim_request(&request, fd, &reply, NULL);
    }
    if (result != ABI_SUCCESS) {
        if (fd >= 0) close(fd);
        free(physical);
        return result;
    }
    *physical = (struct sim_physical){.block = reply.arg[0],
                                      .bytes = bytes,
                                      .memfd = fd,
                                      .device = on_device ? device : -1,
                                      .handles = 1,
                                      .prop = *prop};
    pthread_mutex_lock(&sim.lock);
    physical->next = sim.physicals;
    sim.physicals = physical;
    pthread_mutex_unlock(&sim.lock);
    *handle = (uintptr_t)physical;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuMemRelease(abi_vmm_handle handle) {
    SIM_ENTER("cuMemRelease");
    pthread_mutex_lock(&sim.lock);
    struct sim_physical *physical = sim_physical_of(handle);
    if (physical) {
        physical->handles--;
        sim_physical_end_if_unused(physical);
    }
    pthread_mutex_unlock(&sim.lock);
    return physical ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}

static struct sim_region *reserved_range(abi_devptr pointer, uint64_t bytes, uint64_t *first) {
    struct sim_region *region = sim_region_at(pointer);
    if (!region || region->kind != SIM_RESERVED || bytes == 0 || bytes % SIM_PAGE) return NULL;
    uint64_t offset = pointer - sim_region_address(region);
    if (offset % SIM_PAGE || offset + bytes > region->pages * SIM_PAGE) return NULL;
    *first = offset / SIM_PAGE;
    return region;
}

static void *longer(void *list, uint64_t from, uint64_t to, size_t size) {
    char *grown = realloc(list, to * size);
    if (grown) memset(grown + from * size, 0, (to - from) * size);
    return grown;
}

/* 580.159.04 maps beyond the end of a reservation. */
static void reserve_more(abi_devptr pointer, uint64_t bytes) {
    struct sim_region *region = sim_region_at(pointer);
    if (!region || region->kind != SIM_RESERVED) return;
    uint64_t before = region->pages, pages = (pointer - sim_region_address(region) + bytes + SIM_PAGE - 1) / SIM_PAGE;
    if (pages <= before) return;
    void *mapped = longer(region->mapped, before, pages, sizeof *region->mapped);
    if (mapped) region->mapped = mapped;
    void *starts = longer(region->starts, before, pages, sizeof *region->starts);
    if (starts) region->starts = starts;
    void *access = longer(region->access, before, pages, sizeof *region->access);
    if (access) region->access = access;
    if (mapped && starts && access) sim_region_extend(region, pages);
}

SIM_EXPORT abi_result cuMemMap(abi_devptr pointer, size_t bytes, size_t offset, abi_vmm_handle handle,
                               unsigned long long flags) {
    SIM_ENTER("cuMemMap");
    int result = ABI_ERROR_INVALID_VALUE;
    uint64_t first;
    pthread_mutex_lock(&sim.lock);
    struct sim_physical *physical = sim_physical_of(handle);
    if (physical && bytes <= physical->bytes) reserve_more(pointer, bytes);
    struct sim_region *region = reserved_range(pointer, bytes, &first);
    /* 580.159.04 has a result of its own for what does not lie in the memory, or on its granules. */
    if (physical &&
        ((pointer | bytes | offset) % SIM_PAGE || offset > physical->bytes || bytes > physical->bytes - offset))
        result = ABI_ERROR_NOT_SUPPORTED;
    else if (physical && region && !flags) {
        bool empty = true;
        for (uint64_t i = 0; i < bytes / SIM_PAGE; i++) empty = empty && !region->mapped[first + i];
        if (empty && mmap((void *)pointer, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                          physical->memfd, (off_t)offset) != MAP_FAILED) {
            for (uint64_t i = 0; i < bytes / SIM_PAGE; i++) {
                region->mapped[first + i] = physical;
                region->starts[first + i] = i == 0;
                region->access[first + i] = ABI_ACCESS_NONE;
            }
            physical->maps += (unsigned)(bytes / SIM_PAGE);
            region->device = physical->device;
            result = ABI_SUCCESS;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

static void unmap_pages(struct sim_region *region, uint64_t first, uint64_t count) {
    sim_arena_forget(region->page + first, count);
    for (uint64_t i = first; i < first + count; i++) {
        struct sim_physical *physical = region->mapped[i];
        if (!physical) continue;
        region->mapped[i] = NULL;
        physical->maps--;
        sim_physical_end_if_unused(physical);
    }
}

SIM_EXPORT abi_result cuMemUnmap(abi_devptr pointer, size_t bytes) {
    SIM_ENTER("cuMemUnmap");
    uint64_t first;
    int result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    struct sim_region *region = reserved_range(pointer, bytes, &first);
    if (region) { /* not part of a mapping; 580.159.04 takes no offence at gaps, nor at a range that is nothing else */
        uint64_t end = first + bytes / SIM_PAGE;
        if ((!region->mapped[first] || region->starts[first]) &&
            (end == region->pages || !region->mapped[end] || region->starts[end])) {
            unmap_pages(region, first, end - first);
            result = ABI_SUCCESS;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

/* Under sim.lock. A host node has access to memory of a host node only. Which device has it is not kept apart: no two
 * simulated devices reach each other's memory. */
static int check_access(const abi_access_desc *desc, const struct sim_region *region) {
    int device = sim_device_of_location(&desc->location);
    if (device == SIM_NO_DEVICE) return ABI_ERROR_INVALID_DEVICE;
    bool node = desc->location.type == ABI_LOCATION_HOST_NUMA;
    if (device == SIM_UNKNOWN_LOCATION || (node && region->device >= 0)) return ABI_ERROR_INVALID_VALUE;
    bool known =
        desc->flags == ABI_ACCESS_NONE || desc->flags == ABI_ACCESS_READ || desc->flags == ABI_ACCESS_READ_WRITE;
    return known ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}

SIM_EXPORT abi_result cuMemSetAccess(abi_devptr pointer, size_t bytes, const abi_access_desc *desc, size_t count) {
    SIM_ENTER("cuMemSetAccess");
    uint64_t first;
    pthread_mutex_lock(&sim.lock);
    struct sim_region *region = reserved_range(pointer, bytes, &first);
    int result = region && desc && count > 0 ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
    for (uint64_t i = 0; result == ABI_SUCCESS && i < bytes / SIM_PAGE; i++)
        if (!region->mapped[first + i]) result = ABI_ERROR_INVALID_VALUE;
    for (size_t i = 0; result == ABI_SUCCESS && i < count; i++) result = check_access(&desc[i], region);
    for (size_t i = 0; result == ABI_SUCCESS && i < count; i++)
        if (sim_device_of_location(&desc[i].location) != SIM_HOST)
            memset(region->access + first, desc[i].flags, bytes / SIM_PAGE);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuMemGetAccess(unsigned long long *flags, const abi_location *location, abi_devptr pointer) {
    SIM_ENTER("cuMemGetAccess");
    int device = location ? sim_device_of_location(location) : SIM_UNKNOWN_LOCATION;
    if (!flags || device == SIM_UNKNOWN_LOCATION) return ABI_ERROR_INVALID_VALUE;
    if (device == SIM_NO_DEVICE) return ABI_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim.lock);
    const struct sim_region *region = sim_region_at(pointer);
    uint64_t page = region ? (pointer - sim_region_address(region)) / SIM_PAGE : 0;
    if (region) *flags = region->access ? region->access[page] : ABI_ACCESS_READ_WRITE;
    pthread_mutex_unlock(&sim.lock);
    return region ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}

SIM_EXPORT abi_result cuMemRetainAllocationHandle(abi_vmm_handle *handle, void *address) {
    SIM_ENTER("cuMemRetainAllocationHandle");
    int result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    struct sim_region *region = sim_region_at((uintptr_t)address);
    if (handle && region && region->kind == SIM_RESERVED) {
        struct sim_physical *physical = region->mapped[((uintptr_t)address - sim_region_address(region)) / SIM_PAGE];
        if (physical) {
            physical->handles++;
            *handle = (uintptr_t)physical;
            result = ABI_SUCCESS;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuMemGetAllocationPropertiesFromHandle(abi_vmm_prop *prop, abi_vmm_handle handle) {
    SIM_ENTER("cuMemGetAllocationPropertiesFromHandle");
    pthread_mutex_lock(&sim.lock);
    struct sim_physical *physical = sim_physical_of(handle);
    if (physical && prop) *prop = physical->prop;
    pthread_mutex_unlock(&sim.lock);
    return physical && prop ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}

/* A new open file each time, as with the real driver. */
static int export_file(const struct sim_physical *physical, int *out) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", physical->memfd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return ABI_ERROR_INVALID_VALUE;
    *out = fd;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuMemExportToShareableHandle(void *out, abi_vmm_handle handle, int type,
                                                   unsigned long long flags) {
    SIM_ENTER("cuMemExportToShareableHandle");
    if (type != ABI_HANDLE_POSIX_FD && type != ABI_HANDLE_FABRIC) return ABI_ERROR_NOT_SUPPORTED;
    if (!out || flags) return ABI_ERROR_INVALID_VALUE;
    int result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    struct sim_physical *physical = sim_physical_of(handle);
    if (physical && (physical->prop.requested_handle_types & type))
        result = type == ABI_HANDLE_FABRIC ? sim_fabric_export(physical, out) : export_file(physical, out);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

static int import_file(int fd, struct sim_reply *reply, int *memfd) {
    struct sim_request request = {.op = SIM_IMPORT};
    *memfd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return *memfd >= 0 ? sim_request(&request, *memfd, reply, NULL) : ABI_ERROR_INVALID_VALUE;
}

SIM_EXPORT abi_result cuMemImportFromShareableHandle(abi_vmm_handle *handle, void *os_handle, int type) {
    SIM_ENTER("cuMemImportFromShareableHandle");
    if (type != ABI_HANDLE_POSIX_FD && type != ABI_HANDLE_FABRIC) return ABI_ERROR_NOT_SUPPORTED;
    struct sim_reply reply;
    struct sim_physical *physical = handle ? calloc(1, sizeof *physical) : NULL;
    int memfd = -1, device = -1, result = ABI_ERROR_INVALID_VALUE;
    if (physical)
        result = type == ABI_HANDLE_FABRIC ? sim_fabric_import(os_handle, &reply, &memfd)
                                           : import_file((int)(intptr_t)os_handle, &reply, &memfd);
    if (result != ABI_SUCCESS) {
        if (memfd >= 0) close(memfd);
        free(physical);
        return result;
    }
    for (int i = 0; i < sim.device_count; i++) {
        if (sim.gpu_of[i] == reply.arg[2]) device = i;
    }
    *physical = (struct sim_physical){.block = reply.arg[0],
                                      .bytes = reply.arg[1],
                                      .memfd = memfd,
                                      .device = device,
                                      .handles = 1,
                                      .shared = type == ABI_HANDLE_FABRIC};
    physical->prop = (abi_vmm_prop){
        .type = ABI_ALLOCATION_PINNED, .requested_handle_types = type, .location = {ABI_LOCATION_DEVICE, device}};
    pthread_mutex_lock(&sim.lock);
    physical->next = sim.physicals;
    sim.physicals = physical;
    pthread_mutex_unlock(&sim.lock);
    *handle = (uintptr_t)physical;
    return ABI_SUCCESS;
}

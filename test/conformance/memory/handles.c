/* Virtual memory: references of handles, descriptors and imports. */
#define SUBJECT "handles"
#include "../memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static CUmemAllocationProp props_of(int type, int id, int handles) {
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = handles, .location = {.type = type, .id = id}};
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, CUmemAllocationProp prop) {
    return cuMemCreate(handle, size, &prop, 0);
}

static CUmemGenericAllocationHandle made(size_t size, int handles) {
    CUmemGenericAllocationHandle handle = 0;
    create(&handle, size, props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, handles));
    return handle;
}

static CUdeviceptr reserved(size_t size) {
    CUdeviceptr p = 0;
    cuMemAddressReserve(&p, size, 0, 0, 0);
    return p;
}

static CUresult allow(CUdeviceptr p, size_t size, int flags) {
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, .flags = flags};
    return cuMemSetAccess(p, size, &desc, 1);
}

static size_t free_memory(void) {
    size_t free_bytes = 0, total;
    return cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS ? free_bytes : 0;
}

static CUdeviceptr usable(size_t size, CUmemGenericAllocationHandle *handle) {
    CUdeviceptr p = reserved(size);
    *handle = made(size, 0);
    if (cuMemMap(p, size, 0, *handle, 0) || allow(p, size, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) return 0;
    return p;
}

/* The properties of a handle are those it was made with. */
RULE(properties_reported, .source = DRIVER_API "Virtual Memory Management, cuMemGetAllocationPropertiesFromHandle",
     .calls = "cuMemGetAllocationPropertiesFromHandle") {
    primary_context();
    CUmemAllocationProp got;
    memset(&got, 0xee, sizeof got);
    OK(cuMemGetAllocationPropertiesFromHandle(&got, made(2 * MIB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
    TRUE(got.type == CU_MEM_ALLOCATION_TYPE_PINNED && got.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         got.location.id == 0);
    TRUE(got.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

/* Any address of a mapping leads to the handle it was mapped with. */
RULE(retain_same_handle, .source = DRIVER_API "Virtual Memory Management, cuMemRetainAllocationHandle",
     .calls = "cuMemRetainAllocationHandle") {
    primary_context();
    CUmemGenericAllocationHandle h, found = 0;
    CUdeviceptr p = usable(4 * MIB, &h);
    TRUE(p);
    OK(cuMemRetainAllocationHandle(&found, (void *)(uintptr_t)(p + 3 * MIB)));
    TRUE(found == h);
}

/* Each retain needs a release of its own before memory is free. */
RULE(retain_is_a_reference, .source = DRIVER_API "Virtual Memory Management, cuMemRetainAllocationHandle",
     .calls = "cuMemRetainAllocationHandle cuMemUnmap cuMemRelease") {
    primary_context();
    CUmemGenericAllocationHandle h, found = 0;
    CUdeviceptr p = usable(64 * MIB, &h);
    TRUE(p);
    size_t held = free_memory();
    OK(cuMemRetainAllocationHandle(&found, (void *)(uintptr_t)p));
    OK(cuMemUnmap(p, 64 * MIB));
    OK(cuMemRelease(h));
    TRUE(free_memory() < held + 32 * MIB);
    OK(cuMemRelease(h));
    TRUE(free_memory() >= held + 64 * MIB);
}

/* An address that is not mapped has no handle. */
RULE(retain_not_mapped, .source = DRIVER_API "Virtual Memory Management, cuMemRetainAllocationHandle",
     .calls = "cuMemRetainAllocationHandle") {
    primary_context();
    CUmemGenericAllocationHandle found;
    FAILS(cuMemRetainAllocationHandle(&found, (void *)(uintptr_t)reserved(2 * MIB)));
}

/* Memory of cuMemAlloc has no handle. */
RULE(retain_linear, .source = DRIVER_API "Virtual Memory Management, cuMemRetainAllocationHandle",
     .calls = "cuMemAlloc_v2 cuMemRetainAllocationHandle") {
    primary_context();
    CUmemGenericAllocationHandle found;
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 2 * MIB));
    FAILS(cuMemRetainAllocationHandle(&found, (void *)(uintptr_t)p));
}

/* Memory made for descriptors is exported, and imported as the same memory. */
RULE(export_descriptor, .source = DRIVER_API "Virtual Memory Management, cuMemExportToShareableHandle",
     .calls = "cuMemExportToShareableHandle cuMemImportFromShareableHandle cuMemMap cuMemsetD8_v2 "
              "cuMemcpyDtoH_v2") {
    primary_context();
    CUmemGenericAllocationHandle h = made(2 * MIB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), other = 0;
    CUdeviceptr p = reserved(2 * MIB), q = reserved(2 * MIB);
    int fd = -1;
    unsigned char back = 0;
    OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    TRUE(fd >= 0 && fcntl(fd, F_GETFD) >= 0);
    OK(cuMemImportFromShareableHandle(&other, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(cuMemMap(p, 2 * MIB, 0, h, 0));
    OK(cuMemMap(q, 2 * MIB, 0, other, 0));
    OK(allow(p, 2 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(allow(q, 2 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemsetD8_v2(p, 21, 2 * MIB));
    OK(cuMemcpyDtoH_v2(&back, q + 3, 1));
    TRUE(back == 21);
}

/* Memory that was not made for descriptors is not exported. */
RULE(export_not_asked_for, .source = DRIVER_API "Virtual Memory Management, cuMemExportToShareableHandle",
     .calls = "cuMemExportToShareableHandle") {
    primary_context();
    int fd = -1;
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemExportToShareableHandle(&fd, made(2 * MIB, 0), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

/* Flags are for the future and must be 0. */
RULE(export_flags, .source = DRIVER_API "Virtual Memory Management, cuMemExportToShareableHandle",
     .calls = "cuMemExportToShareableHandle") {
    primary_context();
    int fd = -1;
    CUmemGenericAllocationHandle h = made(2 * MIB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1));
}

/* Memory stays while a descriptor of it is open. */
RULE(export_keeps_memory, .source = DRIVER_API "Virtual Memory Management, cuMemRelease, cuMemExportToShareableHandle",
     .calls = "cuMemExportToShareableHandle cuMemRelease") {
    primary_context();
    CUmemGenericAllocationHandle h = made(64 * MIB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    int fd = -1;
    size_t held = free_memory();
    OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(h));
    TRUE(free_memory() < held + 32 * MIB);
    TRUE(close(fd) == 0);
    TRUE(free_memory() >= held + 64 * MIB);
}

/* Each import needs a release of its own before memory is free. */
RULE(import_is_a_reference, .source = DRIVER_API "Virtual Memory Management, cuMemRelease",
     .calls = "cuMemExportToShareableHandle cuMemImportFromShareableHandle cuMemRelease") {
    primary_context();
    CUmemGenericAllocationHandle h = made(64 * MIB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), other = 0;
    int fd = -1;
    size_t held = free_memory();
    OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&other, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    OK(cuMemRelease(h));
    TRUE(free_memory() < held + 32 * MIB);
    OK(cuMemRelease(other));
    TRUE(free_memory() >= held + 64 * MIB);
}

/* A descriptor that is no memory is not imported. */
RULE(import_bad_descriptor, .source = DRIVER_API "Virtual Memory Management, cuMemImportFromShareableHandle",
     .calls = "cuMemImportFromShareableHandle") {
    primary_context();
    CUmemGenericAllocationHandle h;
    int null = open("/dev/null", O_RDWR);
    FAILS(cuMemImportFromShareableHandle(&h, (void *)(uintptr_t)null, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    FAILS(cuMemImportFromShareableHandle(&h, (void *)(uintptr_t)999, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

/* A type of handle that does not exist is refused. */
RULE(import_unknown_type, .source = DRIVER_API "Virtual Memory Management, cuMemImportFromShareableHandle",
     .calls = "cuMemImportFromShareableHandle") {
    primary_context();
    CUmemGenericAllocationHandle h;
    FAILS(cuMemImportFromShareableHandle(&h, (void *)(uintptr_t)0, 0x1000));
}

/* The range of mapped memory is the mapping, not the reservation. */
RULE(address_range_of_mapping,
     .source = DRIVER_API "Virtual Memory Management, cuMemMap; Memory Management, cuMemGetAddressRange",
     .calls = "cuMemMap cuMemGetAddressRange_v2") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUdeviceptr p = reserved(8 * MIB), base = 0;
    size_t size = 0;
    h = made(2 * MIB, 0);
    OK(cuMemMap(p + 2 * MIB, 2 * MIB, 0, h, 0));
    OK(allow(p + 2 * MIB, 2 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemGetAddressRange_v2(&base, &size, p + 3 * MIB));
    TRUE(base == p + 2 * MIB && size == 2 * MIB);
}

/* Handle 0 is no handle. */
RULE(release_null, .source = DRIVER_API "Virtual Memory Management, cuMemRelease", .calls = "cuMemRelease") {
    primary_context();
    FAILS(cuMemRelease(0));
}

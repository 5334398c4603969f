/* Virtual memory: mappings, access, references and descriptors. */
#define SUBJECT "mappings"
#include "../memory.h"

#include <fcntl.h>
#include <sys/mman.h>

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

/* Mapped memory with access is read and written. */
RULE(map_usable, .source = DRIVER_API "Virtual Memory Management, cuMemMap, cuMemSetAccess",
     .calls = "cuMemsetD8_v2 cuMemcpyDtoH_v2") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUdeviceptr p = usable(4 * MIB, &h);
    unsigned char back = 0;
    TRUE(p);
    OK(cuMemsetD8_v2(p, 77, 4 * MIB));
    OK(cuMemcpyDtoH_v2(&back, p + 4 * MIB - 1, 1));
    TRUE(back == 77);
}

/* Mapping alone does not make an address accessible. */
RULE(map_without_access, .source = DRIVER_API "Virtual Memory Management, cuMemMap",
     .calls = "cuMemMap cuMemsetD8_v2") {
    primary_context();
    CUdeviceptr p = reserved(4 * MIB);
    OK(cuMemMap(p, 4 * MIB, 0, made(4 * MIB, 0), 0));
    FAILS(cuMemsetD8_v2(p, 1, 4096));
}

/* An address that is mapped cannot be mapped again. */
RULE(map_twice, .source = DRIVER_API "Virtual Memory Management, cuMemMap", .calls = "cuMemMap") {
    primary_context();
    CUdeviceptr p = reserved(4 * MIB);
    OK(cuMemMap(p, 4 * MIB, 0, made(4 * MIB, 0), 0));
    FAILS(cuMemMap(p, 4 * MIB, 0, made(4 * MIB, 0), 0));
    FAILS(cuMemMap(p + 2 * MIB, 2 * MIB, 0, made(4 * MIB, 0), 0));
}

/* Only a reserved range can be mapped. */
RULE(map_not_reserved, .source = DRIVER_API "Virtual Memory Management, cuMemMap",
     .calls = "cuMemAddressFree cuMemMap") {
    primary_context();
    CUdeviceptr p = reserved(4 * MIB);
    OK(cuMemAddressFree(p, 4 * MIB));
    FAILS(cuMemMap(p, 4 * MIB, 0, made(4 * MIB, 0), 0));
}

/* Memory of cuMemAlloc is no range to map to. */
RULE(map_over_linear, .source = DRIVER_API "Virtual Memory Management, cuMemMap", .calls = "cuMemAlloc_v2 cuMemMap") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    FAILS(cuMemMap(p, 4 * MIB, 0, made(4 * MIB, 0), 0));
}

/* A mapping must lie within its reservation. */
RULE(map_beyond_reservation, .source = DRIVER_API "Virtual Memory Management, cuMemMap", .calls = "cuMemMap") {
    primary_context();
    CUdeviceptr p = reserved(4 * MIB);
    FAILS(cuMemMap(p + 2 * MIB, 4 * MIB, 0, made(4 * MIB, 0), 0));
}

/* A mapping must lie within its memory. */
RULE(map_beyond_memory, .source = DRIVER_API "Virtual Memory Management, cuMemMap", .calls = "cuMemMap") {
    primary_context();
    CUdeviceptr p = reserved(8 * MIB);
    FAILS(cuMemMap(p, 8 * MIB, 0, made(4 * MIB, 0), 0));
}

/* An offset into the memory must be within it. */
RULE(map_offset, .source = DRIVER_API "Virtual Memory Management, cuMemMap", .calls = "cuMemMap") {
    primary_context();
    CUdeviceptr p = reserved(8 * MIB);
    FAILS(cuMemMap(p, 4 * MIB, 4 * MIB, made(4 * MIB, 0), 0));
}

/* Address, size and offset must be multiples of the minimum granularity. */
RULE(map_alignment, .source = DRIVER_API "Virtual Memory Management, cuMemMap", .calls = "cuMemMap") {
    primary_context();
    CUdeviceptr p = reserved(8 * MIB);
    CUmemGenericAllocationHandle h = made(4 * MIB, 0);
    FAILS(cuMemMap(p + 4096, 2 * MIB, 0, h, 0));
    FAILS(cuMemMap(p, 2 * MIB + 4096, 0, h, 0));
    FAILS(cuMemMap(p, 2 * MIB, 4096, h, 0));
}

/* Flags are for the future and must be 0. */
RULE(map_flags, .source = DRIVER_API "Virtual Memory Management, cuMemMap", .calls = "cuMemMap") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(reserved(4 * MIB), 4 * MIB, 0, made(4 * MIB, 0), 1));
}

/* Memory that is mapped at two addresses is the same memory. */
RULE(map_same_memory_twice, .source = DRIVER_API "Virtual Memory Management, cuMemMap",
     .calls = "cuMemMap cuMemsetD8_v2 cuMemcpyDtoH_v2") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUdeviceptr p = usable(2 * MIB, &h), q = reserved(2 * MIB);
    unsigned char back = 0;
    TRUE(p);
    OK(cuMemMap(q, 2 * MIB, 0, h, 0));
    OK(allow(q, 2 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemsetD8_v2(p, 31, 2 * MIB));
    OK(cuMemcpyDtoH_v2(&back, q + 999, 1));
    TRUE(back == 31);
}

/* A null handle is an invalid value. */
RULE(map_null_handle, .source = DRIVER_API "Virtual Memory Management, cuMemMap", .calls = "cuMemMap") {
    primary_context();
    ONE_OF(cuMemMap(reserved(4 * MIB), 4 * MIB, 0, 0, 0), CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE);
}

/* A handle may be released while mapped: the memory stays until it is unmapped. */
RULE(release_while_mapped, .source = DRIVER_API "Virtual Memory Management, cuMemRelease",
     .calls = "cuMemRelease cuMemsetD8_v2 cuMemcpyDtoH_v2 cuMemUnmap") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUdeviceptr p = usable(64 * MIB, &h);
    unsigned char back = 0;
    TRUE(p);
    size_t held = free_memory();
    OK(cuMemRelease(h));
    TRUE(free_memory() < held + 32 * MIB);
    OK(cuMemsetD8_v2(p, 8, 64 * MIB));
    OK(cuMemcpyDtoH_v2(&back, p, 1));
    TRUE(back == 8);
    OK(cuMemUnmap(p, 64 * MIB));
    TRUE(free_memory() >= held + 64 * MIB);
}

/* Memory stays while its handle is not released, with its contents. */
RULE(unmap_keeps_memory, .source = DRIVER_API "Virtual Memory Management, cuMemUnmap",
     .calls = "cuMemsetD8_v2 cuMemUnmap cuMemMap cuMemcpyDtoH_v2") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUdeviceptr p = usable(2 * MIB, &h);
    unsigned char back = 0;
    TRUE(p);
    OK(cuMemsetD8_v2(p, 99, 2 * MIB));
    OK(cuMemUnmap(p, 2 * MIB));
    OK(cuMemMap(p, 2 * MIB, 0, h, 0));
    OK(allow(p, 2 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemcpyDtoH_v2(&back, p + 5, 1));
    TRUE(back == 99);
}

/* A part of a mapping cannot be unmapped. */
RULE(unmap_part, .source = DRIVER_API "Virtual Memory Management, cuMemUnmap", .calls = "cuMemUnmap") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUdeviceptr p = usable(8 * MIB, &h);
    TRUE(p);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(p, 2 * MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(p + 2 * MIB, 6 * MIB));
    OK(cuMemUnmap(p, 8 * MIB));
}

/* A range that is not mapped is an invalid value. */
RULE(unmap_not_mapped, .source = DRIVER_API "Virtual Memory Management, cuMemUnmap", .calls = "cuMemUnmap") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(reserved(4 * MIB), 4 * MIB));
}

/* A range with a gap is not "the entire contiguous address range that was mapped to". */
RULE(unmap_over_a_gap, .source = DRIVER_API "Virtual Memory Management, cuMemUnmap", .calls = "cuMemMap cuMemUnmap") {
    primary_context();
    CUdeviceptr p = reserved(8 * MIB);
    OK(cuMemMap(p + 4 * MIB, 4 * MIB, 0, made(4 * MIB, 0), 0));
    FAILS(cuMemUnmap(p, 8 * MIB));
}

/* A new mapping starts without access. */
RULE(unmap_loses_access, .source = DRIVER_API "Virtual Memory Management, cuMemUnmap",
     .calls = "cuMemUnmap cuMemsetD8_v2 cuMemMap") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUdeviceptr p = usable(2 * MIB, &h);
    TRUE(p);
    OK(cuMemUnmap(p, 2 * MIB));
    FAILS(cuMemsetD8_v2(p, 1, 4096));
    OK(cuMemMap(p, 2 * MIB, 0, h, 0));
    FAILS(cuMemsetD8_v2(p, 1, 4096));
}

/* Access is given to mapped ranges only. */
RULE(access_of_unmapped, .source = DRIVER_API "Virtual Memory Management, cuMemSetAccess", .calls = "cuInit") {
    primary_context();
    FAILS(allow(reserved(4 * MIB), 4 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

/* The whole range must be mapped. */
RULE(access_beyond_mapping, .source = DRIVER_API "Virtual Memory Management, cuMemSetAccess", .calls = "cuMemMap") {
    primary_context();
    CUdeviceptr p = reserved(8 * MIB);
    OK(cuMemMap(p, 2 * MIB, 0, made(2 * MIB, 0), 0));
    FAILS(allow(p, 8 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

/* A range may hold several mappings side by side. */
RULE(access_of_several, .source = DRIVER_API "Virtual Memory Management, cuMemSetAccess",
     .calls = "cuMemMap cuMemsetD8_v2") {
    primary_context();
    CUdeviceptr p = reserved(4 * MIB);
    OK(cuMemMap(p, 2 * MIB, 0, made(2 * MIB, 0), 0));
    OK(cuMemMap(p + 2 * MIB, 2 * MIB, 0, made(2 * MIB, 0), 0));
    OK(allow(p, 4 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemsetD8_v2(p, 1, 4 * MIB));
}

/* The access that was set is reported, and none before. */
RULE(access_reported, .source = DRIVER_API "Virtual Memory Management, cuMemGetAccess",
     .calls = "cuMemMap cuMemGetAccess") {
    primary_context();
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUdeviceptr p = reserved(2 * MIB);
    unsigned long long flags = 9;
    OK(cuMemMap(p, 2 * MIB, 0, made(2 * MIB, 0), 0));
    OK(cuMemGetAccess(&flags, &device, p));
    TRUE(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    OK(allow(p, 2 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemGetAccess(&flags, &device, p));
    TRUE(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(allow(p, 2 * MIB, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    OK(cuMemGetAccess(&flags, &device, p));
    TRUE(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

/* A device that does not exist is given no access. */
RULE(access_unknown_device, .source = DRIVER_API "Virtual Memory Management, cuMemSetAccess",
     .calls = "cuMemSetAccess") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUdeviceptr p = usable(2 * MIB, &h);
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 100},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    TRUE(p);
    ONE_OF(cuMemSetAccess(p, 2 * MIB, &desc, 1), CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE);
}

/* A host node is given no access to memory of a device. */
RULE(access_host_node, .source = DRIVER_API "Virtual Memory Management, cuMemSetAccess", .calls = "cuMemSetAccess") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUdeviceptr p = usable(2 * MIB, &h);
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    TRUE(p);
    FAILS(cuMemSetAccess(p, 2 * MIB, &desc, 1));
}

/* A null list, and an empty one, are invalid values. */
RULE(access_null, .source = DRIVER_API "Virtual Memory Management, cuMemSetAccess", .calls = "cuMemSetAccess") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUdeviceptr p = usable(2 * MIB, &h);
    TRUE(p);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(p, 2 * MIB, NULL, 1));
}

/* Virtual memory: reserved ranges of addresses and memory without an address. */
#define SUBJECT "reservations"
#include "../memory.h"

#include <fcntl.h>
#include <sys/mman.h>

static CUmemAllocationProp props_of(int type, int id, int handles) {
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = handles, .location = {.type = type, .id = id}};
}

static size_t granule(void) {
    CUmemAllocationProp prop = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, 0);
    size_t size = 0;
    cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    return size;
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

/* The recommended granularity is a multiple of the minimum. */
RULE(granularity_order, .source = DRIVER_API "Virtual Memory Management, cuMemGetAllocationGranularity",
     .calls = "cuMemGetAllocationGranularity") {
    primary_context();
    CUmemAllocationProp prop = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, 0);
    size_t least = 0, good = 0;
    OK(cuMemGetAllocationGranularity(&least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemGetAllocationGranularity(&good, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    TRUE(least > 0 && good >= least && good % least == 0);
}

/* Null arguments are invalid values. */
RULE(granularity_null, .source = DRIVER_API "Virtual Memory Management, cuMemGetAllocationGranularity",
     .calls = "cuMemGetAllocationGranularity") {
    primary_context();
    CUmemAllocationProp prop = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, 0);
    size_t size;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemGetAllocationGranularity(NULL, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemGetAllocationGranularity(&size, NULL, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

/* An option that does not exist is an invalid value. */
RULE(granularity_unknown_option, .source = DRIVER_API "Virtual Memory Management, cuMemGetAllocationGranularity",
     .calls = "cuMemGetAllocationGranularity") {
    primary_context();
    CUmemAllocationProp prop = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, 0);
    size_t size;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemGetAllocationGranularity(&size, &prop, 7));
}

/* A range is reserved at an address of the driver's choice. */
RULE(reserve_default, .source = DRIVER_API "Virtual Memory Management, cuMemAddressReserve",
     .calls = "cuMemAddressReserve cuMemAddressFree") {
    primary_context();
    CUdeviceptr p = 0;
    OK(cuMemAddressReserve(&p, 64 * MIB, 0, 0, 0));
    TRUE(p && p % granule() == 0);
    OK(cuMemAddressFree(p, 64 * MIB));
}

/* The size must be a multiple of the host's page size. */
RULE(reserve_page_multiple, .source = DRIVER_API "Virtual Memory Management, cuMemAddressReserve",
     .calls = "cuMemAddressReserve") {
    primary_context();
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&p, 2 * MIB + 100, 0, 0, 0));
}

/* A range of no bytes is an invalid value. */
RULE(reserve_zero, .source = DRIVER_API "Virtual Memory Management, cuMemAddressReserve",
     .calls = "cuMemAddressReserve", .recalled = true) {
    primary_context();
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&p, 0, 0, 0, 0));
}

/* The alignment that was asked for is kept. */
RULE(reserve_alignment, .source = DRIVER_API "Virtual Memory Management, cuMemAddressReserve",
     .calls = "cuMemAddressReserve") {
    primary_context();
    for (size_t alignment = 2 * MIB; alignment <= 64 * MIB; alignment *= 2) {
        CUdeviceptr p = 0;
        OK(cuMemAddressReserve(&p, 4 * MIB, alignment, 0, 0));
        TRUE(p % alignment == 0);
    }
}

/* An alignment that is no power of two is an invalid value. */
RULE(reserve_odd_alignment, .source = DRIVER_API "Virtual Memory Management, cuMemAddressReserve",
     .calls = "cuMemAddressReserve") {
    primary_context();
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&p, 4 * MIB, 3 * MIB, 0, 0));
}

/* An address is a hint: where it is taken, another one is given. */
RULE(reserve_hint, .source = DRIVER_API "Virtual Memory Management, cuMemAddressReserve",
     .calls = "cuMemAddressReserve") {
    primary_context();
    CUdeviceptr p = reserved(4 * MIB), q = 0;
    OK(cuMemAddressReserve(&q, 4 * MIB, 0, p, 0));
    TRUE(q && q != p);
}

/* An address hint must be a multiple of the page size. */
RULE(reserve_hint_free, .source = DRIVER_API "Virtual Memory Management, cuMemAddressReserve",
     .calls = "cuMemAddressReserve") {
    primary_context();
    CUdeviceptr q = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&q, 4 * MIB, 0, ((CUdeviceptr)1 << 40) + 100, 0));
}

/* A null place for the address is an invalid value. */
RULE(reserve_null, .source = DRIVER_API "Virtual Memory Management, cuMemAddressReserve",
     .calls = "cuMemAddressReserve") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(NULL, 4 * MIB, 0, 0, 0));
}

/* Flags are unused and must be 0. */
RULE(reserve_flags, .source = DRIVER_API "Virtual Memory Management, cuMemAddressReserve",
     .calls = "cuMemAddressReserve") {
    primary_context();
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&p, 4 * MIB, 0, 0, 1));
}

/* A reservation takes no memory, even above what the device has. */
RULE(reserve_takes_no_memory, .source = DRIVER_API "Virtual Memory Management, cuMemAddressReserve",
     .calls = "cuMemAddressReserve") {
    primary_context();
    size_t before = free_memory();
    CUdeviceptr p;
    OK(cuMemAddressReserve(&p, (size_t)1 << 38, 0, 0, 0));
    TRUE(free_memory() + 4 * MIB >= before);
}

/* The size must be the one that was reserved. */
RULE(address_free_size, .source = DRIVER_API "Virtual Memory Management, cuMemAddressFree",
     .calls = "cuMemAddressFree") {
    primary_context();
    CUdeviceptr p = reserved(8 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(p, 4 * MIB));
    OK(cuMemAddressFree(p, 8 * MIB));
}

/* The address must be the one that was returned. */
RULE(address_free_inside, .source = DRIVER_API "Virtual Memory Management, cuMemAddressFree",
     .calls = "cuMemAddressFree") {
    primary_context();
    CUdeviceptr p = reserved(8 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(p + 4 * MIB, 4 * MIB));
}

/* A range is given back once. */
RULE(address_free_twice, .source = DRIVER_API "Virtual Memory Management, cuMemAddressFree",
     .calls = "cuMemAddressFree") {
    primary_context();
    CUdeviceptr p = reserved(8 * MIB);
    OK(cuMemAddressFree(p, 8 * MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(p, 8 * MIB));
}

/* Memory of cuMemAlloc is no reservation. */
RULE(address_free_linear, .source = DRIVER_API "Virtual Memory Management, cuMemAddressFree",
     .calls = "cuMemAlloc_v2 cuMemAddressFree") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(p, 4 * MIB));
}

/* The size must be a multiple of the minimum granularity. */
RULE(create_granularity, .source = DRIVER_API "Virtual Memory Management, cuMemCreate", .calls = "cuInit") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&h, granule() / 2, prop));
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&h, granule() + 4096, prop));
    OK(create(&h, granule() * 3, prop));
}

/* An allocation of no bytes is an invalid value. */
RULE(create_zero, .source = DRIVER_API "Virtual Memory Management, cuMemCreate", .calls = "cuInit", .recalled = true) {
    primary_context();
    CUmemGenericAllocationHandle h;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&h, 0, props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, 0)));
}

/* Null arguments are invalid values. */
RULE(create_null, .source = DRIVER_API "Virtual Memory Management, cuMemCreate", .calls = "cuMemCreate") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(NULL, 2 * MIB, &prop, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, 2 * MIB, NULL, 0));
}

/* Flags are for the future and must be 0. */
RULE(create_flags, .source = DRIVER_API "Virtual Memory Management, cuMemCreate", .calls = "cuMemCreate") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, 2 * MIB, &prop, 1));
}

/* The type of allocation must be one that exists. */
RULE(create_type, .source = DRIVER_API "Virtual Memory Management, cuMemCreate", .calls = "cuInit") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, 0);
    prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&h, 2 * MIB, prop));
    prop.type = 77;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&h, 2 * MIB, prop));
}

/* A device that does not exist is refused as such, not as memory that is full. */
RULE(create_no_device, .source = DRIVER_API "Virtual Memory Management, cuMemCreate", .calls = "cuInit") {
    primary_context();
    CUmemGenericAllocationHandle h;
    ONE_OF(create(&h, 2 * MIB, props_of(CU_MEM_LOCATION_TYPE_DEVICE, 100, 0)), CUDA_ERROR_INVALID_DEVICE,
           CUDA_ERROR_INVALID_VALUE);
    ONE_OF(create(&h, 2 * MIB, props_of(CU_MEM_LOCATION_TYPE_DEVICE, -1, 0)), CUDA_ERROR_INVALID_DEVICE,
           CUDA_ERROR_INVALID_VALUE);
}

/* A type of location that does not exist is an invalid value. */
RULE(create_unknown_location, .source = DRIVER_API "Virtual Memory Management, cuMemCreate", .calls = "cuInit") {
    primary_context();
    CUmemGenericAllocationHandle h;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&h, 2 * MIB, props_of(0, 0, 0)));
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&h, 2 * MIB, props_of(88, 0, 0)));
}

/* The invisible location is an answer and not a place. */
RULE(create_invisible, .source = DRIVER_API "Data types, int", .calls = "cuInit") {
    primary_context();
    CUmemGenericAllocationHandle h;
    FAILS(create(&h, 2 * MIB, props_of(CU_MEM_LOCATION_TYPE_INVISIBLE, -2, 0)));
}

/* The node of the current thread is no place to allocate at. */
RULE(create_current_node, .source = DRIVER_API "Virtual Memory Management, cuMemCreate", .calls = "cuInit") {
    primary_context();
    CUmemGenericAllocationHandle h;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&h, 2 * MIB, props_of(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0, 0)));
}

/* Memory of the host takes nothing from the device, whatever the location's ID. */
RULE(create_host, .source = DRIVER_API "Virtual Memory Management, cuMemCreate", .calls = "cuMemRelease") {
    primary_context();
    CUmemGenericAllocationHandle h;
    size_t before = free_memory();
    OK(create(&h, 64 * MIB, props_of(CU_MEM_LOCATION_TYPE_HOST, 55, 0)));
    TRUE(free_memory() + 4 * MIB >= before);
    OK(cuMemRelease(h));
}

/* Memory of the host has no handles for other processes. */
RULE(create_host_not_shared, .source = DRIVER_API "Virtual Memory Management, cuMemCreate", .calls = "cuInit") {
    primary_context();
    CUmemGenericAllocationHandle h;
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           create(&h, 2 * MIB, props_of(CU_MEM_LOCATION_TYPE_HOST, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
}

/* Memory of a host node takes nothing from the device. */
RULE(create_host_node, .source = DRIVER_API "Virtual Memory Management, cuMemCreate", .calls = "cuInit") {
    primary_context();
    CUmemGenericAllocationHandle h;
    size_t before = free_memory();
    OK(create(&h, 64 * MIB, props_of(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, 0)));
    TRUE(free_memory() + 4 * MIB >= before);
}

/* With a single domain, memory of domain 0 is memory of the device. */
RULE(create_locality_domain, .source = DRIVER_API "Virtual Memory Management, cuMemCreate",
     .calls = "cuMemGetAllocationPropertiesFromHandle") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp got;
    NEEDS(driver_version() >= 13050, "needs CUDA 13.5");
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT) == 1,
          "the device attribute LOCALITY_DOMAIN_COUNT is not 1");
    size_t before = free_memory();
    OK(create(&h, 64 * MIB, props_of(CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, 0, 0)));
    TRUE(free_memory() + 64 * MIB <= before);
    OK(cuMemGetAllocationPropertiesFromHandle(&got, h));
    TRUE(got.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
}

/* A locality domain that the device lacks is refused. */
RULE(create_locality_domain_unknown, .source = DRIVER_API "Virtual Memory Management, cuMemCreate", .calls = "cuInit") {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = props_of(CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, 0, 0);
    prop.location.id = 200 << 8;
    FAILS(create(&h, 2 * MIB, prop));
}

/* More than the device has is out of memory. */
RULE(create_too_large, .source = DRIVER_API "Virtual Memory Management, cuMemCreate", .calls = "cuInit") {
    primary_context();
    CUmemGenericAllocationHandle h;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, create(&h, (size_t)1 << 46, props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, 0)));
}

/* Memory is taken when it is created and free when it is released. */
RULE(create_takes_memory, .source = DRIVER_API "Virtual Memory Management, cuMemCreate, cuMemRelease",
     .calls = "cuMemRelease") {
    primary_context();
    size_t before = free_memory();
    CUmemGenericAllocationHandle h = made(64 * MIB, 0);
    size_t held = free_memory();
    TRUE(held + 64 * MIB <= before);
    OK(cuMemRelease(h));
    TRUE(free_memory() >= held + 64 * MIB);
}

/* A range that is still mapped is not given back. */
RULE(address_free_mapped, .source = DRIVER_API "Virtual Memory Management, cuMemAddressFree",
     .calls = "cuMemAddressFree cuMemUnmap", .recalled = true) {
    primary_context();
    CUmemGenericAllocationHandle h;
    CUdeviceptr p = usable(2 * MIB, &h);
    TRUE(p);
    FAILS(cuMemAddressFree(p, 2 * MIB));
    OK(cuMemUnmap(p, 2 * MIB));
    OK(cuMemAddressFree(p, 2 * MIB));
}

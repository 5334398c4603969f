/* Fabric handles of memory by handle. Where the reference of the driver says nothing, cuda.core, NVIDIA's own library
 * over it, does. */
#define SUBJECT "fabric"
#include "../memory.h"

#include <string.h>

#define VMM "Virtual Memory Management, "

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, int handles) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = handles,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    return cuMemCreate(handle, size, &prop, 0);
}

/* The attribute says that the device can; an IMEX channel is a matter of the process. */
static CUmemGenericAllocationHandle made(size_t size, int handles) {
    CUmemGenericAllocationHandle handle = 0;
    primary_context();
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) == 1, "no fabric handles");
    CUresult result = create(&handle, size, handles);
    NEEDS(result != CUDA_ERROR_NOT_PERMITTED, "no IMEX channel");
    OK(result);
    return handle;
}

static CUmemFabricHandle exported(CUmemGenericAllocationHandle handle) {
    CUmemFabricHandle out;
    OK(cuMemExportToShareableHandle(&out, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    return out;
}

static CUmemGenericAllocationHandle imported(CUmemFabricHandle from) {
    CUmemGenericAllocationHandle handle = 0;
    OK(cuMemImportFromShareableHandle(&handle, &from, CU_MEM_HANDLE_TYPE_FABRIC));
    return handle;
}

static CUdeviceptr mapped(CUmemGenericAllocationHandle handle, size_t size) {
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr p = 0;
    OK(cuMemAddressReserve(&p, size, 0, 0, 0));
    OK(cuMemMap(p, size, 0, handle, 0));
    OK(cuMemSetAccess(p, size, &desc, 1));
    return p;
}

static size_t free_memory(void) {
    size_t free_bytes = 0, total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    return free_bytes;
}

#define SHARING "cuMemExportToShareableHandle cuMemImportFromShareableHandle"

/* The attribute is a truth value. */
RULE(attribute, .source = GUIDE "Virtual Memory Management, Query for Support", .calls = "cuDeviceGetAttribute") {
    start_driver();
    int supported = device_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
    TRUE(supported == 0 || supported == 1);
}

/* What is exported is 64 bytes, and is imported as the same memory. */
RULE(export_and_import, .source = DRIVER_API VMM "cuMemExportToShareableHandle, CUmemFabricHandle", .calls = SHARING) {
    struct {
        CUmemFabricHandle handle;
        unsigned char behind[64];
    } out;
    memset(&out, 0xee, sizeof out);
    CUmemGenericAllocationHandle mine = made(2 * MIB, CU_MEM_HANDLE_TYPE_FABRIC);
    OK(cuMemExportToShareableHandle(&out, mine, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    for (unsigned i = 0; i < sizeof out.behind; i++) SAME(0xee, out.behind[i]);
    CUdeviceptr p = mapped(mine, 2 * MIB), q = mapped(imported(out.handle), 2 * MIB);
    unsigned char back = 0;
    OK(cuMemsetD8_v2(p, 37, 2 * MIB));
    OK(cuMemcpyDtoH_v2(&back, q + 5, 1));
    SAME(37, back);
}

/* A handle may be used as often as one likes. */
RULE(imported_twice, .source = DRIVER_API VMM "cuMemImportFromShareableHandle", .calls = SHARING) {
    CUmemFabricHandle handle = exported(made(2 * MIB, CU_MEM_HANDLE_TYPE_FABRIC));
    OK(cuMemRelease(imported(handle)));
    OK(cuMemRelease(imported(handle)));
}

/* An import keeps the memory when its exporter has given it back. */
RULE(import_keeps_memory, .source = CUDA_CORE "VirtualMemoryFabricBufferDescriptor", .calls = SHARING) {
    CUmemGenericAllocationHandle mine = made(64 * MIB, CU_MEM_HANDLE_TYPE_FABRIC);
    CUmemGenericAllocationHandle other = imported(exported(mine));
    size_t held = free_memory();
    OK(cuMemRelease(mine));
    TRUE(free_memory() < held + 32 * MIB);
    OK(cuMemRelease(other));
    TRUE(free_memory() >= held + 64 * MIB);
}

/* A mapping of an import keeps the memory. */
RULE(mapping_keeps_memory, .source = DRIVER_API VMM "cuMemRelease", .calls = SHARING) {
    CUmemGenericAllocationHandle mine = made(64 * MIB, CU_MEM_HANDLE_TYPE_FABRIC);
    CUmemGenericAllocationHandle other = imported(exported(mine));
    CUdeviceptr p = mapped(other, 64 * MIB);
    size_t held = free_memory();
    OK(cuMemRelease(mine));
    OK(cuMemRelease(other));
    TRUE(free_memory() < held + 32 * MIB);
    OK(cuMemUnmap(p, 64 * MIB));
    TRUE(free_memory() >= held + 64 * MIB);
}

/* A handle alone keeps nothing, unlike a descriptor. */
RULE(handle_keeps_nothing, .source = CUDA_CORE "VirtualMemoryFabricBufferDescriptor", .calls = SHARING) {
    CUmemGenericAllocationHandle mine = made(64 * MIB, CU_MEM_HANDLE_TYPE_FABRIC), other;
    size_t held = free_memory();
    CUmemFabricHandle handle = exported(mine);
    OK(cuMemRelease(mine));
    TRUE(free_memory() >= held + 64 * MIB);
    FAILS(cuMemImportFromShareableHandle(&other, &handle, CU_MEM_HANDLE_TYPE_FABRIC));
}

/* A handle that is none is not imported. */
RULE(forged, .source = CUDA_CORE "VirtualMemoryFabricBufferDescriptor", .calls = SHARING) {
    CUmemFabricHandle handle = exported(made(2 * MIB, CU_MEM_HANDLE_TYPE_FABRIC));
    CUmemGenericAllocationHandle other;
    for (unsigned i = 0; i < sizeof handle.data; i++) handle.data[i] = (unsigned char)~handle.data[i];
    FAILS(cuMemImportFromShareableHandle(&other, &handle, CU_MEM_HANDLE_TYPE_FABRIC));
}

/* Memory that was not made for it has no fabric handle. */
RULE(not_asked_for, .source = DRIVER_API VMM "CUmemAllocationProp", .calls = SHARING) {
    OK(cuMemRelease(made(2 * MIB, CU_MEM_HANDLE_TYPE_FABRIC)));
    CUmemFabricHandle handle;
    FAILS(cuMemExportToShareableHandle(&handle, made(2 * MIB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                                       CU_MEM_HANDLE_TYPE_FABRIC, 0));
}

/* Flags are for the future and must be 0. */
RULE(flags, .source = DRIVER_API VMM "cuMemExportToShareableHandle", .calls = SHARING) {
    CUmemFabricHandle handle;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&handle, made(2 * MIB, CU_MEM_HANDLE_TYPE_FABRIC),
                                                                  CU_MEM_HANDLE_TYPE_FABRIC, 1));
}

/* Types of handles are bits: memory may be made for both. */
RULE(beside_a_descriptor, .source = DRIVER_API VMM "CUmemAllocationProp", .calls = SHARING) {
    int both = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC, fd = -1;
    CUmemGenericAllocationHandle mine = made(2 * MIB, both);
    CUmemAllocationProp prop;
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, mine));
    SAME(both, prop.requestedHandleTypes);
    OK(cuMemExportToShareableHandle(&fd, mine, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(imported(exported(mine))));
}

/* The part of the CUDA driver's binary interface that the rules of memory, modules and devices use beside driver.h:
 * names, values and layouts that the public headers of CUDA 13.5 fix, written for this test. */
#pragma once

#include "arrays.h"
#include "rules.h"

#define MIB ((size_t)1 << 20)

typedef struct CUextMemory_st *CUexternalMemory;
typedef struct CUextSemaphore_st *CUexternalSemaphore;
typedef unsigned long long CUtexObject;
typedef unsigned long long CUsurfObject;

enum {
    CUDA_ARRAY3D_LAYERED = 1,
    CUDA_ARRAY3D_CUBEMAP = 4,
    CUDA_ARRAY3D_TEXTURE_GATHER = 8,
    CUDA_ARRAY3D_SPARSE = 64,
    CUDA_ARRAY3D_DEFERRED_MAPPING = 128
};
enum { CU_AD_FORMAT_UNSIGNED_INT8 = 1, CU_AD_FORMAT_FLOAT = 32, CU_AD_FORMAT_NV12 = 176 };
enum {
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5,
    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
    CU_DEVICE_ATTRIBUTE_MAX_PITCH = 11,
    CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT = 14,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH = 21,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH = 22,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH = 26,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS = 29,
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE = 49,
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
    CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT = 51,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
    CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE = 108,
    CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED = 112,
    CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED = 113,
    CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED = 121,
    CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES = 119,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
    CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED = 132,
    CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT = 149
};
enum { CU_DEVICE_INVALID = -2, CU_DEVICE_CPU = -1 };
enum { CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED = 2 };
enum { CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD = 1 };
enum { CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD = 1 };
enum { CU_FUNCTION_LOADING_STATE_LOADED = 1 };
enum {
    CU_GET_PROC_ADDRESS_DEFAULT = 0,
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2
};
enum { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1 };
enum {
    CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4,
    CU_LIMIT_MAX_L2_FETCH_GRANULARITY = 5,
    CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6,
    CU_LIMIT_SHMEM_SIZE = 7,
    CU_LIMIT_CIG_ENABLED = 8
};
enum {
    CU_MEMCPY_SRC_ACCESS_ORDER_INVALID = 0,
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1,
    CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3
};
enum { CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2 };
enum { CU_MEMHOSTREGISTER_PORTABLE = 1, CU_MEMHOSTREGISTER_DEVICEMAP = 2, CU_MEMHOSTREGISTER_READ_ONLY = 8 };
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2, CU_MEMORYTYPE_ARRAY = 3, CU_MEMORYTYPE_UNIFIED = 4 };
enum {
    CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
    CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,
    CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
    CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
    CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
    CU_MEMPOOL_ATTR_ALLOCATION_TYPE = 9,
    CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES = 10,
    CU_MEMPOOL_ATTR_LOCATION_ID = 11,
    CU_MEMPOOL_ATTR_LOCATION_TYPE = 12,
    CU_MEMPOOL_ATTR_MAX_POOL_SIZE = 13
};
enum { CU_MEM_ACCESS_FLAGS_PROT_NONE = 0, CU_MEM_ACCESS_FLAGS_PROT_READ = 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
enum {
    CU_MEM_ADVISE_SET_READ_MOSTLY = 1,
    CU_MEM_ADVISE_UNSET_READ_MOSTLY = 2,
    CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
    CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4,
    CU_MEM_ADVISE_SET_ACCESSED_BY = 5
};
enum { CU_MEM_ALLOCATION_TYPE_INVALID = 0, CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_ALLOCATION_TYPE_MANAGED = 2 };
enum { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1 };
enum { CU_MEM_ATTACH_GLOBAL = 1, CU_MEM_ATTACH_HOST = 2, CU_MEM_ATTACH_SINGLE = 4 };
enum { CU_MEM_HANDLE_TYPE_NONE = 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1, CU_MEM_HANDLE_TYPE_FABRIC = 8 };
enum {
    CU_MEM_LOCATION_TYPE_NONE = 0,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_LOCATION_TYPE_HOST = 2,
    CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,
    CU_MEM_LOCATION_TYPE_INVISIBLE = 5,
    CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN = 6
};
enum {
    CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY = 1,
    CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION = 2,
    CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY = 3,
    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION = 4
};
enum { CU_MODULE_EAGER_LOADING = 1, CU_MODULE_LAZY_LOADING = 2 };
enum { CU_MULTICAST_GRANULARITY_MINIMUM = 0, CU_MULTICAST_GRANULARITY_RECOMMENDED = 1 };
enum {
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    CU_POINTER_ATTRIBUTE_MAPPED = 13,
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17
};
enum { CU_PROCESS_STATE_RUNNING = 0, CU_PROCESS_STATE_LOCKED = 1, CU_PROCESS_STATE_CHECKPOINTED = 2 };
enum { CU_RESOURCE_TYPE_ARRAY = 0, CU_RESOURCE_TYPE_LINEAR = 2 };
enum { CU_TR_ADDRESS_MODE_CLAMP = 1 };

typedef struct {
    char bytes[16];
} CUuuid;
typedef struct {
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
    int sharedMemPerBlock, totalConstantMemory, SIMDWidth, memPitch, regsPerBlock, clockRate, textureAlign;
} CUdevprop;
typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;
typedef struct {
    int type, requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    unsigned char compressionType, gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
} CUmemAllocationProp;
typedef struct {
    unsigned char reserved[64];
} CUmemPoolPtrExportData;
typedef struct {
    unsigned char data[64];
} CUmemFabricHandle;
typedef struct {
    char reserved[64];
} CUipcMemHandle;
typedef struct {
    char reserved[64];
} CUipcEventHandle;
typedef struct {
    unsigned numDevices;
    size_t size;
    unsigned long long handleTypes, flags;
} CUmulticastObjectProp;
typedef struct {
    int srcAccessOrder;
    CUmemLocation srcLocHint, dstLocHint;
    unsigned flags;
} CUmemcpyAttributes;
_Static_assert(sizeof(CUuuid) == 16, "CUuuid");
_Static_assert(sizeof(CUdevprop) == 56, "CUdevprop");
_Static_assert(sizeof(CUmemLocation) == 8, "CUmemLocation");
_Static_assert(sizeof(CUmemAccessDesc) == 12, "CUmemAccessDesc");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps");
_Static_assert(sizeof(CUmemPoolPtrExportData) == 64, "CUmemPoolPtrExportData");
_Static_assert(sizeof(CUipcMemHandle) == 64, "CUipcMemHandle");
_Static_assert(sizeof(CUipcEventHandle) == 64, "CUipcEventHandle");
_Static_assert(sizeof(CUmulticastObjectProp) == 32, "CUmulticastObjectProp");
_Static_assert(sizeof(CUmemcpyAttributes) == 24, "CUmemcpyAttributes");

#define MEMORY_CALLS(CALL)                                                                                        \
    CALL(cuArray3DCreate_v2, (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *))                                        \
    CALL(cuArray3DGetDescriptor_v2, (CUDA_ARRAY3D_DESCRIPTOR *, CUarray))                                         \
    CALL(cuArrayCreate_v2, (CUarray *, const CUDA_ARRAY_DESCRIPTOR *))                                            \
    CALL(cuArrayDestroy, (CUarray))                                                                               \
    CALL(cuArrayGetDescriptor_v2, (CUDA_ARRAY_DESCRIPTOR *, CUarray))                                             \
    CALL(cuArrayGetMemoryRequirements, (CUDA_ARRAY_MEMORY_REQUIREMENTS *, CUarray, CUdevice))                     \
    CALL(cuArrayGetPlane, (CUarray *, CUarray, unsigned))                                                         \
    CALL(cuArrayGetSparseProperties, (CUDA_ARRAY_SPARSE_PROPERTIES *, CUarray))                                   \
    CALL(cuCheckpointProcessCheckpoint, (int, void *))                                                            \
    CALL(cuCheckpointProcessGetRestoreThreadId, (int, int *))                                                     \
    CALL(cuCheckpointProcessGetState, (int, int *))                                                               \
    CALL(cuCheckpointProcessLock, (int, void *))                                                                  \
    CALL(cuCheckpointProcessRestore, (int, void *))                                                               \
    CALL(cuCheckpointProcessUnlock, (int, void *))                                                                \
    CALL(cuCtxDisablePeerAccess, (CUcontext))                                                                     \
    CALL(cuCtxEnablePeerAccess, (CUcontext, unsigned))                                                            \
    CALL(cuDestroyExternalMemory, (CUexternalMemory))                                                             \
    CALL(cuDeviceCanAccessPeer, (int *, CUdevice, CUdevice))                                                      \
    CALL(cuDeviceComputeCapability, (int *, int *, CUdevice))                                                     \
    CALL(cuDeviceGetByPCIBusId, (CUdevice *, const char *))                                                       \
    CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))                                                   \
    CALL(cuDeviceGetMemPool, (CUmemoryPool *, CUdevice))                                                          \
    CALL(cuDeviceGetName, (char *, int, CUdevice))                                                                \
    CALL(cuDeviceGetP2PAttribute, (int *, int, CUdevice, CUdevice))                                               \
    CALL(cuDeviceGetPCIBusId, (char *, int, CUdevice))                                                            \
    CALL(cuDeviceGetProperties, (CUdevprop *, CUdevice))                                                          \
    CALL(cuDeviceGetUuid_v2, (CUuuid *, CUdevice))                                                                \
    CALL(cuDeviceSetMemPool, (CUdevice, CUmemoryPool))                                                            \
    CALL(cuEventElapsedTime_v2, (float *, CUevent, CUevent))                                                      \
    CALL(cuFuncGetName, (const char **, CUfunction))                                                              \
    CALL(cuFuncIsLoaded, (int *, CUfunction))                                                                     \
    CALL(cuFuncLoad, (CUfunction))                                                                                \
    CALL(cuGetProcAddress, (const char *, void **, int, uint64_t))                                                \
    CALL(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))                                      \
    CALL(cuImportExternalMemory, (CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *))                  \
    CALL(cuImportExternalSemaphore, (CUexternalSemaphore *, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *))         \
    CALL(cuIpcCloseMemHandle, (CUdeviceptr))                                                                      \
    CALL(cuIpcGetEventHandle, (CUipcEventHandle *, CUevent))                                                      \
    CALL(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))                                                      \
    CALL(cuIpcOpenEventHandle, (CUevent *, CUipcEventHandle))                                                     \
    CALL(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned))                                        \
    CALL(cuKernelGetFunction, (CUfunction *, CUkernel))                                                           \
    CALL(cuKernelGetLibrary, (CUlibrary *, CUkernel))                                                             \
    CALL(cuKernelGetName, (const char **, CUkernel))                                                              \
    CALL(cuLibraryGetGlobal, (CUdeviceptr *, size_t *, CUlibrary, const char *))                                  \
    CALL(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))                                               \
    CALL(cuLibraryGetKernelCount, (unsigned *, CUlibrary))                                                        \
    CALL(cuLibraryGetManaged, (CUdeviceptr *, size_t *, CUlibrary, const char *))                                 \
    CALL(cuLibraryGetModule, (CUmodule *, CUlibrary))                                                             \
    CALL(cuLibraryLoadData, (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned))      \
    CALL(cuLibraryLoadFromFile, (CUlibrary *, const char *, int *, void **, unsigned, int *, void **, unsigned))  \
    CALL(cuLibraryUnload, (CUlibrary))                                                                            \
    CALL(cuMemAddressFree, (CUdeviceptr, size_t))                                                                 \
    CALL(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                   \
    CALL(cuMemAdvise_v2, (CUdeviceptr, size_t, int, CUmemLocation))                                               \
    CALL(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                                \
    CALL(cuMemAllocHost_v2, (void **, size_t))                                                                    \
    CALL(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))                                 \
    CALL(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))  \
    CALL(cuMemExportToShareableHandle, (void *, CUmemGenericAllocationHandle, int, unsigned long long))           \
    CALL(cuMemFreeHost, (void *))                                                                                 \
    CALL(cuMemGetAccess, (unsigned long long *, const CUmemLocation *, CUdeviceptr))                              \
    CALL(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr))                                         \
    CALL(cuMemGetAllocationGranularity, (size_t *, const CUmemAllocationProp *, int))                             \
    CALL(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp *, CUmemGenericAllocationHandle))           \
    CALL(cuMemGetDefaultMemPool, (CUmemoryPool *, CUmemLocation *, int))                                          \
    CALL(cuMemGetMemPool, (CUmemoryPool *, CUmemLocation *, int))                                                 \
    CALL(cuMemHostAlloc, (void **, size_t, unsigned))                                                             \
    CALL(cuMemHostGetDevicePointer_v2, (CUdeviceptr *, void *, unsigned))                                         \
    CALL(cuMemHostGetFlags, (unsigned *, void *))                                                                 \
    CALL(cuMemHostRegister_v2, (void *, size_t, unsigned))                                                        \
    CALL(cuMemHostUnregister, (void *))                                                                           \
    CALL(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *, void *, int))                           \
    CALL(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))               \
    CALL(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))                                               \
    CALL(cuMemPoolDestroy, (CUmemoryPool))                                                                        \
    CALL(cuMemPoolExportPointer, (CUmemPoolPtrExportData *, CUdeviceptr))                                         \
    CALL(cuMemPoolExportToShareableHandle, (void *, CUmemoryPool, int, unsigned long long))                       \
    CALL(cuMemPoolGetAccess, (int *, CUmemoryPool, CUmemLocation *))                                              \
    CALL(cuMemPoolGetAttribute, (CUmemoryPool, int, void *))                                                      \
    CALL(cuMemPoolImportFromShareableHandle, (CUmemoryPool *, void *, int, unsigned long long))                   \
    CALL(cuMemPoolImportPointer, (CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *))                         \
    CALL(cuMemPoolSetAccess, (CUmemoryPool, const CUmemAccessDesc *, size_t))                                     \
    CALL(cuMemPoolSetAttribute, (CUmemoryPool, int, void *))                                                      \
    CALL(cuMemPoolTrimTo, (CUmemoryPool, size_t))                                                                 \
    CALL(cuMemPrefetchAsync_v2, (CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream))                         \
    CALL(cuMemRangeGetAttribute, (void *, size_t, int, CUdeviceptr, size_t))                                      \
    CALL(cuMemRelease, (CUmemGenericAllocationHandle))                                                            \
    CALL(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *, void *))                                   \
    CALL(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                                  \
    CALL(cuMemSetMemPool, (CUmemLocation *, int, CUmemoryPool))                                                   \
    CALL(cuMemUnmap, (CUdeviceptr, size_t))                                                                       \
    CALL(cuMemcpy, (CUdeviceptr, CUdeviceptr, size_t))                                                            \
    CALL(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *))                                                                  \
    CALL(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *))                                                                  \
    CALL(cuMemcpyBatchAsync_v2,                                                                                   \
         (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, CUstream))      \
    CALL(cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t))                                                     \
    CALL(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                                                    \
    CALL(cuMemcpyPeer, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t))                                  \
    CALL(cuMemsetD16_v2, (CUdeviceptr, unsigned short, size_t))                                                   \
    CALL(cuMemsetD2D32_v2, (CUdeviceptr, size_t, unsigned, size_t, size_t))                                       \
    CALL(cuMemsetD2D8_v2, (CUdeviceptr, size_t, unsigned char, size_t, size_t))                                   \
    CALL(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                         \
    CALL(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))                                                     \
    CALL(cuMipmappedArrayCreate, (CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned))                 \
    CALL(cuMipmappedArrayGetLevel, (CUarray *, CUmipmappedArray, unsigned))                                       \
    CALL(cuMipmappedArrayGetSparseProperties, (CUDA_ARRAY_SPARSE_PROPERTIES *, CUmipmappedArray))                 \
    CALL(cuModuleEnumerateFunctions, (CUfunction *, unsigned, CUmodule))                                          \
    CALL(cuModuleGetFunctionCount, (unsigned *, CUmodule))                                                        \
    CALL(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))                                 \
    CALL(cuModuleGetLoadingMode, (int *))                                                                         \
    CALL(cuModuleUnload, (CUmodule))                                                                              \
    CALL(cuMulticastAddDevice, (CUmemGenericAllocationHandle, CUdevice))                                          \
    CALL(cuMulticastCreate, (CUmemGenericAllocationHandle *, const CUmulticastObjectProp *))                      \
    CALL(cuMulticastGetGranularity, (size_t *, const CUmulticastObjectProp *, int))                               \
    CALL(cuPointerGetAttribute, (void *, int, CUdeviceptr))                                                       \
    CALL(cuPointerGetAttributes, (unsigned, int *, void **, CUdeviceptr))                                         \
    CALL(cuPointerSetAttribute, (const void *, int, CUdeviceptr))                                                 \
    CALL(cuSurfObjectCreate, (CUsurfObject *, const CUDA_RESOURCE_DESC *))                                        \
    CALL(cuTexObjectCreate, (CUtexObject *, const CUDA_RESOURCE_DESC *, const CUDA_TEXTURE_DESC *, const void *)) \
    CALL(cuTexObjectDestroy, (CUtexObject))                                                                       \
    CALL(cuTexObjectGetResourceDesc, (CUDA_RESOURCE_DESC *, CUtexObject))

#define CALL(name, parameters) extern CUresult(*name) parameters;
MEMORY_CALLS(CALL)
#undef CALL

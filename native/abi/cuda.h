/* Facts about the binary interface of NVIDIA's CUDA driver library (LP64), in our own words: sizes, values and
 * argument lists that calls must agree on. No behavior, and nothing about quotas. cuda-driver.facts lists all entry
 * points; only the types that wrappers or the simulated driver use are here. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int abi_result; /* CUresult */
typedef int abi_device; /* CUdevice: an ordinal, not an index of NVML's */
typedef uint64_t abi_devptr;
typedef uint64_t abi_vmm_handle; /* CUmemGenericAllocationHandle */
typedef struct abi_context_opaque *abi_context;
typedef struct abi_stream_opaque *abi_stream;
typedef struct abi_event_opaque *abi_event;
typedef struct abi_module_opaque *abi_module;
typedef struct abi_function_opaque *abi_function;
typedef struct abi_library_opaque *abi_library;
typedef struct abi_pool_opaque *abi_pool;
typedef struct abi_graph_opaque *abi_graph;
typedef struct abi_graph_node_opaque *abi_graph_node;
typedef struct abi_graph_exec_opaque *abi_graph_exec;
typedef struct abi_green_context_opaque *abi_green_context;
typedef struct abi_resource_desc_opaque *abi_resource_desc;

enum {
    ABI_SUCCESS = 0,
    ABI_ERROR_INVALID_VALUE = 1,
    ABI_ERROR_OUT_OF_MEMORY = 2,
    ABI_ERROR_NOT_INITIALIZED = 3,
    ABI_ERROR_DEINITIALIZED = 4,
    ABI_ERROR_NO_DEVICE = 100,
    ABI_ERROR_INVALID_DEVICE = 101,
    ABI_ERROR_INVALID_IMAGE = 200,
    ABI_ERROR_INVALID_CONTEXT = 201,
    ABI_ERROR_MAP_FAILED = 205,
    ABI_ERROR_UNSUPPORTED_LIMIT = 215,
    ABI_ERROR_INVALID_PTX = 218,
    ABI_ERROR_FILE_NOT_FOUND = 301,
    ABI_ERROR_SHARED_OBJECT_INIT_FAILED = 303,
    ABI_ERROR_INVALID_HANDLE = 400,
    ABI_ERROR_ILLEGAL_STATE = 401,
    ABI_ERROR_NOT_FOUND = 500,
    ABI_ERROR_NOT_READY = 600,
    ABI_ERROR_ILLEGAL_ADDRESS = 700,
    ABI_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    ABI_ERROR_CONTEXT_IS_DESTROYED = 709,
    ABI_ERROR_ASSERT = 710,
    ABI_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    ABI_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    ABI_ERROR_LAUNCH_FAILED = 719,
    ABI_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    ABI_ERROR_NOT_PERMITTED = 800,
    ABI_ERROR_NOT_SUPPORTED = 801,
    ABI_ERROR_CAPTURE_UNSUPPORTED = 900,
    ABI_ERROR_CAPTURE_INVALIDATED = 901,
    ABI_ERROR_CAPTURE_MERGE = 902,
    ABI_ERROR_CAPTURE_UNMATCHED = 903,
    ABI_ERROR_CAPTURE_UNJOINED = 904,
    ABI_ERROR_CAPTURE_ISOLATION = 905,
    ABI_ERROR_CAPTURE_IMPLICIT = 906,
    ABI_ERROR_CAPTURED_EVENT = 907,
    ABI_ERROR_CAPTURE_WRONG_THREAD = 908,
    ABI_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
    ABI_ERROR_INVALID_RESOURCE_TYPE = 914,
    ABI_ERROR_INVALID_RESOURCE_CONFIGURATION = 915,
    ABI_ERROR_STREAM_DETACHED = 917,
    ABI_ERROR_UNKNOWN = 999,
};

/* cuGetProcAddress */
enum { ABI_GPA_LEGACY_STREAM = 1, ABI_GPA_PER_THREAD_STREAM = 2 };
enum { ABI_GPA_FOUND = 0, ABI_GPA_SYMBOL_NOT_FOUND = 1, ABI_GPA_VERSION_NOT_SUFFICIENT = 2 };

/* Stream handles that are not pointers. NULL is the default stream in the mode of the called form. */
#define ABI_STREAM_LEGACY ((abi_stream)1)
#define ABI_STREAM_PER_THREAD ((abi_stream)2)

typedef struct {
    unsigned char bytes[16];
} abi_uuid;

enum {
    ABI_LOCATION_NONE = 0,
    ABI_LOCATION_DEVICE = 1,
    ABI_LOCATION_HOST = 2,
    ABI_LOCATION_HOST_NUMA = 3,
    ABI_LOCATION_HOST_NUMA_CURRENT = 4,
    ABI_LOCATION_INVISIBLE = 5,
    ABI_LOCATION_DEVICE_LOCALITY_DOMAIN = 6,
};
typedef struct {
    int type; /* ABI_LOCATION_* */
    int id; /* device ordinal or NUMA node; a locality domain: the device in the lowest byte, the domain in the next */
} abi_location;

enum { ABI_ALLOCATION_PINNED = 1, ABI_ALLOCATION_MANAGED = 2 };
enum { ABI_HANDLE_NONE = 0, ABI_HANDLE_POSIX_FD = 1, ABI_HANDLE_FABRIC = 8 };
enum { ABI_GRANULARITY_MINIMUM = 0, ABI_GRANULARITY_RECOMMENDED = 1 };

/* CUmemAllocationProp, 32 bytes */
typedef struct {
    int type;                   /* ABI_ALLOCATION_* */
    int requested_handle_types; /* bits ABI_HANDLE_* */
    abi_location location;
    void *win32_metadata;
    unsigned char compression;
    unsigned char rdma_capable;
    uint16_t usage;
    unsigned char reserved[4];
} abi_vmm_prop;

enum { ABI_ACCESS_NONE = 0, ABI_ACCESS_READ = 1, ABI_ACCESS_READ_WRITE = 3 };
typedef struct {
    abi_location location;
    int flags;
} abi_access_desc;

/* CUmemPoolProps, 88 bytes */
typedef struct {
    int alloc_type;
    int handle_types;
    abi_location location;
    void *win32_attributes;
    size_t max_size; /* 0: the driver's own bound */
    uint16_t usage;
    unsigned char reserved[54];
} abi_pool_props;

enum {
    ABI_POOL_REUSE_FOLLOW_EVENTS = 1,
    ABI_POOL_REUSE_OPPORTUNISTIC = 2,
    ABI_POOL_REUSE_INTERNAL = 3,
    ABI_POOL_RELEASE_THRESHOLD = 4,
    ABI_POOL_RESERVED_CURRENT = 5,
    ABI_POOL_RESERVED_HIGH = 6,
    ABI_POOL_USED_CURRENT = 7,
    ABI_POOL_USED_HIGH = 8,
    ABI_POOL_ALLOCATION_TYPE = 9, /* this and the next two: since CUDA 13.0 */
    ABI_POOL_LOCATION_ID = 11,
    ABI_POOL_LOCATION_TYPE = 12,
};

/* ---- graphs ---- */
enum {
    ABI_NODE_KERNEL = 0,
    ABI_NODE_MEMCPY = 1,
    ABI_NODE_MEMSET = 2,
    ABI_NODE_HOST = 3,
    ABI_NODE_GRAPH = 4,
    ABI_NODE_EMPTY = 5,
    ABI_NODE_WAIT_EVENT = 6,
    ABI_NODE_EVENT_RECORD = 7,
    ABI_NODE_MEM_ALLOC = 10,
    ABI_NODE_MEM_FREE = 11,
    ABI_NODE_CONDITIONAL = 13,
};
/* CUDA_MEM_ALLOC_NODE_PARAMS in both layouts, 120 bytes; the driver fills the address in */
typedef struct {
    abi_pool_props pool;
    const abi_access_desc *access;
    size_t access_count;
    size_t bytes;
    abi_devptr pointer;
} abi_alloc_node;
/* CUDA_KERNEL_NODE_PARAMS, second and third layout, 72 bytes; the first one ends before `kernel` */
typedef struct {
    abi_function function;
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    void **parameters, **extra;
    void *kernel;
    abi_context context;
} abi_kernel_node;
/* CUDA_HOST_NODE_PARAMS, 16 bytes; the second layout goes on */
typedef struct {
    void (*function)(void *);
    void *data;
} abi_host_node;
/* CUDA_MEMSET_NODE_PARAMS, 40 bytes */
typedef struct {
    abi_devptr to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
} abi_memset_node;
enum { ABI_CHILD_CLONE = 0, ABI_CHILD_MOVE = 1 };
typedef struct {
    abi_graph graph;
    int ownership; /* ABI_CHILD_*: moved into the node, or copied */
} abi_child_node;
/* CUDA_CONDITIONAL_NODE_PARAMS; the driver fills the bodies in */
typedef struct {
    uint64_t handle;
    int type; /* 0 if, 1 while, 2 switch */
    unsigned size;
    abi_graph *bodies;
    abi_context context;
} abi_conditional_node;
/* CUgraphNodeParams, 256 bytes */
typedef struct {
    int type; /* ABI_NODE_* */
    int reserved[3];
    union {
        long long bytes[29];
        abi_alloc_node alloc;
        abi_devptr free;
        abi_kernel_node kernel;
        abi_host_node host;
        abi_memset_node memset;
        abi_child_node child;
        abi_event event;
        abi_conditional_node conditional;
    };
    long long reserved_end;
} abi_node_params;
enum { ABI_INSTANTIATE_AUTO_FREE = 1, ABI_INSTANTIATE_UPLOAD = 2, ABI_INSTANTIATE_NODE_PRIORITY = 8 };
/* CUDA_GRAPH_INSTANTIATE_PARAMS, 32 bytes */
typedef struct {
    uint64_t flags;
    abi_stream upload_stream;
    abi_graph_node error_node;
    int result;
} abi_instantiate_params;
/* cuDeviceGetGraphMemAttribute, 8 bytes each; the high ones can be set to 0 */
enum {
    ABI_GRAPH_MEMORY_USED = 0,
    ABI_GRAPH_MEMORY_USED_HIGH = 1,
    ABI_GRAPH_MEMORY_RESERVED = 2,
    ABI_GRAPH_MEMORY_RESERVED_HIGH = 3,
};
enum { ABI_CAPTURE_GLOBAL = 0, ABI_CAPTURE_THREAD_LOCAL = 1, ABI_CAPTURE_RELAXED = 2 };

/* CUlaunchConfig, 56 bytes */
typedef struct {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    abi_stream stream;
    void *attributes;
    unsigned attribute_count;
} abi_launch_config;

/* CUDA_LAUNCH_PARAMS of cuLaunchCooperativeKernelMultiDevice, 56 bytes */
typedef struct {
    abi_function function;
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    abi_stream stream;
    void **parameters;
} abi_launch_of_many;

/* CUDA_MEMCPY2D (second layout, 64-bit offsets), 128 bytes; memory types: 1 host, 2 device, 3 array, 4 unified */
enum { ABI_MEMORY_HOST = 1, ABI_MEMORY_DEVICE = 2, ABI_MEMORY_ARRAY = 3, ABI_MEMORY_UNIFIED = 4 };
typedef struct {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    abi_devptr src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    int dst_type;
    void *dst_host;
    abi_devptr dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width_bytes, height;
} abi_memcpy_2d;

enum {
    ABI_LIMIT_STACK_SIZE = 0,
    ABI_LIMIT_PRINTF_FIFO_SIZE = 1,
    ABI_LIMIT_MALLOC_HEAP_SIZE = 2,
    ABI_LIMIT_DEVICE_RUNTIME_SYNC_DEPTH = 3,
    ABI_LIMIT_DEVICE_RUNTIME_PENDING_LAUNCHES = 4,
    ABI_LIMIT_MAX_L2_FETCH = 5,
    ABI_LIMIT_PERSISTING_L2 = 6,
};

enum { ABI_DEVICE_SM_COUNT = 16, ABI_DEVICE_THREADS_PER_SM = 39 };

/* CUdevResource, 144 bytes */
enum { ABI_RESOURCE_SM = 1 };
typedef struct {
    int type; /* ABI_RESOURCE_* */
    unsigned char inside[92];
    unsigned sm_count, least_sms, sm_alignment;
    unsigned char reserved[36];
} abi_resource;
enum { ABI_GREEN_DEFAULT_STREAM = 1 }; /* the one flag that cuGreenCtxCreate must be given */

/* cuCheckpointProcessGetState */
enum { ABI_PROCESS_RUNNING = 0, ABI_PROCESS_LOCKED = 1, ABI_PROCESS_CHECKPOINTED = 2, ABI_PROCESS_FAILED = 3 };

enum {
    ABI_POINTER_CONTEXT = 1,
    ABI_POINTER_MEMORY_TYPE = 2,
    ABI_POINTER_DEVICE_POINTER = 3,
    ABI_POINTER_HOST_POINTER = 4,
    ABI_POINTER_BUFFER_ID = 7,
    ABI_POINTER_IS_MANAGED = 8,
    ABI_POINTER_DEVICE_ORDINAL = 9,
    ABI_POINTER_RANGE_START = 11,
    ABI_POINTER_RANGE_SIZE = 12,
    ABI_POINTER_MAPPED = 13,
};

enum { ABI_STREAM_NON_BLOCKING = 1 };
enum { ABI_EVENT_DISABLE_TIMING = 2, ABI_EVENT_WAIT_EXTERNAL = 1 };
enum { ABI_CAPTURE_NONE = 0, ABI_CAPTURE_ACTIVE = 1, ABI_CAPTURE_INVALIDATED = 2 };

_Static_assert(sizeof(abi_vmm_prop) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(abi_pool_props) == 88, "CUmemPoolProps");
_Static_assert(sizeof(abi_launch_config) == 56, "CUlaunchConfig");
_Static_assert(sizeof(abi_launch_of_many) == 56 && offsetof(abi_launch_of_many, stream) == 40, "CUDA_LAUNCH_PARAMS");
_Static_assert(sizeof(abi_memcpy_2d) == 128, "CUDA_MEMCPY2D");
_Static_assert(sizeof(abi_alloc_node) == 120, "CUDA_MEM_ALLOC_NODE_PARAMS");
_Static_assert(sizeof(abi_kernel_node) == 72, "CUDA_KERNEL_NODE_PARAMS");
_Static_assert(sizeof(abi_memset_node) == 40, "CUDA_MEMSET_NODE_PARAMS");
_Static_assert(sizeof(abi_node_params) == 256, "CUgraphNodeParams");
_Static_assert(sizeof(abi_instantiate_params) == 32, "CUDA_GRAPH_INSTANTIATE_PARAMS");
_Static_assert(sizeof(abi_resource) == 144, "CUdevResource");

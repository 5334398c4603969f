/* Facts about arrays, and about memory shared between processes or APIs: shapes, element sizes, flags and handles
 * of NVIDIA's CUDA driver library (LP64), in our own words. The layout of an array in memory is not documented. */
#pragma once

#include <stdbool.h>

#include "cuda.h"

typedef struct abi_array_opaque *abi_array;
typedef struct abi_mipmapped_opaque *abi_mipmapped;
typedef struct abi_external_opaque *abi_external;

/* CUDA_ARRAY_DESCRIPTOR (24 bytes) and CUDA_ARRAY3D_DESCRIPTOR (40 bytes); the old forms have 32-bit extents. An
 * extent of 0 is a dimension that the array does not have. */
typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} abi_array_shape;
typedef struct {
    size_t width, height, depth; /* depth: also the number of layers */
    int format;
    unsigned channels, flags;
} abi_array3d_shape;
typedef struct {
    unsigned width, height;
    int format;
    unsigned channels;
} abi_array_shape_v1;
typedef struct {
    unsigned width, height, depth;
    int format;
    unsigned channels, flags;
} abi_array3d_shape_v1;

enum {
    ABI_ARRAY_LAYERED = 0x01,
    ABI_ARRAY_SURFACE = 0x02,
    ABI_ARRAY_CUBEMAP = 0x04,
    ABI_ARRAY_GATHER = 0x08,
    ABI_ARRAY_DEPTH = 0x10,
    ABI_ARRAY_COLOR = 0x20,
    ABI_ARRAY_SPARSE = 0x40,
    ABI_ARRAY_DEFERRED = 0x80,
    ABI_ARRAY_VIDEO = 0x100,
};

enum {
    ABI_FORMAT_U8 = 0x01,
    ABI_FORMAT_U16 = 0x02,
    ABI_FORMAT_U32 = 0x03,
    ABI_FORMAT_S8 = 0x08,
    ABI_FORMAT_S16 = 0x09,
    ABI_FORMAT_S32 = 0x0a,
    ABI_FORMAT_HALF = 0x10,
    ABI_FORMAT_FLOAT = 0x20,
    ABI_FORMAT_BC1 = 0x91,
    ABI_FORMAT_NV12 = 0xb0,
};

/* Size of one element; compressed formats count squares of `side` x `side` elements. */
typedef struct {
    unsigned bits, side; /* bits 0: a format that this table does not know */
} abi_array_element;

static inline abi_array_element abi_array_element_of(int format, unsigned channels) {
    switch (format) {
    case ABI_FORMAT_U8:
    case ABI_FORMAT_S8: return (abi_array_element){8 * channels, 1};
    case ABI_FORMAT_U16:
    case ABI_FORMAT_S16:
    case ABI_FORMAT_HALF: return (abi_array_element){16 * channels, 1};
    case ABI_FORMAT_U32:
    case ABI_FORMAT_S32:
    case ABI_FORMAT_FLOAT: return (abi_array_element){32 * channels, 1};
    case 0x50: return (abi_array_element){32, 1}; /* 10, 10, 10 and 2 bits */
    case 0x91:                                    /* BC1 and BC4, plain, sRGB, signed */
    case 0x92:
    case 0x97:
    case 0x98: return (abi_array_element){64, 4};
    case 0x93: /* BC2, BC3, BC5, BC6H, BC7 */
    case 0x94:
    case 0x95:
    case 0x96:
    case 0x99:
    case 0x9a:
    case 0x9b:
    case 0x9c:
    case 0x9d:
    case 0x9e: return (abi_array_element){128, 4};
    case 0x9f: /* P010, P016 */
    case 0xa1: return (abi_array_element){24, 1};
    case 0xa2: /* NV16, YUY2 */
    case 0xa5: return (abi_array_element){16, 1};
    case 0xa3: /* P210, P216, Y210, Y216, AYUV, Y410 */
    case 0xa4:
    case 0xa6:
    case 0xa7:
    case 0xa8:
    case 0xa9: return (abi_array_element){32, 1};
    case ABI_FORMAT_NV12: return (abi_array_element){12, 1};
    case 0xb1: return (abi_array_element){64, 1}; /* Y416 */
    case 0xb2:                                    /* 4:4:4 of 8 bits in planes */
    case 0xb4: return (abi_array_element){24, 1};
    case 0xb3: /* of 10 and 16 bits */
    case 0xb5: return (abi_array_element){48, 1};
    case 0xc0: /* normalized integers: 8 bits, then 16, of 1, 2 and 4 channels each */
    case 0xc6: return (abi_array_element){8, 1};
    case 0xc1:
    case 0xc7:
    case 0xc3:
    case 0xc9: return (abi_array_element){16, 1};
    case 0xc2:
    case 0xc8:
    case 0xc4:
    case 0xca: return (abi_array_element){32, 1};
    case 0xc5:
    case 0xcb: return (abi_array_element){64, 1};
    default: return (abi_array_element){0, 1};
    }
}

/* Levels that a chain of this shape can have at most: the largest extent halves down to 1; layers do not halve. */
static inline unsigned abi_array_most_levels(const abi_array3d_shape *shape) {
    bool layers = shape->flags & (ABI_ARRAY_LAYERED | ABI_ARRAY_CUBEMAP);
    size_t largest = shape->width > shape->height ? shape->width : shape->height;
    if (!layers && shape->depth > largest) largest = shape->depth;
    return largest ? 64u - (unsigned)__builtin_clzll(largest) : 1;
}

/* CUDA_ARRAY_MEMORY_REQUIREMENTS, 32 bytes */
typedef struct {
    size_t size, alignment;
    unsigned reserved[4];
} abi_array_requirements;

/* CUarrayMapInfo, 96 bytes: maps physical memory under a part of a sparse array, or under a whole deferred one */
enum { ABI_RESOURCE_ARRAY = 0, ABI_RESOURCE_MIPMAPPED = 1 };
enum { ABI_TILES_LEVEL = 0, ABI_TILES_MIP_TAIL = 1 };
enum { ABI_TILES_MAP = 1, ABI_TILES_UNMAP = 2 };
typedef struct {
    int resource_type, pad0;
    void *resource;
    int part_type, pad1; /* ABI_TILES_LEVEL or ABI_TILES_MIP_TAIL */
    union {
        struct {
            unsigned level, layer, x, y, z, width, height, depth;
        } tiles;
        struct {
            unsigned layer;
            uint64_t offset, size;
        } tail;
    } part;
    int operation, handle_type;
    abi_vmm_handle handle;
    uint64_t offset;
    unsigned device_mask, flags, reserved[2];
} abi_array_map;

/* CUDA_EXTERNAL_MEMORY_HANDLE_DESC, 104 bytes */
enum { ABI_EXTERNAL_OPAQUE_FD = 1, ABI_EXTERNAL_DMABUF_FD = 9 };
typedef struct {
    int type;
    union {
        int fd;
        void *pair[2];
    } handle;
    uint64_t size;
    unsigned flags, reserved[16];
} abi_external_handle;
/* CUDA_EXTERNAL_MEMORY_BUFFER_DESC, 88 bytes; CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC, 120 bytes */
typedef struct {
    uint64_t offset, size;
    unsigned flags, reserved[16];
} abi_external_buffer;
typedef struct {
    uint64_t offset;
    abi_array3d_shape shape;
    unsigned levels, reserved[16];
} abi_external_mipmapped;

/* CUipcMemHandle and CUmemPoolPtrExportData: 64 bytes that only the driver reads */
typedef struct {
    unsigned char bytes[64];
} abi_ipc_handle;
typedef struct {
    unsigned char bytes[64];
} abi_pool_pointer;

_Static_assert(sizeof(abi_array_shape) == 24, "CUDA_ARRAY_DESCRIPTOR");
_Static_assert(sizeof(abi_array3d_shape) == 40, "CUDA_ARRAY3D_DESCRIPTOR");
_Static_assert(sizeof(abi_array_requirements) == 32, "CUDA_ARRAY_MEMORY_REQUIREMENTS");
_Static_assert(sizeof(abi_array_map) == 96, "CUarrayMapInfo");
_Static_assert(offsetof(abi_array_map, part) == 24, "CUarrayMapInfo.subresource");
_Static_assert(offsetof(abi_array_map, handle) == 64, "CUarrayMapInfo.memHandle");
_Static_assert(sizeof(abi_external_handle) == 104, "CUDA_EXTERNAL_MEMORY_HANDLE_DESC");
_Static_assert(offsetof(abi_external_handle, size) == 24, "CUDA_EXTERNAL_MEMORY_HANDLE_DESC.size");
_Static_assert(sizeof(abi_external_buffer) == 88, "CUDA_EXTERNAL_MEMORY_BUFFER_DESC");
_Static_assert(sizeof(abi_external_mipmapped) == 120, "CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC");

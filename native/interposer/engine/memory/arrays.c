/* Arrays and mipmapped arrays. The driver's layout is not documented, and it reports sizes only for arrays whose
 * memory comes later, so the charge is an estimate: rows padded to the 64-byte by 8-row blocks in which textures
 * are stored, level by level, in granules of their own. The agent finds the difference. Sparse arrays and arrays of
 * deferred mapping cost nothing themselves; physical memory mapped under them is charged by cuMemCreate
 * (virtual/sparse_arrays.c). */
#include "../../../abi/cuda_arrays.h"
#include "../accounting/grant.h"
#include "../core/driver_calls.h"
#include "blocks/blocks.h"
#include "claims.h"
#include "virtual/sparse_arrays.h"

#define BLOCK_BYTES 64u /* width of a block of texture memory, and its rows */
#define BLOCK_ROWS 8u
#define UNKNOWN_BITS 32u /* per channel of a format that is newer than this table */

static uint64_t times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}
static uint64_t plus(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}
static uint64_t pieces(uint64_t count, uint64_t unit) {
    return count / unit + (count % unit != 0);
}
static uint64_t halved(uint64_t extent, unsigned level) {
    return extent >> level ? extent >> level : 1;
}

static uint64_t estimate(const abi_array3d_shape *shape, unsigned levels) {
    abi_array_element element = abi_array_element_of(shape->format, shape->channels);
    if (element.bits == 0) element.bits = UNKNOWN_BITS * (shape->channels < 4 ? shape->channels : 4);
    bool layers = shape->flags & (ABI_ARRAY_LAYERED | ABI_ARRAY_CUBEMAP);
    unsigned most = abi_array_most_levels(shape);
    uint64_t sum = 0;
    if (levels == 0) levels = 1;
    if (levels > most) levels = most;
    for (unsigned level = 0; level < levels; level++) {
        uint64_t width = pieces(halved(shape->width, level), element.side);
        uint64_t rows = pieces(halved(shape->height, level), element.side);
        uint64_t slices = !shape->depth ? 1 : layers ? shape->depth : halved(shape->depth, level);
        uint64_t row = times(pieces(pieces(times(width, element.bits), 8), BLOCK_BYTES), BLOCK_BYTES);
        if (shape->height) rows = times(pieces(rows, BLOCK_ROWS), BLOCK_ROWS);
        sum = plus(sum, times(times(row, rows), slices));
    }
    return sum;
}

static uint32_t kind_of(unsigned flags) {
    return flags & ABI_ARRAY_DEFERRED ? COT_DEFERRED : flags & ABI_ARRAY_SPARSE ? COT_SPARSE : COT_ARRAY;
}

/* Calls the driver between claim and charge, with a copy of the shape: the program may change its own meanwhile. */
#define CREATE(symbol, types, whole, levels, out, ...)                                                    \
    ({                                                                                                    \
        const abi_array3d_shape whole_ = whole;                                                           \
        uint32_t kind_ = kind_of(whole_.flags);                                                           \
        struct cot_claim claim_;                                                                          \
        abi_result result_ = cot_claim(kind_ == COT_ARRAY ? estimate(&whole_, levels) : 0, &claim_);      \
        if (result_ == ABI_SUCCESS) {                                                                     \
            result_ = CALL_REAL(symbol, types, out, __VA_ARGS__);                                         \
            cot_claim_end(&claim_, result_, result_ == ABI_SUCCESS ? (const void *)*(out) : NULL, kind_); \
        }                                                                                                 \
        result_;                                                                                          \
    })
#define FLAT(shape) ((abi_array3d_shape){(shape).width, (shape).height, 0, (shape).format, (shape).channels, 0})

#define ARRAY(symbol, shape_type, widen)                                                             \
    abi_result cot_##symbol(abi_array *out, const shape_type *shape) {                               \
        if (!out || !shape) return CALL_REAL(symbol, (abi_array *, const shape_type *), out, shape); \
        const shape_type copy = *shape;                                                              \
        return CREATE(symbol, (abi_array *, const shape_type *), widen(copy), 1, out, &copy);        \
    }
#define UNCHANGED(shape) (shape)
#define WIDE(shape) \
    ((abi_array3d_shape){(shape).width, (shape).height, (shape).depth, (shape).format, (shape).channels, (shape).flags})
ARRAY(cuArrayCreate, abi_array_shape_v1, FLAT)
ARRAY(cuArrayCreate_v2, abi_array_shape, FLAT)
ARRAY(cuArray3DCreate, abi_array3d_shape_v1, WIDE)
ARRAY(cuArray3DCreate_v2, abi_array3d_shape, UNCHANGED)

abi_result cot_cuMipmappedArrayCreate(abi_mipmapped *out, const abi_array3d_shape *shape, unsigned levels) {
    typedef abi_array3d_shape S;
    if (!out || !shape)
        return CALL_REAL(cuMipmappedArrayCreate, (abi_mipmapped *, const S *, unsigned), out, shape, levels);
    const S copy = *shape;
    return CREATE(cuMipmappedArrayCreate, (abi_mipmapped *, const S *, unsigned), copy, levels, out, &copy, levels);
}

/* Removed from the table before the driver's call, as the handle may be reused after it; added again if the driver
 * refuses. Levels of a mipmapped array and planes have handles too, which cost nothing and are in no table. */
#define DESTROY(symbol, type)                                                              \
    abi_result cot_##symbol(type array) {                                                  \
        struct cot_block block;                                                            \
        uint64_t key = (uintptr_t)array;                                                   \
        if (!cot_attached() || !cot_blocks_take_latest(key, COT_ARRAY, &block))            \
            return CALL_REAL(symbol, (type), array);                                       \
        if (block.kind != COT_ARRAY) cot_sparse_array_ending(array);                       \
        abi_result result = CALL_REAL(symbol, (type), array);                              \
        cot_claim_released(result, &block);                                                \
        if (block.kind != COT_ARRAY) cot_sparse_array_ended(array, result == ABI_SUCCESS); \
        return result;                                                                     \
    }
DESTROY(cuArrayDestroy, abi_array)
DESTROY(cuMipmappedArrayDestroy, abi_mipmapped)

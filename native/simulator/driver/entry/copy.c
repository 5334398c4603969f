/* Copies and fills. They move real bytes on the calling thread: a synchronous one first waits for earlier work, as on a
 * GPU; an asynchronous one takes effect during the call, which no correct program can distinguish from later, unless
 * functions of the host are pending (host_work.c). Copy engines have no time line of their own. */
#include <string.h>

#include "../sim.h"

/* What a device can reach: its memory, or page-locked memory of the host. */
static bool is_reachable(abi_devptr pointer) {
    return sim_in_arena(pointer) || sim_is_page_locked(pointer);
}
/* Of the calls that name their direction: which of the two addresses must be a device's. */
enum { ANY = 0, TO_DEVICE = 1, FROM_DEVICE = 2 };
static bool is_direction(abi_devptr to, abi_devptr from, int direction) {
    return (!(direction & TO_DEVICE) || is_reachable(to)) && (!(direction & FROM_DEVICE) || is_reachable(from));
}

/* Waits for the stream, whose earlier work it follows: the legacy default one, or the thread's own. */
static int copy_after(abi_devptr to, abi_devptr from, size_t bytes, abi_stream stream, int direction) {
    SIM_TRY(sim_wait_stream(stream));
    if (bytes && !is_direction(to, from, direction)) return ABI_ERROR_INVALID_VALUE;
    return sim_copy_now(to, from, bytes);
}

static int copy_on(abi_devptr to, abi_devptr from, size_t bytes, abi_stream handle) {
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if (!stream && (result = sim_capture_forbids_legacy(context)) != ABI_SUCCESS) return result;
    if (bytes == 0) return ABI_SUCCESS;
    struct sim_step step = {.type = ABI_NODE_MEMCPY, .to = to, .from = from, .bytes = bytes};
    if (sim_capture_step(stream, &step, &result)) return result;
    if ((result = sim_copy_usable(to, from, bytes)) != ABI_SUCCESS) return result;
    if (sim_is_host_work_pending()) return sim_host_work(context, stream, &step, NULL);
    memmove((void *)to, (void *)from, bytes);
    return ABI_SUCCESS;
}

/* One synchronous form and its per-thread variant; one asynchronous form and its variant. */
#define SYNC(name, twin, to_type, from_type, direction)                                               \
    SIM_EXPORT abi_result name(to_type to, from_type from, size_t bytes) {                            \
        SIM_ENTER(#name);                                                                             \
        return copy_after((abi_devptr)to, (abi_devptr)from, bytes, NULL, direction);                  \
    }                                                                                                 \
    SIM_EXPORT abi_result twin(to_type to, from_type from, size_t bytes) {                            \
        SIM_ENTER(#twin);                                                                             \
        return copy_after((abi_devptr)to, (abi_devptr)from, bytes, ABI_STREAM_PER_THREAD, direction); \
    }
#define ASYNC(name, twin, to_type, from_type)                                                 \
    SIM_EXPORT abi_result name(to_type to, from_type from, size_t bytes, abi_stream stream) { \
        SIM_ENTER(#name);                                                                     \
        return copy_on((abi_devptr)to, (abi_devptr)from, bytes, stream);                      \
    }                                                                                         \
    SIM_EXPORT abi_result twin(to_type to, from_type from, size_t bytes, abi_stream stream) { \
        return name(to, from, bytes, sim_own(stream));                                        \
    }

SYNC(cuMemcpy, cuMemcpy_ptds, abi_devptr, abi_devptr, ANY)
SYNC(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, abi_devptr, const void *, TO_DEVICE)
SYNC(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, void *, abi_devptr, FROM_DEVICE)
SYNC(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, abi_devptr, abi_devptr, TO_DEVICE | FROM_DEVICE)
ASYNC(cuMemcpyAsync, cuMemcpyAsync_ptsz, abi_devptr, abi_devptr)
ASYNC(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, abi_devptr, const void *)
ASYNC(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, void *, abi_devptr)
ASYNC(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, abi_devptr, abi_devptr)

SIM_ROW(cuMemcpyPeer, (abi_devptr to, abi_context to_context, abi_devptr from, abi_context from_context, size_t bytes),
        copy_after(to, from, bytes, NULL, ANY))
SIM_ROW(cuMemcpyPeerAsync,
        (abi_devptr to, abi_context to_context, abi_devptr from, abi_context from_context, size_t bytes,
         abi_stream stream),
        copy_on(to, from, bytes, stream))

enum { MOST_PITCH = 2147483647 }; /* as the device's attribute tells */

/* One side of a two-dimensional copy. */
struct side {
    abi_devptr at; /* the first byte */
    size_t pitch;
    bool array; /* checked before */
};

static int side_of(int type, const void *host, abi_devptr device, void *array, size_t pitch, size_t x, size_t y,
                   size_t width, size_t height, struct side *side) {
    if (type < ABI_MEMORY_HOST || type > ABI_MEMORY_UNIFIED) return ABI_ERROR_INVALID_VALUE;
    if (type != ABI_MEMORY_ARRAY && pitch && (pitch > MOST_PITCH || pitch < x || pitch - x < width))
        return ABI_ERROR_INVALID_VALUE;
    *side = (struct side){type == ABI_MEMORY_HOST ? (abi_devptr)host : device, pitch, type == ABI_MEMORY_ARRAY};
    if (side->array) {
        char *rows;
        size_t row_bytes, row_count;
        if (!sim_array_rows(array, &rows, &side->pitch, &row_bytes, &row_count)) return ABI_ERROR_INVALID_HANDLE;
        if (x % sim_array_element_bytes(array)) return ABI_ERROR_INVALID_VALUE;
        if (x > row_bytes || width > row_bytes - x || y > row_count || height > row_count - y)
            return ABI_ERROR_INVALID_VALUE;
        side->at = (abi_devptr)rows;
    }
    side->at += y * side->pitch + x;
    return ABI_SUCCESS;
}

/* Rows of arrays were checked with the array. */
static int copy_row(abi_devptr to, bool to_array, abi_devptr from, bool from_array, size_t bytes) {
    bool device;
    int result = to_array ? ABI_SUCCESS : sim_check_range(to, bytes, &device);
    if (result == ABI_SUCCESS && !from_array) result = sim_check_range(from, bytes, &device);
    if (result == ABI_SUCCESS) memmove((void *)to, (void *)from, bytes);
    return result;
}

static int copy_2d(const abi_memcpy_2d *copy, abi_stream stream, bool wait) {
    struct side to, from;
    struct sim_context *context;
    struct sim_stream *object;
    if (!copy) return ABI_ERROR_INVALID_VALUE;
    int result = sim_stream_context(stream, &context, &object);
    if (result == ABI_SUCCESS && wait) result = sim_wait_stream(stream);
    if (result == ABI_SUCCESS)
        result = side_of(copy->src_type, copy->src_host, copy->src_device, copy->src_array, copy->src_pitch,
                         copy->src_x, copy->src_y, copy->width_bytes, copy->height, &from);
    if (result == ABI_SUCCESS)
        result = side_of(copy->dst_type, copy->dst_host, copy->dst_device, copy->dst_array, copy->dst_pitch,
                         copy->dst_x, copy->dst_y, copy->width_bytes, copy->height, &to);
    if (result == ABI_SUCCESS && (to.array || from.array) && object && sim_capture_forbids_sync(context, object))
        return ABI_ERROR_NOT_SUPPORTED;
    for (size_t row = 0; row < copy->height && copy->width_bytes && result == ABI_SUCCESS; row++) {
        abi_devptr into = to.at + row * to.pitch, out_of = from.at + row * from.pitch;
        if (to.array || from.array) result = copy_row(into, to.array, out_of, from.array, copy->width_bytes);
        else result = copy_on(into, out_of, copy->width_bytes, stream);
    }
    return result;
}
SIM_ROW(cuMemcpy2D_v2, (const abi_memcpy_2d *copy), copy_2d(copy, NULL, true))
SIM_SAME(cuMemcpy2D_v2_ptds, (const abi_memcpy_2d *copy), cuMemcpy2D_v2(copy))
SIM_SAME(cuMemcpy2DUnaligned_v2, (const abi_memcpy_2d *copy), cuMemcpy2D_v2(copy))
SIM_ROW(cuMemcpy2DAsync_v2, (const abi_memcpy_2d *copy, abi_stream stream), copy_2d(copy, stream, false))
SIM_SAME(cuMemcpy2DAsync_v2_ptsz, (const abi_memcpy_2d *copy, abi_stream stream),
         cuMemcpy2DAsync_v2(copy, sim_own(stream)))

/* CUDA_MEMCPY3D: each side is described as in a two-dimensional copy, with slices of a height. */
struct side_3d {
    size_t x, y, z, level;
    int type;
    const void *host;
    abi_devptr device;
    void *array, *reserved;
    size_t pitch, height;
};
struct copy_3d {
    struct side_3d from, to;
    size_t width_bytes, height, depth;
};

/* A slice as a copy in two dimensions. Arrays here have one. */
static bool slice_of(const struct copy_3d *copy, size_t slice, abi_memcpy_2d *out) {
    const struct side_3d *from = &copy->from, *to = &copy->to;
    size_t skipped_from = (from->z + slice) * from->height * from->pitch;
    size_t skipped_to = (to->z + slice) * to->height * to->pitch;
    if ((from->type == ABI_MEMORY_ARRAY && from->z + slice) || (to->type == ABI_MEMORY_ARRAY && to->z + slice))
        return false;
    *out = (abi_memcpy_2d){.src_x = from->x,
                           .src_y = from->y,
                           .src_type = from->type,
                           .src_host = (const char *)from->host + skipped_from,
                           .src_device = from->device + skipped_from,
                           .src_array = from->array,
                           .src_pitch = from->pitch,
                           .dst_x = to->x,
                           .dst_y = to->y,
                           .dst_type = to->type,
                           .dst_host = (char *)(uintptr_t)to->host + skipped_to,
                           .dst_device = to->device + skipped_to,
                           .dst_array = to->array,
                           .dst_pitch = to->pitch,
                           .width_bytes = copy->width_bytes,
                           .height = copy->height};
    return true;
}
static bool is_low(const struct side_3d *side, const struct copy_3d *copy) {
    return side->type != ABI_MEMORY_ARRAY && side->height && side->height < copy->height + side->y;
}
static int copy_3d(const struct copy_3d *copy, abi_stream stream, bool wait) {
    if (!copy || copy->from.level || copy->to.level || is_low(&copy->from, copy) || is_low(&copy->to, copy))
        return ABI_ERROR_INVALID_VALUE;
    int result = ABI_SUCCESS;
    for (size_t slice = 0; slice < copy->depth && result == ABI_SUCCESS; slice++) {
        abi_memcpy_2d flat;
        if (!slice_of(copy, slice, &flat)) return ABI_ERROR_NOT_SUPPORTED;
        result = copy_2d(&flat, stream, wait);
    }
    return result;
}
SIM_ROW(cuMemcpy3D_v2, (const struct copy_3d *copy), copy_3d(copy, NULL, true))
SIM_ROW(cuMemcpy3D_v2_ptds, (const struct copy_3d *copy), copy_3d(copy, ABI_STREAM_PER_THREAD, true))
SIM_ROW(cuMemcpy3DAsync_v2, (const struct copy_3d *copy, abi_stream stream), copy_3d(copy, stream, false))
SIM_SAME(cuMemcpy3DAsync_v2_ptsz, (const struct copy_3d *copy, abi_stream stream),
         cuMemcpy3DAsync_v2(copy, sim_own(stream)))

/* CUmemcpyAttributes: hints of locations and the flag are not followed. */
struct batch_attributes {
    int order; /* from 1 to 3 */
    abi_location from, to;
    unsigned flags;
};
struct batch {
    const abi_devptr *to, *from;
    const size_t *bytes;
    size_t count;
    const struct batch_attributes *attributes;
    const size_t *first; /* of the copies that each of the attributes is for */
    size_t attribute_count;
};
static bool is_batch(const struct batch *batch) {
    if (!batch->to || !batch->from || !batch->bytes || !batch->attributes || !batch->first || batch->count == 0 ||
        batch->attribute_count == 0 || batch->attribute_count > batch->count || batch->first[0] != 0)
        return false;
    for (size_t i = 0; i < batch->attribute_count; i++) {
        if (batch->attributes[i].order < 1 || batch->attributes[i].order > 3) return false;
        if (batch->first[i] >= batch->count || (i && batch->first[i] <= batch->first[i - 1])) return false;
    }
    return true;
}
static int copy_batch(const struct batch *batch, abi_stream stream) {
    if (!stream || stream == ABI_STREAM_LEGACY || !is_batch(batch)) return ABI_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < batch->count; i++) SIM_TRY(copy_on(batch->to[i], batch->from[i], batch->bytes[i], stream));
    return ABI_SUCCESS;
}
#define BATCH(name, own)                                                                             \
    SIM_ROW(name,                                                                                    \
            (const abi_devptr *to, const abi_devptr *from, const size_t *bytes, size_t count,        \
             const struct batch_attributes *attributes, const size_t *first, size_t attribute_count, \
             abi_stream stream),                                                                     \
            copy_batch(&(struct batch){to, from, bytes, count, attributes, first, attribute_count}, own(stream)))
#define AS_IT_IS(stream) (stream)
BATCH(cuMemcpyBatchAsync_v2, AS_IT_IS)
BATCH(cuMemcpyBatchAsync_v2_ptsz, sim_own)

/* Fills `rows` rows of `count` elements of `size` bytes. */
static int fill(abi_devptr to, size_t pitch, unsigned value, unsigned size, size_t count, size_t rows,
                abi_stream stream, bool wait) {
    struct sim_context *context;
    struct sim_stream *object;
    int result = sim_stream_context(stream, &context, &object);
    if (result != ABI_SUCCESS) return result;
    if (to % size || pitch % size || (count && rows > 1 && pitch < count * size) || (count && !is_reachable(to)))
        return ABI_ERROR_INVALID_VALUE;
    struct sim_step step = {.type = ABI_NODE_MEMSET, .fill = {to, pitch, value, size, count, rows}};
    if (result == ABI_SUCCESS && !object) result = sim_capture_forbids_legacy(context);
    if (result != ABI_SUCCESS || sim_capture_step(object, &step, &result)) return result;
    if (wait) result = sim_wait_stream(stream);
    else if (sim_is_host_work_pending()) {
        result = sim_fill_usable(&step.fill);
        return result == ABI_SUCCESS ? sim_host_work(context, object, &step, NULL) : result;
    }
    return result == ABI_SUCCESS ? sim_fill_now(&step.fill) : result;
}

#define FILL(bits, type)                                                                                               \
    SIM_EXPORT abi_result cuMemsetD##bits##_v2(abi_devptr to, type value, size_t count) {                              \
        SIM_ENTER("cuMemsetD" #bits "_v2");                                                                            \
        return fill(to, 0, value, bits / 8, count, 1, NULL, true);                                                     \
    }                                                                                                                  \
    SIM_EXPORT abi_result cuMemsetD##bits##_v2_ptds(abi_devptr to, type value, size_t count) {                         \
        return cuMemsetD##bits##_v2(to, value, count);                                                                 \
    }                                                                                                                  \
    SIM_EXPORT abi_result cuMemsetD##bits##Async(abi_devptr to, type value, size_t count, abi_stream stream) {         \
        SIM_ENTER("cuMemsetD" #bits "Async");                                                                          \
        return fill(to, 0, value, bits / 8, count, 1, stream, false);                                                  \
    }                                                                                                                  \
    SIM_EXPORT abi_result cuMemsetD##bits##Async_ptsz(abi_devptr to, type value, size_t count, abi_stream stream) {    \
        return cuMemsetD##bits##Async(to, value, count, sim_own(stream));                                              \
    }                                                                                                                  \
    SIM_EXPORT abi_result cuMemsetD2D##bits##_v2(abi_devptr to, size_t pitch, type value, size_t width, size_t rows) { \
        SIM_ENTER("cuMemsetD2D" #bits "_v2");                                                                          \
        return fill(to, pitch, value, bits / 8, width, rows, NULL, true);                                              \
    }                                                                                                                  \
    SIM_EXPORT abi_result cuMemsetD2D##bits##Async(abi_devptr to, size_t pitch, type value, size_t width, size_t rows, \
                                                   abi_stream stream) {                                                \
        SIM_ENTER("cuMemsetD2D" #bits "Async");                                                                        \
        return fill(to, pitch, value, bits / 8, width, rows, stream, false);                                           \
    }

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)

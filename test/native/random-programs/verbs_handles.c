/* Memory by handle, and what lies above it: address ranges, arrays, and memory of other interfaces. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "worker.h"

static abi_vmm_prop prop_of(int type, int device, int types) {
    return (abi_vmm_prop){.type = ABI_ALLOCATION_PINNED, .requested_handle_types = types, .location = {type, device}};
}

static abi_result create(const abi_vmm_prop *prop, uint64_t bytes, abi_vmm_handle *handle) {
    return CU("cuMemCreate", (abi_vmm_handle *, size_t, const abi_vmm_prop *, unsigned long long), handle,
              (size_t)bytes, prop, 0ull);
}

void verb_physical(struct lane *lane, const struct step *step) {
    int device = other_device(lane, step->random[0]);
    uint64_t granule = shared->granule[gpu_of[device]], unit = granule < PAGE ? PAGE : granule;
    bool host = step->random[1] % 8 == 0;
    int types = step->random[2] % 2 ? ABI_HANDLE_POSIX_FD : ABI_HANDLE_NONE;
    if (types && !host && gpu_of[device] == FABRIC_GPU) types |= ABI_HANDLE_FABRIC;
    uint64_t bytes = unit * (1 + step->random[3] % 6) + (step->random[4] % 16 == 0 ? 4096 : 0);
    abi_vmm_prop prop = host ? prop_of(ABI_LOCATION_HOST + (int)(step->random[1] / 8 % 3), 0, types)
                             : prop_of(ABI_LOCATION_DEVICE, device, types);
    abi_vmm_handle handle = 0;
    if (FULL(lane->physicals)) return;
    if (granted(lane, create(&prop, bytes, &handle), host ? -1 : device, whole(device, bytes)))
        ADD(lane->physicals, (struct physical){handle, bytes, host ? -1 : device, types});
}

/* A range of its own, or a place in one that there is. */
void verb_map(struct lane *lane, const struct step *step) {
    const struct physical *physical = ANY(lane->physicals, step->random[0]);
    struct range *range = ANY(lane->ranges, step->random[1]);
    if (!FULL(lane->ranges) && (!range || step->random[2] % 4 == 0)) {
        abi_devptr at = 0;
        lane->answer.result = CU("cuMemAddressReserve", (abi_devptr *, size_t, size_t, abi_devptr, unsigned long long),
                                 &at, (size_t)(RANGE_PAGES * PAGE), (size_t)0, (abi_devptr)0, 0ull);
        if (lane->answer.result != ABI_SUCCESS) return;
        ADD(lane->ranges, (struct range){.at = at});
        range = &lane->ranges.at[lane->ranges.count - 1];
    }
    if (!physical || !range) return;
    unsigned most = (unsigned)(physical->bytes / PAGE), count = 1 + (unsigned)(step->random[3] % most);
    unsigned first = (unsigned)(step->random[4] % RANGE_PAGES), offset = (unsigned)(step->random[5] % (most + 1));
    if (step->random[2] % 3) count = most, offset = 0;
    lane->answer.result =
        CU("cuMemMap", (abi_devptr, size_t, size_t, abi_vmm_handle, unsigned long long), range->at + first * PAGE,
           (size_t)(count * PAGE), (size_t)(offset * PAGE), physical->handle, 0ull);
    if (lane->answer.result == ABI_SUCCESS) range->mapped |= ((1u << count) - 1) << first;
}

void verb_unmap(struct lane *lane, const struct step *step) {
    struct range *range = ANY(lane->ranges, step->random[0]);
    if (!range) return;
    if (!range->mapped) {
        lane->answer.result = CU("cuMemAddressFree", (abi_devptr, size_t), range->at, (size_t)(RANGE_PAGES * PAGE));
        if (lane->answer.result == ABI_SUCCESS) REMOVE(lane->ranges, INDEX(lane->ranges, range));
        return;
    }
    /* From a page that is mapped on, as many as there are, or fewer: also parts of what was mapped at once. */
    unsigned first = (unsigned)__builtin_ctz(range->mapped), count = (unsigned)__builtin_ctz(~(range->mapped >> first));
    unsigned skip = step->random[1] % 2 ? (unsigned)(step->random[2] % count) : 0;
    first += skip;
    count -= skip;
    if (step->random[3] % 2) count = 1 + (unsigned)(step->random[4] % count);
    lane->answer.result = CU("cuMemUnmap", (abi_devptr, size_t), range->at + first * PAGE, (size_t)(count * PAGE));
    if (lane->answer.result == ABI_SUCCESS) range->mapped &= ~(((1u << count) - 1) << first);
}

void verb_release(struct lane *lane, const struct step *step) {
    struct physical *physical = ANY(lane->physicals, step->random[0]);
    if (!physical) return;
    lane->answer.result = CU("cuMemRelease", (abi_vmm_handle), physical->handle);
    if (lane->answer.result == ABI_SUCCESS) REMOVE(lane->physicals, INDEX(lane->physicals, physical));
}

void verb_retain(struct lane *lane, const struct step *step) {
    const struct range *range = ANY(lane->ranges, step->random[0]);
    abi_vmm_handle handle = 0;
    abi_vmm_prop prop = {0};
    if (!range || !range->mapped || FULL(lane->physicals)) return;
    abi_devptr at = range->at + (unsigned)__builtin_ctz(range->mapped) * PAGE + step->random[1] % PAGE;
    lane->answer.result = CU("cuMemRetainAllocationHandle", (abi_vmm_handle *, void *), &handle, (void *)(uintptr_t)at);
    if (lane->answer.result != ABI_SUCCESS) return;
    CU("cuMemGetAllocationPropertiesFromHandle", (abi_vmm_prop *, abi_vmm_handle), &prop, handle);
    ADD(lane->physicals, (struct physical){handle, PAGE, -1, prop.requested_handle_types});
}

/* ---- between processes ---- */

/* A descriptor, or what a fabric handle is. */
union shareable {
    int fd;
    unsigned char fabric[64];
};

static abi_result export(const struct physical *physical, int type, void *out) {
    return CU("cuMemExportToShareableHandle", (void *, abi_vmm_handle, int, unsigned long long), out, physical->handle,
              type, 0ull);
}

static void import(struct lane *lane, int type, union shareable *from, uint64_t bytes) {
    abi_vmm_handle handle = 0;
    void *shared_handle = type == ABI_HANDLE_FABRIC ? from->fabric : (void *)(intptr_t)from->fd;
    lane->answer.result =
        CU("cuMemImportFromShareableHandle", (abi_vmm_handle *, void *, int), &handle, shared_handle, type);
    if (type == ABI_HANDLE_POSIX_FD) close(from->fd);
    if (lane->answer.result == ABI_SUCCESS) ADD(lane->physicals, (struct physical){handle, bytes, -1, type});
}

static int type_of(const struct physical *physical, uint64_t random) {
    return random % 2 && physical->types & ABI_HANDLE_FABRIC ? ABI_HANDLE_FABRIC : ABI_HANDLE_POSIX_FD;
}

void verb_export(struct lane *lane, const struct step *step) {
    const struct physical *physical = ANY(lane->physicals, step->random[0]);
    union shareable out = {.fd = -1};
    if (!physical || lane->lanes > 1) return;
    int type = type_of(physical, step->random[2]);
    lane->answer.result = export(physical, type, &out);
    if (lane->answer.result != ABI_SUCCESS) return;
    if (type == ABI_HANDLE_FABRIC)
        letter_put(step->random[1], FABRIC_LETTER, -1, physical->bytes, out.fabric, sizeof out.fabric);
    else letter_put(step->random[1], HANDLE_LETTER, out.fd, physical->bytes, NULL, 0);
}

void verb_import(struct lane *lane, const struct step *step) {
    struct letter letter;
    union shareable from;
    bool fabric = step->random[1] % 2;
    int fd = -1;
    if (FULL(lane->physicals) || lane->lanes > 1) return;
    if (!letter_any(fabric ? FABRIC_LETTER : HANDLE_LETTER, step->random[0], &letter, &fd)) return;
    if (fabric) memcpy(from.fabric, letter.text, sizeof from.fabric);
    else from.fd = fd;
    import(lane, fabric ? ABI_HANDLE_FABRIC : ABI_HANDLE_POSIX_FD, &from, letter.bytes);
}

/* What this process itself exports. */
void verb_import_own(struct lane *lane, const struct step *step) {
    const struct physical *physical = ANY(lane->physicals, step->random[0]);
    union shareable shared_memory = {.fd = -1};
    if (!physical || FULL(lane->physicals)) return;
    int type = type_of(physical, step->random[1]);
    lane->answer.result = export(physical, type, &shared_memory);
    if (lane->answer.result == ABI_SUCCESS) import(lane, type, &shared_memory, physical->bytes);
}

/* ---- arrays ---- */

enum form { FLAT, FLAT_OLD, SOLID, SOLID_OLD, CHAIN };
/* Layouts in bytes before granules, by hand. */
static const struct {
    uint64_t bytes;
    abi_array3d_shape shape;
    enum form form;
    unsigned levels;
} SHAPES[] = {
    {1600000, {100000, 0, 0, ABI_FORMAT_FLOAT, 4, 0}, FLAT, 0},
    {7680ull * 1080, {1920, 1080, 0, ABI_FORMAT_U8, 4, 0}, FLAT, 0},
    {1024ull * 1008, {1001, 1001, 0, ABI_FORMAT_U8, 1, 0}, FLAT_OLD, 0},
    {8192ull * 2048, {2048, 2048, 0, ABI_FORMAT_HALF, 2, 0}, FLAT_OLD, 0},
    {448ull * 104 * 100, {100, 100, 100, ABI_FORMAT_FLOAT, 1, 0}, SOLID, 0},
    {512ull * 512 * 9, {512, 512, 9, ABI_FORMAT_U8, 1, ABI_ARRAY_LAYERED}, SOLID, 0},
    {1216ull * 304 * 6, {300, 300, 6, ABI_FORMAT_FLOAT, 1, ABI_ARRAY_CUBEMAP}, SOLID, 0},
    {1024ull * 128 * 32, {128, 128, 32, ABI_FORMAT_FLOAT, 2, 0}, SOLID_OLD, 0},
    {2048ull * 256, {1024, 1024, 0, ABI_FORMAT_BC1, 4, 0}, FLAT, 0},
    {4096ull * 1024, {1024, 1024, 0, ABI_FORMAT_FLOAT, 1, 0}, CHAIN, 1},
    {4096ull * 1024 + 2048ull * 512 + 1024ull * 256, {1024, 1024, 0, ABI_FORMAT_FLOAT, 1, 0}, CHAIN, 3},
    {128ull * 128 * 128 + 64ull * 64 * 64, {128, 128, 128, ABI_FORMAT_U8, 1, 0}, CHAIN, 2},
    {128ull * 128 * 128 + 64ull * 64 * 128, {128, 128, 128, ABI_FORMAT_U8, 1, ABI_ARRAY_LAYERED}, CHAIN, 2},
};

static abi_result array_create(enum form form, const abi_array3d_shape *shape, unsigned levels, void **out) {
    abi_array_shape flat = {shape->width, shape->height, shape->format, shape->channels};
    abi_array_shape_v1 flat_old = {(unsigned)shape->width, (unsigned)shape->height, shape->format, shape->channels};
    abi_array3d_shape_v1 old = {(unsigned)shape->width, (unsigned)shape->height, (unsigned)shape->depth,
                                shape->format,          shape->channels,         shape->flags};
    switch (form) {
    case FLAT: return CU("cuArrayCreate_v2", (void **, const abi_array_shape *), out, &flat);
    case FLAT_OLD: return CU("cuArrayCreate", (void **, const abi_array_shape_v1 *), out, &flat_old);
    case SOLID: return CU("cuArray3DCreate_v2", (void **, const abi_array3d_shape *), out, shape);
    case SOLID_OLD: return CU("cuArray3DCreate", (void **, const abi_array3d_shape_v1 *), out, &old);
    default: return CU("cuMipmappedArrayCreate", (void **, const abi_array3d_shape *, unsigned), out, shape, levels);
    }
}

void verb_array(struct lane *lane, const struct step *step) {
    unsigned which = (unsigned)(step->random[0] % (sizeof SHAPES / sizeof *SHAPES));
    abi_array3d_shape shape = SHAPES[which].shape;
    enum array_kind kind = step->random[1] % 6 == 0 ? SPARSE : step->random[1] % 6 == 1 ? DEFERRED : PLAIN;
    enum form form = SHAPES[which].form;
    void *handle = NULL;
    if (FULL(lane->arrays)) return;
    if (kind != PLAIN) {
        shape.flags |= kind == SPARSE ? ABI_ARRAY_SPARSE : ABI_ARRAY_DEFERRED;
        if (form == FLAT || form == FLAT_OLD) form = SOLID;
    }
    abi_result result = array_create(form, &shape, SHAPES[which].levels, &handle);
    int device = current_device(lane);
    uint64_t need = device < 0 || kind != PLAIN ? 0 : whole(device, SHAPES[which].bytes);
    if (granted(lane, result, device, need))
        ADD(lane->arrays, (struct array){handle, kind, form == CHAIN, device, lane->current});
}

void verb_array_destroy(struct lane *lane, const struct step *step) {
    struct array *array = ANY(lane->arrays, step->random[0]);
    void *level = NULL;
    if (!array) return;
    if (array->chain && step->random[1] % 2) { /* a level has a handle of its own, and costs nothing */
        CU("cuMipmappedArrayGetLevel", (void **, void *, unsigned), &level, array->handle, 0u);
        if (level && step->random[1] % 4 == 1) CU("cuArrayDestroy", (void *), level);
    }
    lane->answer.result = array->chain ? CU("cuMipmappedArrayDestroy", (void *), array->handle)
                                       : CU("cuArrayDestroy", (void *), array->handle);
    if (lane->answer.result == ABI_SUCCESS) REMOVE(lane->arrays, INDEX(lane->arrays, array));
}

/* Up to three parts at once; some of them are wrong, and then the driver has done those before. */
void verb_tiles(struct lane *lane, const struct step *step) {
    const struct array *array = ANY(lane->arrays, step->random[0]);
    abi_array_map list[3] = {0};
    unsigned count = step->random[1] % 4 == 0 ? 2 : 1;
    if (!array || array->kind == PLAIN) {
        for (unsigned i = 0; i < lane->arrays.count; i++) {
            if (lane->arrays.at[i].kind != PLAIN) array = &lane->arrays.at[i];
        }
    }
    if (!array || array->kind == PLAIN) return;
    for (unsigned i = 0; i < count; i++) {
        uint64_t number = step->random[2 + i];
        const struct physical *physical = ANY(lane->physicals, number / 7);
        bool unmap = number % 3 == 0 || !physical;
        list[i] = (abi_array_map){
            .resource_type = array->chain ? ABI_RESOURCE_MIPMAPPED : ABI_RESOURCE_ARRAY,
            .resource = array->handle,
            .operation = unmap ? ABI_TILES_UNMAP : ABI_TILES_MAP,
            .handle = unmap ? 0 : physical->handle,
            .part.tiles = {.level = (unsigned)(number / 3 % 2),
                           .x = (unsigned)(number / 11 % 4 * 32),
                           .y = (unsigned)(number / 13 % 2 * 32),
                           .width = 32 + 32 * (unsigned)(number / 17 % 3),
                           .height = 32 + 32 * (unsigned)(number / 19 % 2),
                           .depth = 1 + (unsigned)(number / 23 % 2)},
            .device_mask = 1,
        };
        if (number / 29 % 5 == 0) {
            list[i].part_type = ABI_TILES_MIP_TAIL;
            list[i].part.tail.layer = 0;
            list[i].part.tail.offset = number / 31 % 3 * 65536;
            list[i].part.tail.size = 65536 * (1 + number / 37 % 2);
        }
    }
    typedef abi_result (*call)(abi_array_map *, unsigned, abi_stream);
    call map = (call)driver_find(step->random[5] % 2 ? "cuMemMapArrayAsync" : "cuMemMapArrayAsync_ptsz");
    lane->answer.result = map(list, count, NULL);
}

/* ---- memory of other interfaces ---- */

static void external_import(struct lane *lane, int fd, uint64_t bytes, int type, uint64_t need) {
    abi_external_handle from = {.type = type, .handle.fd = fd, .size = bytes};
    abi_external handle = NULL;
    abi_result result = CU("cuImportExternalMemory", (abi_external *, const abi_external_handle *), &handle, &from);
    if (granted(lane, result, current_device(lane), need))
        ADD(lane->externals, (struct external){handle, lane->current});
    else close(fd); /* else it is the driver's */
}

void verb_external(struct lane *lane, const struct step *step) {
    uint64_t bytes = 4096 * (1 + step->random[0] % 4096);
    int device = current_device(lane);
    if (FULL(lane->externals) || device < 0) return;
    int fd = memfd_create("foreign", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) _exit(3);
    external_import(lane, fd, bytes, step->random[1] % 2 ? ABI_EXTERNAL_OPAQUE_FD : ABI_EXTERNAL_DMABUF_FD,
                    whole(device, bytes));
}

/* Of memory by handle: another process's, or this one's own. The simulated driver lets memory go with its last handle,
 * mapping or import, where a real one keeps it for its exported file; what is left then is a file as any other, so that
 * another's state is not known while that one goes on. */
void verb_external_of(struct lane *lane, const struct step *step) {
    struct letter letter;
    const struct physical *physical = ANY(lane->physicals, step->random[0]);
    bool own = step->random[1] % 2;
    int fd = -1;
    if (FULL(lane->externals) || (own ? !physical : shared->at_once)) return;
    if (own) lane->answer.result = export(physical, ABI_HANDLE_POSIX_FD, &fd);
    else if (!letter_any(HANDLE_LETTER, step->random[0], &letter, &fd)) return;
    lane->answer.unjudged = !own || physical->device < 0;
    if (fd >= 0) external_import(lane, fd, PAGE, ABI_EXTERNAL_OPAQUE_FD, 0);
}

void verb_external_destroy(struct lane *lane, const struct step *step) {
    struct external *external = ANY(lane->externals, step->random[0]);
    if (!external) return;
    lane->answer.result = CU("cuDestroyExternalMemory", (abi_external), external->handle);
    if (lane->answer.result == ABI_SUCCESS) REMOVE(lane->externals, INDEX(lane->externals, external));
}

void verb_external_view(struct lane *lane, const struct step *step) {
    const struct external *external = ANY(lane->externals, step->random[0]);
    abi_external_buffer buffer = {.size = 4096};
    abi_devptr at = 0;
    if (!external || FULL(lane->blocks)) return;
    lane->answer.result = CU("cuExternalMemoryGetMappedBuffer", (abi_devptr *, abi_external, abi_external_buffer *),
                             &at, external->handle, &buffer);
    if (lane->answer.result == ABI_SUCCESS)
        ADD(lane->blocks, (struct block){at, 4096, current_device(lane), external->context, VIEW});
}

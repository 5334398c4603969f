/* Managed memory beyond its allocation: attachment to streams, prefetching and advice. All of it stays where it is, so
 * these calls change the attributes of a range, and nothing else. */
#include <stdlib.h>
#include <string.h>

#include "../sim.h"

enum { ATTACH_GLOBAL = 1, ATTACH_HOST = 2, ATTACH_SINGLE = 4 };
enum { NO_DEVICE = -2, CPU = -1 }; /* ordinals that are no devices */
enum { SET_READ_MOSTLY = 1, UNSET_READ_MOSTLY, SET_PREFERRED, UNSET_PREFERRED, SET_ACCESSED_BY, UNSET_ACCESSED_BY };
enum { READ_MOSTLY = 1, PREFERRED = 2, ACCESSED_BY = 3, LAST_PREFETCH = 4 };

struct sim_advice {
    uint64_t accessed_by; /* a bit for each device */
    int preferred, prefetched;
    bool read_mostly;
};

/* Under sim.lock: the advice of the range's first page, one for each page of the simulated address space; NULL: not
 * managed memory. */
static struct sim_advice *advice_of(abi_devptr pointer, size_t bytes, uint64_t *pages) {
    struct sim_region *region = sim_region_at(pointer);
    if (!region || region->kind != SIM_MANAGED || bytes == 0) return NULL;
    uint64_t offset = pointer - sim_region_address(region);
    if (offset + bytes < offset || offset + bytes > region->bytes) return NULL;
    if (!region->advice) {
        region->advice = calloc(region->pages, sizeof *region->advice);
        for (uint64_t i = 0; region->advice && i < region->pages; i++)
            region->advice[i] = (struct sim_advice){.preferred = NO_DEVICE, .prefetched = NO_DEVICE};
    }
    *pages = (offset + bytes - 1) / SIM_PAGE - offset / SIM_PAGE + 1;
    return region->advice ? region->advice + offset / SIM_PAGE : NULL;
}

static int attach(abi_stream handle, abi_devptr pointer, size_t length, unsigned flags) {
    SIM_STREAM(handle, context, stream);
    if (stream) SIM_TRY(sim_capture_forbids_sync(context, stream));
    if (flags != ATTACH_GLOBAL && flags != ATTACH_HOST && (flags != ATTACH_SINGLE || !handle))
        return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    struct sim_region *region = sim_region_at(pointer);
    bool whole = region && region->kind == SIM_MANAGED && pointer == sim_region_address(region) &&
                 (length == 0 || length == region->bytes);
    pthread_mutex_unlock(&sim.lock);
    return whole ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}
SIM_ROW(cuStreamAttachMemAsync, (abi_stream stream, abi_devptr pointer, size_t length, unsigned flags),
        attach(stream, pointer, length, flags))
SIM_ROW(cuStreamAttachMemAsync_ptsz, (abi_stream stream, abi_devptr pointer, size_t length, unsigned flags),
        attach(sim_own(stream), pointer, length, flags))

/* The ordinal of a location, CPU for the host's; or an error. */
static int place_of(const abi_location *location, int *place) {
    int device = sim_device_of_location(location);
    if (location->type == ABI_LOCATION_DEVICE_LOCALITY_DOMAIN || device == SIM_UNKNOWN_LOCATION)
        return ABI_ERROR_INVALID_VALUE;
    if (device == SIM_NO_DEVICE) return ABI_ERROR_INVALID_DEVICE;
    *place = device == SIM_HOST ? CPU : device;
    return ABI_SUCCESS;
}

static int prefetch(abi_devptr pointer, size_t bytes, const abi_location *location, unsigned flags, abi_stream handle) {
    SIM_STREAM(handle, context, stream);
    int place;
    (void)stream;
    (void)context;
    if (flags) return ABI_ERROR_INVALID_VALUE;
    SIM_TRY(place_of(location, &place));
    uint64_t pages;
    pthread_mutex_lock(&sim.lock);
    struct sim_advice *advice = advice_of(pointer, bytes, &pages);
    for (uint64_t i = 0; advice && i < pages; i++) advice[i].prefetched = place;
    pthread_mutex_unlock(&sim.lock);
    return advice ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}
SIM_ROW(cuMemPrefetchAsync_v2,
        (abi_devptr pointer, size_t bytes, abi_location location, unsigned flags, abi_stream stream),
        prefetch(pointer, bytes, &location, flags, stream))
SIM_ROW(cuMemPrefetchAsync_v2_ptsz,
        (abi_devptr pointer, size_t bytes, abi_location location, unsigned flags, abi_stream stream),
        prefetch(pointer, bytes, &location, flags, sim_own(stream)))

static void advise(struct sim_advice *advice, int what, int place) {
    if (what == SET_READ_MOSTLY || what == UNSET_READ_MOSTLY) advice->read_mostly = what == SET_READ_MOSTLY;
    if (what == SET_PREFERRED) advice->preferred = place;
    if (what == UNSET_PREFERRED) advice->preferred = NO_DEVICE;
    if (what == SET_ACCESSED_BY && place >= 0) advice->accessed_by |= 1ull << place;
    if (what == UNSET_ACCESSED_BY && place >= 0) advice->accessed_by &= ~(1ull << place);
}
SIM_EXPORT abi_result cuMemAdvise_v2(abi_devptr pointer, size_t bytes, int what, abi_location location) {
    SIM_ENTER("cuMemAdvise_v2");
    int place = CPU;
    if (what < SET_READ_MOSTLY || what > UNSET_ACCESSED_BY) return ABI_ERROR_INVALID_VALUE;
    if (what == SET_PREFERRED || what == SET_ACCESSED_BY || what == UNSET_ACCESSED_BY)
        SIM_TRY(place_of(&location, &place));
    if (what >= SET_ACCESSED_BY && place == CPU && location.type != ABI_LOCATION_HOST) return ABI_ERROR_INVALID_VALUE;
    uint64_t pages;
    pthread_mutex_lock(&sim.lock);
    struct sim_advice *advice = advice_of(pointer, bytes, &pages);
    for (uint64_t i = 0; advice && i < pages; i++) advise(&advice[i], what, place);
    pthread_mutex_unlock(&sim.lock);
    return advice ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}

/* What holds for all of the pages. */
static struct sim_advice common(const struct sim_advice *advice, uint64_t pages) {
    struct sim_advice all = *advice;
    for (uint64_t i = 1; i < pages; i++) {
        all.read_mostly = all.read_mostly && advice[i].read_mostly;
        all.accessed_by &= advice[i].accessed_by;
        if (advice[i].preferred != all.preferred) all.preferred = NO_DEVICE;
        if (advice[i].prefetched != all.prefetched) all.prefetched = NO_DEVICE;
    }
    return all;
}
SIM_EXPORT abi_result cuMemRangeGetAttribute(void *data, size_t size, int attribute, abi_devptr pointer, size_t bytes) {
    SIM_ENTER("cuMemRangeGetAttribute");
    if (!data || attribute < READ_MOSTLY || attribute > LAST_PREFETCH || size == 0 || size % sizeof(int) ||
        (attribute != ACCESSED_BY && size != sizeof(int)))
        return ABI_ERROR_INVALID_VALUE;
    uint64_t pages;
    pthread_mutex_lock(&sim.lock);
    const struct sim_advice *advice = advice_of(pointer, bytes, &pages);
    struct sim_advice all = advice ? common(advice, pages) : (struct sim_advice){0};
    pthread_mutex_unlock(&sim.lock);
    if (!advice) return ABI_ERROR_INVALID_VALUE;
    int *values = data;
    if (attribute == READ_MOSTLY) *values = all.read_mostly;
    if (attribute == PREFERRED) *values = all.preferred;
    if (attribute == LAST_PREFETCH) *values = all.prefetched;
    if (attribute != ACCESSED_BY) return ABI_SUCCESS;
    size_t count = 0;
    for (int device = 0; device < sim.device_count && count < size / sizeof(int); device++)
        if (all.accessed_by >> device & 1) values[count++] = device;
    while (count < size / sizeof(int)) values[count++] = NO_DEVICE;
    return ABI_SUCCESS;
}

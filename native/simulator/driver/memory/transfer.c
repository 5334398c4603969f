/* Ranges of memory that copies and fills may use; copies and fills at once, on the calling thread. */
#include <string.h>

#include "../sim.h"

int sim_check_range(abi_devptr pointer, uint64_t bytes, bool *device) {
    *device = sim_in_arena(pointer);
    if (!*device) return pointer ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
    int result = ABI_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    abi_devptr at = pointer, end = pointer + bytes;
    while (at < end && result == ABI_SUCCESS) {
        struct sim_region *region = sim_region_at(at);
        if (!region || end < pointer) {
            result = ABI_ERROR_INVALID_VALUE;
            break;
        }
        abi_devptr start = sim_region_address(region);
        uint64_t length = region->bytes;
        if (region->kind == SIM_SMALLS && !sim_small_range(region, at, &start, &length))
            result = ABI_ERROR_INVALID_VALUE;
        if (region->kind == SIM_CHUNK && !sim_chunk_range(region, at, &start, &length))
            result = ABI_ERROR_INVALID_VALUE;
        if (region->kind == SIM_GRAPH && !sim_graph_memory_live(region->graph_memory)) result = ABI_ERROR_INVALID_VALUE;
        if (region->kind == SIM_RESERVED) {
            uint64_t page = (at - start) / SIM_PAGE;
            if (!region->mapped[page] || !region->access[page]) result = ABI_ERROR_INVALID_VALUE;
            start += page * SIM_PAGE;
            length = SIM_PAGE;
        } else if (end > start + length) {
            result = ABI_ERROR_INVALID_VALUE; /* beyond the end of one allocation */
        }
        at = start + length;
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

int sim_copy_usable(abi_devptr to, abi_devptr from, size_t bytes) {
    bool device;
    int result = sim_check_range(to, bytes, &device);
    return result == ABI_SUCCESS ? sim_check_range(from, bytes, &device) : result;
}

int sim_copy_now(abi_devptr to, abi_devptr from, size_t bytes) {
    if (bytes == 0) return ABI_SUCCESS;
    SIM_CURRENT(context);
    int result = sim_copy_usable(to, from, bytes);
    if (result == ABI_SUCCESS) memmove((void *)to, (void *)from, bytes);
    return result;
}

int sim_fill_usable(const abi_memset_node *fill) {
    int result = ABI_SUCCESS;
    bool device;
    for (size_t row = 0; row < fill->height && result == ABI_SUCCESS && fill->width; row++)
        result = sim_check_range(fill->to + row * fill->pitch, fill->width * fill->element, &device);
    return result;
}

int sim_fill_now(const abi_memset_node *fill) {
    int result = sim_fill_usable(fill);
    if (result == ABI_SUCCESS) sim_fill_there(fill);
    return result;
}

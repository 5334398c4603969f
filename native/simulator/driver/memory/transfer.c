/* Copies and fills of memory, at once and on the calling thread. */
#include <string.h>

#include "../sim.h"

static int both_usable(abi_devptr to, abi_devptr from, size_t bytes) {
    struct sim_context *context;
    bool device;
    int result = sim_current(&context);
    if (result == ABI_SUCCESS) result = sim_check_range(to, bytes, &device);
    if (result == ABI_SUCCESS) result = sim_check_range(from, bytes, &device);
    return result;
}

int sim_copy_now(abi_devptr to, abi_devptr from, size_t bytes) {
    if (bytes == 0) return ABI_SUCCESS;
    int result = both_usable(to, from, bytes);
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
